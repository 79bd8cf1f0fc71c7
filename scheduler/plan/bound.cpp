// See bound.hpp. At the top the phases of a step and what they add up to; below, what is counted.
#include "scheduler/plan/bound.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/plan/price.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/simulate.hpp"

namespace headrace::plan {

namespace {

constexpr double kFloatBytes = 4;

double positive(double value) {
  return std::max(value, 0.0);
}

// What a variant of a step consists of.
struct Parts {
  bool held = false;      // updates while forward approaches each unit
  bool backward = false;  // forward is always there
  bool drain = false;     // updates after backward
  bool commit = false;
};

Parts parts_of(const PlanSettings& settings, Update update, const std::string& variant) {
  if (settings.purpose != Purpose::kTrain || variant == "evaluation") {
    return {};
  }
  const bool last = variant == "commit" || variant == "last";
  const bool skipped = variant == "skipped";
  const bool held = update != Update::kAfterBackward;
  // What a speculative step leaves to a drain is little, and counted nowhere.
  const bool drained = update == Update::kSpeculative ? false : last || (!held && !skipped);
  return {.held = held && !skipped && variant != "first",
          .backward = true,
          .drain = drained,
          .commit = variant == "commit"};
}

// Bytes of the model by what a step does with them, and what of it stays in memory.
struct Extents {
  double updated = 0;         // S of trainable tiles: param and state
  double updated_kept = 0;    // C of them
  double frozen = 0;          // param of frozen tiles that kernels read, outside memory
  double forward = 0;         // param of tiles that kernels read, outside memory
  double backward = 0;        // of blocks only
  double frozen_kept = 0;     // C of the frozen ones
  double gradients = 0;       // held, in the run's dtype
  double all_frozen = 0;      // S of the frozen ones
  double blocks = 0;          // param of all blocks
  double elements = 0;        // trainable, padding included
  double device_updates = 0;  // elements at home on a separate device
  double in_place = 0;  // of host memory: what an update there reads, and writes or was written
};

// Memory that might hold weights and state at the points where a cut is made (docs/scheduling.md):
// all of the arenas but what must be there.
struct Room {
  double at_norm = 0;          // gradients are held
  double after_drain = 0;      // nothing is
  double at_turn = 0;          // activations are
  double on_device_later = 0;  // of a separate device, after a drain
  double on_device_at_turn = 0;
};

struct Copies {
  double inputs = 0;       // h2d: activations of the embedding, targets
  double updated = 0;      // h2d: weights that the host updates, once
  double streamed = 0;     // h2d: weights that do not stay on the device
  double frozen = 0;       // of them, those that nobody updates
  double blocks = 0;       // of them, those of blocks
  double losses = 0;       // d2h
  double gradients = 0;    // d2h, and dX of the embedding
  double any_weights = 0;  // either way, the least per schedule: weights or what makes them
  double any_gradients = 0;
};

struct Work {
  double forward = 0, backward = 0, recompute = 0;  // seconds
  double forward_trainable = 0;  // from the first unit on that is updated: what waits for the norm
};

// A stretch of a step that ends before the next begins.
struct Phase {
  LinkBytes bytes;
  double compute = 0, host_updates = 0, device_updates = 0;
};

class Counter {
 public:
  Counter(const ModelSpec& model,
          const PlanSettings& settings,
          const MachineProfile& machine,
          const Plan& plan)
      : model_(model),
        settings_(settings),
        machine_(machine),
        plan_(plan),
        pricer_(model, settings, machine, plan) {
    count_extents();
    count_room();
    count_copies();
    count_work();
  }

  [[nodiscard]] Bound bound(const std::string& variant) const;

 private:
  [[nodiscard]] double order_seconds(const Requirement& any, const Parts& parts) const;
  void count_extents();
  void count_room();
  void count_copies();
  void count_work();
  [[nodiscard]] bool kernels_read(std::size_t u, const TileSpec& tile) const;
  [[nodiscard]] double price(InstructionKind kind, QueueKind queue, int unit, int index) const;
  [[nodiscard]] double transfer(InstructionKind kind, QueueKind queue, double bytes) const;
  [[nodiscard]] double update_seconds(double elements) const;

