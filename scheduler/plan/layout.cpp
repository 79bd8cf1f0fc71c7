// Memory of a plan: every buffer's size and address, and the table of what it is for. Addresses are
// handed out once, in order; nothing is freed within a run, so nothing fragments, and the peak of a
// tier is the size of its arena.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/assert.hpp"
#include "scheduler/plan/choices.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kDirectParamSlots = 4;
constexpr int kDecodedSlots = 6;

std::size_t round_to_page(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::size_t fp32_bytes(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * 4;
}

// Hands out addresses and keeps the memory table.
class Memory {
 public:
  Memory(Plan& plan, bool separate_device) : plan_(plan), separate_(separate_device) {}

  int add(const char* purpose, std::string name, MemoryTier tier, std::size_t bytes) {
    const bool device = tier == MemoryTier::kDevice && separate_;
    std::size_t& used = device ? plan_.device_arena_bytes : plan_.host_arena_bytes;
    Buffer buffer{.name = std::move(name),
                  .tier = device ? MemoryTier::kDevice : MemoryTier::kHost,
                  .offset = used,
                  .bytes = bytes};
    const std::size_t rounded = round_to_page(bytes);
    used += rounded;
    MemoryRow& row = row_of(purpose);
    (device ? row.device_bytes : row.host_bytes) += rounded;
    plan_.buffers.push_back(std::move(buffer));
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  int add_store(std::string name, std::size_t bytes) {
    plan_.buffers.push_back(
        {.name = std::move(name), .tier = MemoryTier::kStore, .offset = 0, .bytes = bytes});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  // Host memory of others, while they do not need it.
  int add_borrowed(std::string name, std::size_t offset, std::size_t bytes) {
    plan_.buffers.push_back({.name = std::move(name),
                             .tier = MemoryTier::kHost,
                             .offset = offset,
                             .bytes = bytes,
                             .borrowed = true});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  MemoryRow& row_of(const std::string& purpose) {
    const auto found = std::find_if(plan_.memory.begin(),
                                    plan_.memory.end(),
                                    [&](const MemoryRow& row) { return row.purpose == purpose; });
    HEADRACE_ASSERT(found != plan_.memory.end(), "a purpose of the memory table");
    return *found;
  }

 private:
  Plan& plan_;
  bool separate_;
};

// What the tiles that are on their way need at most.
struct StagingSizes {
  std::size_t param = 0, state = 0, decoded = 0;
};

struct Context {
  const ModelSpec& model;
  const PlanSettings& settings;
  const Choices& choices;
  Plan& plan;
  Layout& layout;
  Memory memory;
  bool training;
  int slots;  // micro-batches whose activations are alive together
  StagingSizes staging = {};
};

bool trainable(const UnitPlan& unit) {
  return std::any_of(
      unit.tiles.begin(), unit.tiles.end(), [](const TileSpec& tile) { return !tile.frozen; });
}

// fp32 while the host still adds to it: several groups of micro-batches, or the two
// accumulators of a tied matrix.
Dtype gradient_storage(const Context& context, std::size_t unit) {
  const bool host_adds = groups_of(context.model.accumulate, context.choices.group_size) > 1;
  const bool tied_matrix = unit == 0 && context.model.tied;
  return context.settings.grad == Dtype::kBf16 && !host_adds && !tied_matrix ? Dtype::kBf16
                                                                             : Dtype::kF32;
}

// What the kernels read, where it is kept: on an aliasing device the master itself, unless it has
// to be decoded.
void place_weights(Context& context, std::size_t u, bool on_device, UnitPlan& unit) {
  const UnitSpec& spec = context.model.units[u];
  const UnitChoice& choice = context.choices.units[u];
  const bool separate = context.settings.separate_device;
  const bool decoded = context.settings.format.decoded && trainable(unit);
  unit.pinned = separate ? choice.pinned || on_device
                         : choice.master_in_memory && (choice.pinned || !decoded);
  const bool read_there = !separate || !spec.pieces.empty();  // not the lookup alone
  const bool own_copy = unit.pinned && read_there && (decoded || (separate && !on_device));
  if (own_copy) {
    unit.weights = context.memory.add(
        "weights", spec.name + ".weights", MemoryTier::kDevice, fp32_bytes(spec.elements));
  }
}

// The two extents of every tile: those that are in memory lie there one after the other.
void place_extents(Context& context, std::size_t u, MemoryTier tier, UnitPlan& unit) {
  const UnitSpec& spec = context.model.units[u];
  const StateFormat& format = context.settings.format;
  const bool master = context.choices.units[u].master_in_memory;
  const bool state = context.training && trainable(unit) && unit.home != Home::kNvme;
  std::size_t param_bytes = 0, state_bytes = 0;
  unit.param.reserve(unit.tiles.size());
  unit.state_of.reserve(unit.tiles.size());
  for (const TileSpec& tile : unit.tiles) {
    TilePlace param{.buffer = -1, .offset = param_bytes, .bytes = format.param_extent_bytes(tile)};
    // Frozen floats beside decoded ones are where the kernels read them, and nowhere else.
    if (tile.frozen && unit.weights >= 0 && !context.settings.separate_device) {
      param.buffer = unit.weights;
      param.offset = fp32_bytes(tile.begin);
    } else {
      param_bytes += param.bytes;
    }
    unit.param.push_back(param);
    unit.state_of.push_back(
        {.buffer = -1, .offset = state_bytes, .bytes = format.state_extent_bytes(tile)});
    state_bytes += unit.state_of.back().bytes;
  }
  if (master) {
    unit.master = context.memory.add("weights", spec.name + ".master", tier, param_bytes);
    unit.write_through = context.choices.units[u].write_through;
  }
  if (state) {
    unit.state = context.memory.add("state", spec.name + ".state", tier, state_bytes);
  }
  if (unit.pinned && unit.weights < 0) {
    unit.weights = unit.master;
  }
  // Decoded into the place of use where the host can write there; the lookup of the embedding has
  // none, unless its weights are kept.
  const bool direct =
      context.settings.separate_device ? unit.home == Home::kDevice : u != 0 || unit.weights >= 0;
  StagingSizes& staging = context.staging;
  for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
    const TileSpec& tile = unit.tiles[t];
    if (unit.param[t].buffer < 0) {
      unit.param[t].buffer = unit.master;
    }
    unit.state_of[t].buffer = tile.frozen ? -1 : unit.state;
    if (unit.param[t].buffer < 0) {
      staging.param = std::max(staging.param, unit.param[t].bytes);
    }
    if (context.training && unit.state < 0) {
      staging.state = std::max(staging.state, unit.state_of[t].bytes);
    }
    if (!direct && format.decodes(tile)) {
      staging.decoded = std::max(staging.decoded, fp32_bytes(tile.elements));
    }
  }
}

// Nothing in memory would have to be undone. The embedding's gradient is known last: nothing is
// won.
bool may_be_speculated(const UnitPlan& unit) {
  return trainable(unit) && unit.master < 0 && unit.state < 0 && unit.weights < 0;
}

void place_unit(Context& context, std::size_t u) {
  const UnitSpec& spec = context.model.units[u];
  const UnitChoice& choice = context.choices.units[u];
  UnitPlan unit;
  unit.home = choice.state_home;
  unit.tiles = context.choices.tiles->at(u);
  // The embedding is looked up on the host: its master never lives on a separate device.
  const bool on_device = choice.state_home == Home::kDevice && context.settings.separate_device &&
                         spec.kind != UnitKind::kEmbedding;
  if (choice.state_home == Home::kDevice && !on_device) {
    unit.home = Home::kHost;
  }
  const MemoryTier tier = on_device ? MemoryTier::kDevice : MemoryTier::kHost;
  place_weights(context, u, on_device, unit);
  place_extents(context, u, tier, unit);
  context.layout.store_param.push_back(
      context.memory.add_store(spec.name + ".param", fp32_bytes(spec.elements)));
  context.layout.store_state.push_back(
      context.memory.add_store(spec.name + ".state", 2 * fp32_bytes(spec.elements)));
  context.plan.units.push_back(std::move(unit));
}

// Held gradients of all units lie one after the other, so that what they leave free can be lent.
void place_gradients(Context& context) {
  for (std::size_t u = 0; context.training && u < context.model.units.size(); ++u) {
    UnitPlan& unit = context.plan.units[u];
    if (!trainable(unit)) {
      continue;
    }
    const UnitSpec& spec = context.model.units[u];
    unit.gradient_storage = gradient_storage(context, u);
    unit.gradient = context.memory.add(
        "gradients",
        spec.name + ".gradient",
        unit.home == Home::kDevice ? MemoryTier::kDevice : MemoryTier::kHost,
        static_cast<std::size_t>(spec.elements) * dtype_bytes(unit.gradient_storage));
  }
}

void place_activations(Context& context) {
  const ModelSpec& model = context.model;
  const std::size_t bytes = model.activation_bytes();
  const std::size_t blocks = model.units.size() - 2;
  Plan& plan = context.plan;
  Layout& layout = context.layout;
  const auto accumulate = static_cast<std::size_t>(model.accumulate);
  plan.tokens_x =
      context.memory.add("activations", "embedding.x", MemoryTier::kHost, bytes * accumulate);
  layout.activations.resize(blocks + 1);
  // Beside a block's input and output, one for each that is on its way back ahead of its block.
  const std::size_t levels = static_cast<std::size_t>(context.choices.lookahead) + 2;
  plan.offload_inputs = context.training && context.choices.offload_inputs && levels <= blocks;
  // On an aliasing device the embedding's output is the first block's input, where it lies.
  const std::size_t first_own = context.settings.separate_device ? 0 : 1;
  for (std::size_t u = first_own; u <= blocks; ++u) {
    if (!context.training && u >= first_own + 2) {
      layout.activations[u] =
          layout.activations[u - 2];  // without a backward pass two in turn are enough
      continue;
    }
    if (plan.offload_inputs && u >= levels) {
      layout.activations[u] = layout.activations[u - levels];
      continue;
    }
    for (int k = 0; k < context.slots; ++k) {
      layout.activations[u].push_back(context.memory.add(
          "activations", fmt::format("activation.{}.{}", u, k), MemoryTier::kDevice, bytes));
    }
  }
  // What the last levels hold as backward begins never leaves, and input 0 is on the host.
  layout.offloaded.resize(plan.offload_inputs ? blocks + 1 - levels : 0);
  for (std::size_t u = 1; u < layout.offloaded.size(); ++u) {
    for (int k = 0; k < context.slots; ++k) {
      layout.offloaded[u].push_back(context.memory.add(
          "activations", fmt::format("offloaded.{}.{}", u, k), MemoryTier::kHost, bytes));
    }
  }
  if (context.training) {
    for (int k = 0; k < context.slots; ++k) {
      layout.gradients.push_back(context.memory.add(
          "activations", fmt::format("activation_gradient.{}", k), MemoryTier::kDevice, bytes));
    }
    if (context.settings.separate_device) {
      layout.dx_host = context.memory.add("activations", "embedding.dx", MemoryTier::kHost, bytes);
    }
  }
}

// Where activations of blocks [first, end) wait for backward.
void place_spilled(Context& context, std::size_t first, std::size_t end) {
  Plan& plan = context.plan;
  Layout& layout = context.layout;
  layout.spilled.assign(layout.saved.size(),
                        std::vector<int>(static_cast<std::size_t>(context.slots), -1));
  for (std::size_t b = first; b < end; ++b) {
    const std::size_t bytes = round_to_page(context.model.units[b + 1].cost.saved_bytes);
    for (int k = 0; k < context.slots; ++k) {
      std::string name = fmt::format("spilled.{}.{}", b + 1, k);
      int& place = layout.spilled[b][static_cast<std::size_t>(k)];
      if (plan.separate_device) {
        place = context.memory.add("activations", std::move(name), MemoryTier::kHost, bytes);
        continue;
      }
      place = context.memory.add_store(std::move(name), bytes);
      plan.spilled.push_back({.unit = static_cast<int>(b) + 1, .slot = k, .bytes = bytes});
    }
  }
}

// What a block's forward leaves for its backward. The last blocks' is kept: they are the next to go
// backward. That of blocks before them may leave memory and come back; until then, and again from
// then on, it lies in a kept block's place. What is recomputed shares one buffer, and so does the
// last block where a micro-batch turns around before the next one comes: nothing else is run
// forward meanwhile.
void place_saved(Context& context) {
  const ModelSpec& model = context.model;
  const std::size_t blocks = model.units.size() - 2;
  Plan& plan = context.plan;
  Layout& layout = context.layout;
  plan.kept_blocks = context.training ? context.choices.kept_blocks : 0;
  plan.spilled_blocks = spilled_blocks(model, context.choices);
  const std::size_t first_kept = blocks - static_cast<std::size_t>(plan.kept_blocks);
  const std::size_t first_waiting = first_kept - static_cast<std::size_t>(plan.spilled_blocks);
  std::size_t largest = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    largest = std::max(largest, model.units[b + 1].cost.saved_bytes);
  }
  const int shared = first_waiting > 0 && largest > 0
                         ? context.memory.add("activations", "saved", MemoryTier::kDevice, largest)
                         : -1;
  const bool turns_around = context.slots == 1 && shared >= 0;
  layout.saved_slots = std::max(plan.kept_blocks - (turns_around ? 1 : 0), 0);
  layout.saved.resize(blocks);
  for (std::size_t b = blocks; b-- > 0;) {
    layout.saved[b].assign(static_cast<std::size_t>(context.slots), shared);
    if (b >= first_waiting && b < first_kept) {
      layout.saved[b] = layout.saved[b + static_cast<std::size_t>(layout.saved_slots)];
    }
    for (int k = 0; b >= first_kept && !(turns_around && b + 1 == blocks) && k < context.slots;
         ++k) {
      layout.saved[b][static_cast<std::size_t>(k)] = context.memory.add(
          "activations",
          fmt::format("saved.{}.{}", b + 1, k),
          MemoryTier::kDevice,
          plan.spilled_blocks > 0 ? round_to_page(largest) : model.units[b + 1].cost.saved_bytes);
    }
  }
  place_spilled(context, first_waiting, first_kept);
}

void place_head(Context& context) {
  const ModelSpec& model = context.model;
  const auto accumulate = static_cast<std::size_t>(model.accumulate);
  Plan& plan = context.plan;
  for (int k = 0; k < context.slots; ++k) {
    context.layout.head_state.push_back(context.memory.add(
        "logits", fmt::format("head.state.{}", k), MemoryTier::kDevice, model.head.state_bytes));
  }
  const std::size_t target_bytes = accumulate * static_cast<std::size_t>(model.rows()) * 4;
  plan.targets_host = context.memory.add("staging", "targets", MemoryTier::kHost, target_bytes);
  plan.losses_host = context.memory.add("staging", "losses", MemoryTier::kHost, accumulate * 8);
  plan.targets_device = plan.targets_host;
  plan.losses_device = plan.losses_host;
  if (context.settings.separate_device) {
    plan.targets_device =
        context.memory.add("staging", "targets.device", MemoryTier::kDevice, target_bytes);
    plan.losses_device =
        context.memory.add("staging", "losses.device", MemoryTier::kDevice, accumulate * 8);
  }
  if (context.settings.purpose == Purpose::kGenerate) {
    const std::size_t logits_bytes = static_cast<std::size_t>(model.vocab) * 4;
    plan.logits_host = context.memory.add("logits", "logits", MemoryTier::kHost, logits_bytes);
    context.layout.logits_device =
        context.settings.separate_device
            ? context.memory.add("logits", "logits.device", MemoryTier::kDevice, logits_bytes)
            : plan.logits_host;
  }
}

void place_workspace(Context& context) {
  std::size_t unit_bytes = 0;
  for (const UnitSpec& unit : context.model.units) {
    unit_bytes = std::max({unit_bytes,
                           unit.cost.forward_workspace_bytes,
                           context.training ? unit.cost.backward_workspace_bytes : 0});
  }
  const HeadSpec& head = context.model.head;
  std::size_t logits_bytes =
      std::max(head.score.forward_workspace_bytes,
               context.training ? head.gradient.backward_workspace_bytes : 0);
  // One workspace serves both; what the head needs beyond the blocks is counted as logits.
  context.layout.workspace =
      context.memory.add("workspace",
                         "workspace",
                         MemoryTier::kDevice,
                         std::max({unit_bytes, logits_bytes, std::size_t{64}}));
  if (logits_bytes > unit_bytes) {
    MemoryRow& workspace = context.memory.row_of("workspace");
    MemoryRow& logits = context.memory.row_of("logits");
    const std::size_t extra = round_to_page(logits_bytes) - round_to_page(unit_bytes);
    (context.settings.separate_device ? workspace.device_bytes : workspace.host_bytes) -= extra;
    (context.settings.separate_device ? logits.device_bytes : logits.host_bytes) += extra;
  }
}

void place_row_accumulators(Context& context) {
  if (!context.training || !trainable(context.plan.units[0])) {
    return;
  }
  std::int64_t slots = 0;
  for (const RowTable& table : context.model.tables) {
    const std::int64_t touched = table.index == RowTable::Index::kToken
                                     ? context.model.rows() * context.model.accumulate
                                     : context.model.seq_len;
    slots += std::min(table.rows, touched);
  }
  context.plan.row_accumulators = context.memory.add("gradients",
                                                     "embedding.row_sums",
                                                     MemoryTier::kHost,
                                                     fp32_bytes(slots * context.model.hidden));
}

// A slot for the state of a tile in the memory of gradients: of units that update on the host, in
// the order of updates. Those of a tied matrix are written at the turning point already.
void lend_gradients(Context& context, std::size_t slot_bytes) {
  Plan& plan = context.plan;
  std::size_t begin = 0, end = 0;  // of the memory that is lent and not yet a slot's
  for (std::size_t u = context.model.tied ? 1 : 0; u < plan.units.size(); ++u) {
    const UnitPlan& unit = plan.units[u];
    if (unit.gradient < 0 ||
        plan.buffers[static_cast<std::size_t>(unit.gradient)].tier != MemoryTier::kHost) {
      continue;
    }
    const Buffer gradient = plan.buffers[static_cast<std::size_t>(unit.gradient)];
    if (gradient.offset != round_to_page(end)) {
      begin = gradient.offset;  // not next to the last
    }
    end = gradient.offset + gradient.bytes;
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const TileSpec& tile = unit.tiles[t];
      const std::size_t covered =
          gradient.offset +
          static_cast<std::size_t>(tile.begin + tile.elements) * dtype_bytes(unit.gradient_storage);
      while (begin + slot_bytes <= covered) {
        context.layout.borrowed_state.push_back(
            {.buffer = context.memory.add_borrowed(
                 fmt::format("staging.borrowed.{}", context.layout.borrowed_state.size()),
                 begin,
                 slot_bytes),
             .unit = static_cast<int>(u),
             .tile = static_cast<int>(t)});
        begin = round_to_page(begin + slot_bytes);
      }
    }
  }
  plan.borrowed_slots = static_cast<int>(context.layout.borrowed_state.size());
}

// Tiles on their way between the store, the optimizer and the device.
void place_staging(Context& context) {
  const StagingSizes& sizes = context.staging;
  Layout& layout = context.layout;
  const bool staged = sizes.param > 0 || sizes.state > 0;
  const bool streams = staged || !context.plan.spilled.empty();
  const int slots = context.choices.staging_slots;
  const auto add = [&](const char* what, int slot, std::size_t bytes) {
    return context.memory.add(
        "staging", fmt::format("staging.{}.{}", what, slot), MemoryTier::kHost, bytes);
  };
  // Where the device is the host, weights that are floats are read into their place of use: only
  // the lookup and the drain stage them.
  const bool direct = !context.settings.separate_device && !context.settings.format.decoded;
  const int param_slots = direct ? std::min(slots, kDirectParamSlots) : slots;
  for (int i = 0; staged && i < param_slots; ++i) {
    layout.staging_param.push_back(add("param", i, sizes.param));
  }
  for (int i = 0; staged && i < slots; ++i) {
    layout.staging_state.push_back(add("state", i, sizes.state));
  }
  for (int i = 0; sizes.decoded > 0 && i < std::min(slots, kDecodedSlots); ++i) {
    layout.staging_weights.push_back(add("weights", i, sizes.decoded));
  }
  if (sizes.state > 0) {
    lend_gradients(context, sizes.state);
  }
  context.plan.staging_slots = staged ? slots : 0;
  context.plan.lanes = streams ? kLanes : 0;
}

// Slots of the device through which weights and gradients stream, and the staging of tiles on the
// host.
void place_slots(Context& context) {
  std::int64_t weights_max = 0, gradients_max = 0;
  bool landing = false;
  for (std::size_t u = 0; u < context.model.units.size(); ++u) {
    const UnitSpec& spec = context.model.units[u];
    const UnitPlan& unit = context.plan.units[u];
    const bool through_slot = unit.gradient >= 0 && !gradient_is_direct(context.plan, unit);
    for (const PieceSpec& piece : spec.pieces) {
      weights_max = std::max(weights_max, unit.pinned ? 0 : piece.elements);
      gradients_max = std::max(gradients_max, through_slot ? piece.elements : 0);
    }
    landing =
        landing || through_slot || (unit.gradient >= 0 && unit.gradient_storage == Dtype::kBf16);
  }
  Layout& layout = context.layout;
  for (int i = 0; weights_max > 0 && i <= context.choices.lookahead; ++i) {
    layout.weight_slots.push_back(context.memory.add("weights",
                                                     fmt::format("weights.slot.{}", i),
                                                     MemoryTier::kDevice,
                                                     fp32_bytes(weights_max)));
  }
  for (int i = 0; gradients_max > 0 && i < 2; ++i) {
    layout.gradient_slots.push_back(context.memory.add("gradients",
                                                       fmt::format("gradient.slot.{}", i),
                                                       MemoryTier::kDevice,
                                                       fp32_bytes(gradients_max)));
  }
  place_staging(context);
  std::int64_t landing_max = 0;
  for (const UnitPlan& unit : context.plan.units) {
    for (const TileSpec& tile : unit.tiles) {
      landing_max = std::max(landing_max, tile.frozen ? 0 : tile.elements);
    }
  }
  for (int i = 0; landing && i < 2; ++i) {
    layout.landing.push_back(context.memory.add(
        "staging", fmt::format("landing.{}", i), MemoryTier::kHost, fp32_bytes(landing_max)));
  }
}

void count_store(Context& context) {
  MemoryRow& weights = context.memory.row_of("weights");
  MemoryRow& state = context.memory.row_of("state");
  for (std::size_t u = 0; u < context.model.units.size(); ++u) {
    const UnitPlan& unit = context.plan.units[u];
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      weights.nvme_bytes += unit.param[t].bytes;
      state.nvme_bytes += unit.state_of[t].bytes;
    }
  }
  if (!context.training) {
    weights.nvme_bytes = state.nvme_bytes = 0;
  }
  MemoryRow& commits = context.memory.row_of("commits");
  commits.nvme_bytes =
      static_cast<std::uint64_t>(physical_slots(context.settings, context.plan.update) - 1) *
      (weights.nvme_bytes + state.nvme_bytes);
  MemoryRow& activations = context.memory.row_of("activations");
  activations.nvme_bytes = spilled_bytes(context.plan);
  context.plan.nvme_bytes =
      weights.nvme_bytes + state.nvme_bytes + commits.nvme_bytes + activations.nvme_bytes;
}

}  // namespace

