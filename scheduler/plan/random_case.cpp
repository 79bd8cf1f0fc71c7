#include "scheduler/plan/random_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "scheduler/plan/search.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 40U;
constexpr double kBytesOfUpdate = 28;  // of memory that an fp32 update moves, a parameter

bool chance(std::mt19937_64& random, double probability) {
  return uniform(random) < probability;
}

std::int64_t between(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

double log_uniform(std::mt19937_64& random, double least, double most) {
  return least * std::pow(most / least, uniform(random));
}

TensorSpec tensor(std::string name, std::vector<std::int64_t> shape) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  return spec;
}

UnitCost cost_of(const UnitSpec& unit, const ModelSpec& model) {
  const auto activations = static_cast<double>(model.rows() * model.hidden);
  const auto width = static_cast<std::int64_t>(std::sqrt(static_cast<double>(unit.elements)));
  UnitCost cost{.forward_workspace_bytes = 4 * model.activation_bytes(),
                .backward_workspace_bytes = 6 * model.activation_bytes(),
                .saved_bytes = 7 * model.activation_bytes()};
  for (const ProductPass pass :
       {ProductPass::kForward, ProductPass::kInput, ProductPass::kWeight}) {
    Work& work = pass == ProductPass::kForward ? cost.forward : cost.backward;
    work.add(Product{.pass = pass, .rows = model.rows(), .inputs = width, .outputs = width});
    work.add(ElementOperation::kNorm, activations);
  }
  return cost;
}

UnitSpec random_block(std::mt19937_64& random, const ModelSpec& model, int number) {
  UnitSpec block;
  block.name = "block." + std::to_string(number);
  const std::int64_t inner = model.hidden * between(random, 1, 6);
  block.tensors = {tensor("gain", {model.hidden}),
                   tensor("up", {inner, model.hidden}),
                   tensor("bias", {inner}),
                   tensor("down", {model.hidden, inner})};
  const bool all_frozen = chance(random, 0.05);
  for (TensorSpec& one : block.tensors) {
    one.frozen = all_frozen || chance(random, 0.03);
  }
  lay_out(block);
  block.pieces = {{.begin = 0, .elements = block.elements}};
  return block;
}

UnitSpec random_embedding(std::mt19937_64& random, ModelSpec& model) {
  UnitSpec embedding;
  embedding.name = "embedding";
  embedding.kind = UnitKind::kEmbedding;
  embedding.tensors = {tensor("wte", {model.vocab, model.hidden})};
  embedding.tensors.front().own_pages = model.tied;
  embedding.tensors.front().frozen = chance(random, 0.05);
  model.tables = {{.tensor = 0, .rows = model.vocab, .index = RowTable::Index::kToken}};
  if (chance(random, 0.5)) {
    embedding.tensors.push_back(tensor("wpe", {model.seq_len, model.hidden}));
    model.tables.push_back(
        {.tensor = 1, .rows = model.seq_len, .index = RowTable::Index::kPosition});
  }
  lay_out(embedding);
  return embedding;
}