  [[nodiscard]] Requirement placed(const Parts& parts) const;
  [[nodiscard]] Requirement budget(const Parts& parts) const;
  [[nodiscard]] std::vector<Phase> phases(const Parts& parts) const;
  [[nodiscard]] ResourceSeconds seconds_of(const Phase& phase) const;
  [[nodiscard]] double cores_for_drive() const;

  const ModelSpec& model_;
  const PlanSettings& settings_;
  const MachineProfile& machine_;
  const Plan& plan_;
  const Pricer pricer_;
  Extents extents_;
  Room room_;
  Copies copies_;
  Work work_;
};

Bound Counter::bound(const std::string& variant) const {
  const auto in_order = [&](Update update) { return parts_of(settings_, update, variant); };
  const Parts parts = in_order(plan_.update);
  Bound bound;
  bound.state_bytes = extents_.updated + extents_.all_frozen;
  bound.resident_bytes = extents_.updated_kept + extents_.frozen_kept;
  bound.placed = placed(parts);
  if (settings_.purpose == Purpose::kTrain) {
    bound.budget = budget(parts);
  }
  const Parts held = in_order(Update::kHeld), after = in_order(Update::kAfterBackward);
  bound.held_seconds = order_seconds(placed(held), held);
  bound.after_backward_seconds = order_seconds(placed(after), after);
  switch (plan_.update) {
    case Update::kHeld:
      bound.order_seconds = bound.held_seconds;
      break;
    case Update::kAfterBackward:
      bound.order_seconds = bound.after_backward_seconds;
      break;
    case Update::kSpeculative:  // as much may overlap as anywhere, if it is speculated
      bound.order_seconds =
          variant == "clipped" ? bound.held_seconds : bound.placed.seconds.largest();
      break;
  }
  if (machine_.checksum_bytes_per_s > 0) {
    bound.sum_core_seconds = (bound.placed.bytes.nvme_read + bound.placed.bytes.nvme_write) /
                             machine_.checksum_bytes_per_s;
  }
  return bound;
}

double Counter::order_seconds(const Requirement& any, const Parts& parts) const {
  double seconds = 0;
  for (const Phase& phase : phases(parts)) {
    seconds += seconds_of(phase).largest();
  }
  return std::max(seconds, any.seconds.largest());
}

// Everything of a step, as if it were one phase.
Requirement Counter::placed(const Parts& parts) const {
  const Extents& e = extents_;
  const double updates = (parts.held ? 1 : 0) + (parts.drain ? 1 : 0);
  const double streamed = e.updated - e.updated_kept;
  // A step that ends with all updates made may use what the step before has read for it, and reads
  // nothing for the next one.
  const double ahead = parts.held && parts.drain ? room_.at_norm : 0;
  Phase all;
  all.bytes.nvme_read =
      updates > 0 ? positive(updates * streamed - ahead) + positive(e.frozen - room_.at_norm)
                  : positive(e.forward - room_.after_drain);
  all.bytes.nvme_write = updates * streamed + (parts.commit ? e.updated_kept : 0);
  all.bytes.h2d = copies_.inputs +
                  (updates > 0 ? copies_.updated + positive(copies_.frozen - room_.on_device_later)
                               : positive(copies_.streamed - room_.on_device_later));
  all.bytes.d2h = copies_.losses;
  all.compute = work_.forward;
  if (parts.backward) {
    all.bytes.nvme_read += positive(e.backward - room_.at_turn);
    all.bytes.h2d += positive(copies_.blocks - room_.on_device_at_turn);
    all.bytes.d2h += copies_.gradients;
    all.compute += work_.backward + work_.recompute;
  }
  all.device_updates = updates * update_seconds(e.device_updates);
  all.host_updates = updates * update_seconds(e.elements - e.device_updates);
  Requirement requirement{.bytes = all.bytes, .seconds = seconds_of(all)};
  requirement.seconds.memory = updates * 2 * e.in_place / memory_rate(machine_);
  return requirement;
}

// The same with the best residency that the budgets allow, and nothing recomputed.
Requirement Counter::budget(const Parts& parts) const {
  const Extents& e = extents_;
  const double updates = (parts.held ? 1 : 0) + (parts.drain ? 1 : 0);
  const bool separate = settings_.separate_device;
  const auto device = static_cast<double>(
      separate ? settings_.device_memory_bytes.value_or(settings_.device_available_bytes) : 0);
  const double memory = static_cast<double>(settings_.host_memory_bytes) + device;
  const double kept = positive(memory - e.gradients);
  Phase all;
  if (updates > 0) {
    all.bytes.nvme_read = updates * positive(e.updated + e.all_frozen - kept);
    all.bytes.nvme_write =
        updates * positive(e.updated - kept) + (parts.commit ? std::min(e.updated, kept) : 0);
  }
  all.compute = work_.forward;
  all.bytes.d2h = copies_.losses;
  all.bytes.h2d = copies_.inputs;
  if (parts.backward) {
    all.bytes.nvme_read += positive(e.blocks - memory);
    all.bytes.h2d += separate ? positive(copies_.any_weights - device) : 0;
    all.bytes.d2h += separate ? positive(copies_.any_gradients - device) : 0;
    all.compute += work_.backward;
  }
  // Of updates only that somebody makes them.
  all.host_updates = updates * update_seconds(e.elements);
  return {.bytes = all.bytes, .seconds = seconds_of(all)};
}

std::vector<Phase> Counter::phases(const Parts& parts) const {
  const Extents& e = extents_;
  const double streamed = e.updated - e.updated_kept;
  const double host_seconds = update_seconds(e.elements - e.device_updates);
  const double device_seconds = update_seconds(e.device_updates);
  std::vector<Phase> phases;
  Phase forward;
  forward.compute = parts.held ? work_.forward_trainable : work_.forward;
  if (parts.held) {
    forward.bytes = {.nvme_read = positive(streamed + e.frozen - room_.at_norm),
                     .nvme_write = positive(streamed - room_.at_turn),
                     .h2d = copies_.updated,
                     .d2h = 0};
    forward.host_updates = host_seconds;
    forward.device_updates = device_seconds;
  } else {
    forward.bytes.nvme_read = positive(e.forward - room_.after_drain);
    forward.bytes.h2d = copies_.inputs + positive(copies_.streamed - room_.on_device_later);
  }
  phases.push_back(forward);
  if (parts.backward) {
    Phase backward;
    backward.compute = work_.backward + work_.recompute;
    backward.bytes = {.nvme_read = positive(e.backward - room_.at_turn),
                      .nvme_write = 0,
                      .h2d = positive(copies_.blocks - room_.on_device_at_turn),
                      .d2h = copies_.gradients};
    if (parts.held) {
      phases.push_back(backward);
    } else {  // nothing keeps forward and backward apart but the device itself
      Phase& both = phases.back();
      both.compute += backward.compute;
      both.bytes.nvme_read += backward.bytes.nvme_read;
      both.bytes.h2d += backward.bytes.h2d;
      both.bytes.d2h += backward.bytes.d2h + copies_.losses;
    }
  }
  if (parts.drain) {
    Phase drain;
    drain.bytes.nvme_read = positive(streamed - room_.at_norm);
    // What is kept may be written for a commit as soon as it is updated.
    drain.bytes.nvme_write =
        positive(streamed - room_.after_drain) + (parts.commit ? e.updated_kept : 0);
    drain.host_updates = host_seconds;
    drain.device_updates = device_seconds;
    phases.push_back(drain);
  }
  return phases;
}

ResourceSeconds Counter::seconds_of(const Phase& phase) const {
  const LinkBytes& bytes = phase.bytes;
  ResourceSeconds seconds;
  const bool capped = settings_.nvme_read_cap || settings_.nvme_write_cap;
  seconds.nvme =
      std::max({transfer(InstructionKind::kReadParam, QueueKind::kNvme, bytes.nvme_read),
                transfer(InstructionKind::kWriteParam, QueueKind::kNvme, bytes.nvme_write),
                capped ? 0 : mixed_nvme_seconds(machine_, bytes.nvme_read, bytes.nvme_write)});
  seconds.h2d = transfer(InstructionKind::kCopy, QueueKind::kH2d, bytes.h2d);
  seconds.d2h = transfer(InstructionKind::kCopy, QueueKind::kD2h, bytes.d2h);
  seconds.device = phase.compute + phase.device_updates;
  seconds.cores = phase.compute + phase.device_updates + phase.host_updates;
  seconds.together = seconds.cores + cores_for_drive() * seconds.nvme;
  return seconds;
}

// Seconds of the cores that each second of the drive costs at least: what they lose while they work
// beside it, until it has done what it does in a second alone; or a second in which they wait.
double Counter::cores_for_drive() const {
  const Contention contention = contention_of(machine_, settings_);
  return std::min({1.0,
                   (1 - contention.compute_beside_nvme) / contention.nvme_beside_compute,
                   (1 - contention.update_beside_nvme) / contention.nvme_beside_update});
}

// ---- what is counted ----

bool Counter::kernels_read(std::size_t u, const TileSpec& tile) const {
  const auto& pieces = model_.units[u].pieces;
  return std::any_of(pieces.begin(), pieces.end(), [&](const PieceSpec& piece) {
    return tile.begin >= piece.begin && tile.begin < piece.begin + piece.elements;
  });
}

void Counter::count_extents() {
  const bool training = settings_.purpose == Purpose::kTrain;
  Extents& e = extents_;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const UnitPlan& unit = plan_.units[u];
    const bool on_device = plan_.separate_device && unit.home == Home::kDevice;
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const TileSpec& tile = unit.tiles[t];
      const auto param = static_cast<double>(unit.param[t].bytes);
      const auto state = static_cast<double>(unit.state_of[t].bytes);
      const bool read = kernels_read(u, tile);
      const bool in_memory = unit.param[t].buffer >= 0;
      if (training && !tile.frozen) {
        e.updated += param + state;
        e.updated_kept += in_memory ? param : 0;
        e.updated_kept += unit.state_of[t].buffer >= 0 ? state : 0;
        e.elements += static_cast<double>(tile.elements);
        e.device_updates += on_device ? static_cast<double>(tile.elements) : 0;
        const double gradient =
            static_cast<double>(tile.elements) * static_cast<double>(dtype_bytes(plan_.grad));
        e.gradients += gradient;
        e.in_place += on_device ? 0 : gradient + (in_memory ? param : 0);
        e.in_place += !on_device && unit.state_of[t].buffer >= 0 ? state : 0;
      } else if (read) {
        e.all_frozen += param;
        e.frozen += in_memory ? 0 : param;
        e.frozen_kept += in_memory ? param : 0;
      }
      const bool block = model_.units[u].kind == UnitKind::kBlock;
      e.forward += read && !in_memory ? param : 0;
      e.backward += block && !in_memory ? param : 0;
      e.blocks += block ? param : 0;
    }
  }
}