int spilled_blocks(const ModelSpec& model, const Choices& choices) {
  const int blocks = static_cast<int>(model.units.size()) - 2;
  const int others = blocks - choices.kept_blocks;
  const int spilled = std::min(choices.spilled_blocks, others);
  // The last block's may lie where recomputed ones' do.
  const bool turns_around = choices.group_size == 1 && spilled < others;
  return choices.kept_blocks - (turns_around ? 1 : 0) >= kSpillSlotsLeast ? spilled : 0;
}

int physical_slots(const PlanSettings& settings, Update update) {
  return settings.store_slots +
         (settings.undo_slot.value_or(update == Update::kSpeculative) ? 1 : 0);
}

bool gradient_is_direct(const Plan& plan, const UnitPlan& unit) {
  const bool same_tier = !plan.separate_device || unit.home == Home::kDevice;
  return same_tier && unit.gradient_storage == Dtype::kF32;
}

Layout lay_out_memory(const ModelSpec& model,
                      const PlanSettings& settings,
                      const Choices& choices,
                      Plan& plan) {
  Layout layout;
  plan.group_size = choices.group_size;
  plan.update = choices.update;
  plan.lookahead = choices.lookahead;
  plan.tile_elements = choices.tile_elements;
  plan.grad = settings.grad;
  plan.format = settings.format;
  plan.separate_device = settings.separate_device;
  plan.process_bytes = settings.process_bytes;
  for (const char* purpose : {"weights",
                              "gradients",
                              "state",
                              "commits",
                              "activations",
                              "logits",
                              "workspace",
                              "staging",
                              "process",
                              "reserve"}) {
    plan.memory.push_back(
        {.purpose = purpose, .device_bytes = 0, .host_bytes = 0, .nvme_bytes = 0});
  }
  Context context{.model = model,
                  .settings = settings,
                  .choices = choices,
                  .plan = plan,
                  .layout = layout,
                  .memory = Memory(plan, settings.separate_device),
                  .training = settings.purpose == Purpose::kTrain,
                  .slots = choices.group_size};
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    place_unit(context, u);
    UnitPlan& unit = plan.units[u];
    unit.speculated = choices.update == Update::kSpeculative && u > 0 && may_be_speculated(unit);
  }
  place_gradients(context);
  place_activations(context);
  place_saved(context);
  place_head(context);
  place_workspace(context);
  place_row_accumulators(context);
  place_slots(context);
  count_store(context);
  context.memory.row_of("process").host_bytes = settings.process_bytes;
  context.memory.row_of("reserve").host_bytes = settings.reserve_bytes;
  plan.device_peak_bytes = plan.device_arena_bytes;
  plan.host_peak_bytes = plan.host_arena_bytes;
  return layout;
}

}  // namespace headrace::plan