ModelSpec random_model(std::mt19937_64& random, int blocks_max) {
  ModelSpec model;
  model.hidden = between(random, 4, 24) * 8;
  model.vocab = between(random, 40, 2000);
  model.tied = chance(random, 0.5);
  model.micro_batch = between(random, 1, 3);
  model.seq_len = between(random, 4, 64);
  model.accumulate = chance(random, 0.5) ? 1 : between(random, 2, 4);
  model.groups.resize(1);
  model.units.push_back(random_embedding(random, model));
  const auto blocks = static_cast<int>(between(random, 1, blocks_max));
  for (int b = 0; b < blocks; ++b) {
    model.units.push_back(random_block(random, model, b));
  }
  UnitSpec head;
  head.name = "head";
  head.kind = UnitKind::kHead;
  head.tensors = {tensor("norm", {model.hidden})};
  if (!model.tied) {
    head.tensors.push_back(tensor("lm_head", {model.vocab, model.hidden}));
    head.tensors.back().own_pages = true;
  }
  lay_out(head);
  head.pieces = {{.begin = 0, .elements = model.tied ? head.elements : head.tensors.back().offset}};
  model.units.push_back(std::move(head));
  const int rows_unit = model.tied ? 0 : static_cast<int>(model.units.size()) - 1;
  UnitSpec& matrix = model.units[static_cast<std::size_t>(rows_unit)];
  model.head.rows = cut_rows(matrix, rows_unit, model.tied ? 0 : 1, between(random, 1, 12) * 64);
  model.head.rows_per_chunk = 64;
  for (UnitSpec& unit : model.units) {
    unit.cost = cost_of(unit, model);
  }
  model.head.state_bytes = model.activation_bytes() + 4096;
  model.head.score = model.head.gradient = model.units.back().cost;
  return model;
}

MachineProfile random_machine(std::mt19937_64& random) {
  MachineProfile machine;
  machine.cores = static_cast<int>(between(random, 1, 32));
  const auto rate = [&](double least, double most) {
    return chance(random, 0.1) ? 0.0 : log_uniform(random, least, most);
  };
  machine.gemm_fp32_flops_per_s = rate(1e9, 1e14);
  machine.memory_bytes_per_s = rate(5e9, 5e11);
  machine.host_copy_bytes_per_s = rate(5e8, 1e11);
  machine.nvme_read_bytes_per_s = rate(1e8, 3e10);
  machine.nvme_write_bytes_per_s = rate(1e8, 3e10);
  if (machine.nvme_read_bytes_per_s > 0 && machine.nvme_write_bytes_per_s > 0 &&
      chance(random, 0.7)) {
    for (double* mixed : {&machine.nvme_mixed_bytes_per_s,
                          &machine.nvme_mixed_reads_bytes_per_s,
                          &machine.nvme_mixed_writes_bytes_per_s}) {
      *mixed = log_uniform(random, 0.3, 1) *
               std::max(machine.nvme_read_bytes_per_s, machine.nvme_write_bytes_per_s);
    }
  }
  if (chance(random, 0.5)) {
    for (double* beside : {&machine.compute_beside_nvme,
                           &machine.update_beside_nvme,
                           &machine.nvme_beside_compute,
                           &machine.nvme_beside_update,
                           &machine.compute_beside_copy,
                           &machine.copy_beside_compute}) {
      *beside = log_uniform(random, 0.2, 1);
    }
  }
  // No update is faster than memory; a format that was not measured is updated as fp32.
  const double memory = machine.memory_bytes_per_s > 0 ? machine.memory_bytes_per_s : 15e9;
  for (const char* state : {"fp32", "bf16", "q8"}) {
    const double params = log_uniform(random, 0.001, 1) * memory / kBytesOfUpdate;
    machine.update_rates[state] = {.update_params_per_s = params,
                                   .update_decoded_params_per_s = 0.7 * params,
                                   .decode_params_per_s = 1.5 * params};
  }
  return machine;
}

StateFormat random_format(std::mt19937_64& random) {
  const std::array<StateFormat, 3> formats = {
      {{},
       {.name = "bf16", .param_bytes = 4, .group_bytes = 4, .group_elements = 1, .decoded = false},
       {.name = "q8",
        .param_bytes = 2,
        .group_bytes = 208,
        .group_elements = 64,
        .decoded = true}}};
  return formats[random() % formats.size()];
}