void Counter::count_room() {
  double kept = 0, kept_on_device = 0, gradients = 0;
  std::set<int> counted;
  const auto bytes_of = [&](int buffer) {
    return buffer >= 0 && counted.insert(buffer).second
               ? static_cast<double>(plan_.buffers[static_cast<std::size_t>(buffer)].bytes)
               : 0.0;
  };
  for (const UnitPlan& unit : plan_.units) {
    for (const int buffer : {unit.master, unit.state, unit.weights}) {
      const double bytes = bytes_of(buffer);
      kept += bytes;
      const bool device =
          bytes > 0 && plan_.buffers[static_cast<std::size_t>(buffer)].tier == MemoryTier::kDevice;
      kept_on_device += device ? bytes : 0;
    }
    gradients += bytes_of(unit.gradient);
  }
  double active = 0, active_on_device = 0;
  for (const MemoryRow& row : plan_.memory) {
    if (row.purpose == "activations" || row.purpose == "workspace" || row.purpose == "logits") {
      active += static_cast<double>(row.host_bytes + row.device_bytes);
      active_on_device += static_cast<double>(row.device_bytes);
    }
  }
  const auto device = static_cast<double>(plan_.device_arena_bytes);
  const double arenas = device + static_cast<double>(plan_.host_arena_bytes);
  room_.at_norm = positive(arenas - kept - gradients);
  room_.after_drain = positive(arenas - kept);
  room_.at_turn = positive(arenas - kept - active);
  room_.on_device_later = positive(device - kept_on_device);
  room_.on_device_at_turn = positive(device - kept_on_device - active_on_device);
}

void Counter::count_copies() {
  if (!plan_.separate_device) {
    return;
  }
  const auto micro_batches = static_cast<double>(model_.accumulate);
  const auto activations = micro_batches * static_cast<double>(model_.activation_bytes());
  const auto gradient_bytes = static_cast<double>(dtype_bytes(plan_.grad));
  copies_.inputs = activations + micro_batches * static_cast<double>(model_.rows()) * 4;
  copies_.losses = micro_batches * 8;
  copies_.gradients = plan_.row_accumulators >= 0 ? activations : 0;
  copies_.any_gradients = copies_.gradients;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const UnitPlan& unit = plan_.units[u];
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const TileSpec& tile = unit.tiles[t];
      if (!kernels_read(u, tile)) {
        continue;
      }
      const auto elements = static_cast<double>(tile.elements);
      const auto param = static_cast<double>(unit.param[t].bytes);
      const bool block = model_.units[u].kind == UnitKind::kBlock;
      copies_.any_weights += std::min(param, kFloatBytes * elements);
      copies_.any_gradients += tile.frozen ? 0 : std::min(gradient_bytes * elements, param);
      if (unit.home == Home::kDevice) {
        continue;
      }
      const double floats = kFloatBytes * elements;
      copies_.updated += tile.frozen ? 0 : floats;
      copies_.gradients += tile.frozen ? 0 : gradient_bytes * elements;
      copies_.streamed += unit.pinned ? 0 : floats;
      copies_.frozen += tile.frozen && !unit.pinned ? floats : 0;
      copies_.blocks += block && !unit.pinned ? floats : 0;
    }
  }
}