PlanSettings random_settings(std::mt19937_64& random) {
  PlanSettings settings;
  settings.separate_device = chance(random, 0.5);
  if (chance(random, 0.3)) {
    settings.place = static_cast<Home>(random() % 3);
  }
  if (chance(random, 0.6)) {
    settings.lookahead = static_cast<int>(between(random, 1, 4));
  }
  if (chance(random, 0.6)) {
    settings.tile_elements = kBlockElements * between(random, 1, 4);
  }
  if (chance(random, 0.5)) {
    settings.group_size =
        chance(random, 0.4) ? kLayerMajor : static_cast<int>(between(random, 1, 3));
  }
  settings.update = chance(random, 0.5)   ? Update::kHeld
                    : chance(random, 0.5) ? Update::kAfterBackward
                                          : Update::kSpeculative;
  settings.grad = chance(random, 0.5) ? Dtype::kBf16 : Dtype::kF32;
  settings.may_spill = chance(random, 0.8);
  if (chance(random, 0.25)) {
    settings.nvme_room_bytes = static_cast<std::uint64_t>(log_uniform(random, 1e4, 1e9));
  }
  settings.format = random_format(random);
  settings.store_slots = static_cast<int>(between(random, 1, 2));
  for (auto* cap :
       {&settings.h2d_cap, &settings.d2h_cap, &settings.nvme_read_cap, &settings.nvme_write_cap}) {
    if (chance(random, 0.15)) {
      *cap = log_uniform(random, 1e8, 1e10);
    }
  }
  return settings;
}

// From a little less than what is needed to more than what can be used.
std::size_t random_budget(std::mt19937_64& random, std::size_t least, std::size_t most) {
  const double span = most > least ? static_cast<double>(most - least) : 0;
  const double share = chance(random, 0.2) ? 1.0 : uniform(random) * uniform(random);
  const double bytes =
      0.97 * static_cast<double>(least) + share * (span + 0.1 * static_cast<double>(most));
  return static_cast<std::size_t>(bytes) / 4096 * 4096;
}

}  // namespace

double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11U) * 0x1p-53;
}

PlanSettings ample(const PlanSettings& settings) {
  PlanSettings all = settings;
  all.host_memory_bytes = all.host_available_bytes = kPlenty;
  all.device_available_bytes = kPlenty;
  all.device_memory_bytes.reset();
  return all;
}

RandomCase random_case(std::mt19937_64& random, int blocks_max) {
  RandomCase one;
  one.model = random_model(random, blocks_max);
  one.settings = random_settings(random);
  one.machine = random_machine(random);
  const auto plan = make_plan(one.model, ample(one.settings), one.machine);
  EXPECT_TRUE(plan) << "with room for everything";
  if (plan) {
    const Plan least = smallest(one.model, one.settings);
    one.settings.host_memory_bytes =
        random_budget(random, least.host_arena_bytes, plan->host_arena_bytes);
    one.settings.host_available_bytes = plan->host_arena_bytes + plan->device_arena_bytes;
    one.settings.device_available_bytes = one.settings.host_available_bytes;
    if (one.settings.separate_device) {
      one.settings.device_memory_bytes =
          random_budget(random, least.device_arena_bytes, plan->device_arena_bytes);
    }
  }
  return one;
}

std::string describe(const RandomCase& one) {
  const PlanSettings& s = one.settings;
  return fmt::format(
      "{} blocks, hidden {}, vocab {}{}, accumulate {}, {}{}, place {}, host {}, device {}, "
      "lookahead {}, tile {}, traversal {}, {}, grad {}{}",
      one.model.units.size() - 2,
      one.model.hidden,
      one.model.vocab,
      one.model.tied ? " tied" : "",
      one.model.accumulate,
      s.format.name,
      s.separate_device ? ", separate device" : "",
      s.place ? home_name(*s.place) : "auto",
      s.host_memory_bytes,
      s.device_memory_bytes.value_or(0),
      s.lookahead.value_or(0),
      s.tile_elements.value_or(0),
      s.group_size ? traversal_name(*s.group_size, one.model.accumulate) : "auto",
      update_name(s.update.value_or(Update::kHeld)),
      dtype_bytes(s.grad) == 2 ? "bf16" : "fp32",
      s.may_spill ? "" : ", nothing spilled");
}

}  // namespace headrace::plan