double Counter::price(InstructionKind kind, QueueKind queue, int unit, int index) const {
  Instruction instruction;
  instruction.kind = kind;
  instruction.queue = queue;
  instruction.unit = unit;
  instruction.index = index;
  pricer_.price(instruction);
  return instruction.seconds;
}

double Counter::transfer(InstructionKind kind, QueueKind queue, double bytes) const {
  Instruction instruction;
  instruction.kind = kind;
  instruction.queue = queue;
  instruction.accesses.push_back({.buffer = 0, .bytes = static_cast<std::size_t>(bytes)});
  pricer_.price(instruction);
  return instruction.seconds;
}

double Counter::update_seconds(double elements) const {
  return elements > 0 ? elements / plan_.update_rates.update_params_per_s : 0;
}

void Counter::count_work() {
  const bool generating = settings_.purpose == Purpose::kGenerate;
  const int head = static_cast<int>(model_.units.size()) - 1;
  const auto compute = [&](InstructionKind kind, int unit, int index) {
    return price(kind, QueueKind::kCompute, unit, index);
  };
  double waiting = 0;  // forward, from the first trainable unit on
  bool waits = false;
  const auto trainable = [&](int unit) {
    const auto& tiles = plan_.units[static_cast<std::size_t>(unit)].tiles;
    return std::any_of(
        tiles.begin(), tiles.end(), [](const TileSpec& tile) { return !tile.frozen; });
  };
  const auto forward = [&](int unit, double seconds) {
    waits = waits || trainable(unit);
    work_.forward += seconds;
    waiting += waits ? seconds : 0;
  };
  waits = trainable(0);
  for (int unit = 1; unit < head; ++unit) {
    forward(unit, compute(InstructionKind::kForward, unit, 0));
    work_.backward += compute(InstructionKind::kBackward, unit, 0);
  }
  forward(head, compute(InstructionKind::kHeadBegin, head, model_.head.norm_piece));
  work_.backward += compute(InstructionKind::kHeadEnd, head, model_.head.norm_piece);
  for (std::size_t r = 0; r < model_.head.rows.size(); ++r) {
    const int index = static_cast<int>(r);
    forward(
        head,
        compute(
            generating ? InstructionKind::kHeadLogits : InstructionKind::kHeadScore, head, index));
    work_.backward += compute(InstructionKind::kHeadGradient, head, index);
  }
  const auto micro_batches = static_cast<double>(model_.accumulate);
  work_.forward *= micro_batches;
  work_.backward *= micro_batches;
  work_.forward_trainable = waiting * micro_batches;
  for (const Instruction& instruction : plan_.compute.instructions) {
    if (instruction.kind == InstructionKind::kBackward && instruction.recompute) {
      work_.recompute += compute(InstructionKind::kForward, instruction.unit, 0);
    }
  }
}

}  // namespace

double ResourceSeconds::largest() const {
  return std::max({nvme, h2d, d2h, device, cores, memory, together});
}

const char* ResourceSeconds::limit() const {
  const std::array<std::pair<double, const char*>, 7> resources = {
      {{nvme, "nvme"},
       {h2d, "h2d"},
       {d2h, "d2h"},
       {device, "device"},
       {cores, "cores"},
       {memory, "memory"},
       {together, "cores beside nvme"}}};
  return std::max_element(
             resources.begin(),
             resources.end(),
             [](const auto& left, const auto& right) { return left.first < right.first; })
      ->second;
}

double mixed_nvme_seconds(const MachineProfile& machine, double read_bytes, double write_bytes) {
  struct Point {
    double writes = 0;   // their share
    double seconds = 0;  // a byte
  };

  std::vector<Point> points;
  const auto add = [&](double writes, double rate) {
    if (rate > 0) {
      points.push_back({.writes = writes, .seconds = 1 / rate});
    }
  };
  add(0, machine.nvme_read_bytes_per_s);
  add(0.25, machine.nvme_mixed_reads_bytes_per_s);
  add(0.5, machine.nvme_mixed_bytes_per_s);
  add(0.75, machine.nvme_mixed_writes_bytes_per_s);
  add(1, machine.nvme_write_bytes_per_s);
  const double bytes = read_bytes + write_bytes;
  const bool measured = machine.nvme_read_bytes_per_s > 0 && machine.nvme_write_bytes_per_s > 0 &&
                        machine.nvme_mixed_bytes_per_s > 0;
  if (bytes <= 0 || !measured) {
    return 0;
  }
  // A drive may spend part of its time at one share and the rest at another: the lower edge of the
  // points' convex hull.
  const double writes = write_bytes / bytes;
  double least = std::max(points.front().seconds, points.back().seconds);
  for (const Point& left : points) {
    for (const Point& right : points) {
      if (left.writes <= writes && right.writes >= writes) {
        const double width = right.writes - left.writes;
        const double at = width > 0 ? (writes - left.writes) / width : 0;
        least = std::min(least, left.seconds + at * (right.seconds - left.seconds));
      }
    }
  }
  return bytes * least;
}

Bound bound_of(const ModelSpec& model,
               const PlanSettings& settings,
               const MachineProfile& machine,
               const Plan& plan,
               const std::string& variant) {
  return Counter(model, settings, machine, plan).bound(variant);
}

void add_bounds(const ModelSpec& model,
                const PlanSettings& settings,
                const MachineProfile& machine,
                Plan& plan) {
  const Counter counter(model, settings, machine, plan);
  for (Prediction& prediction : plan.predictions) {
    const Bound bound = counter.bound(prediction.variant);
    prediction.bound_seconds = bound.placed.seconds.largest();
    prediction.order_bound_seconds = bound.order_seconds;
  }
}

}  // namespace headrace::plan
