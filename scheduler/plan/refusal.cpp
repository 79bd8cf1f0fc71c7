// What is said when nothing fits: by how much, and the nearest change that does.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/quantity.hpp"
#include "scheduler/plan/search.hpp"

namespace headrace::plan {

namespace {

struct Way {
  std::string sets;  // "--set a=b --set c=d"
  ModelSpec model;
  PlanSettings settings;
};

// What could be changed, nearest first: budgets up to what the machine has, a freer place, bf16
// gradients.
std::vector<Way> ways_out(const ModelSpec& model, const PlanSettings& settings) {
  std::vector<Way> ways;
  std::vector<Way> bases = {{.sets = "", .model = model, .settings = settings}};
  if (settings.place == Home::kHost || settings.place == Home::kDevice) {
    Way way = bases.front();
    way.settings.place = Home::kNvme;
    way.sets = " --set tiers.place=\"nvme\"";
    bases.push_back(way);
  }
  if (settings.purpose == Purpose::kTrain && settings.grad == Dtype::kF32) {
    Way way = bases.back();
    way.settings.grad = Dtype::kBf16;
    way.sets += " --set precision.grad=\"bf16\"";
    bases.push_back(way);
  }
  for (const Way& base : bases) {
    ways.push_back(base);
    const Plan plan = smallest(base.model, base.settings);
    Way raised = base;
    if (plan.host_arena_bytes > base.settings.host_memory_bytes) {
      raised.settings.host_memory_bytes =
          (plan.host_arena_bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
      raised.sets +=
          fmt::format(" --set tiers.host_memory=\"{}\"", mebibytes(plan.host_arena_bytes));
    }
    const std::size_t device_cap =
        base.settings.device_memory_bytes.value_or(base.settings.device_available_bytes);
    if (base.settings.separate_device && plan.device_arena_bytes > device_cap) {
      raised.settings.device_memory_bytes =
          (plan.device_arena_bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
      raised.sets +=
          fmt::format(" --set tiers.device_memory=\"{}\"", mebibytes(plan.device_arena_bytes));
    }
    // The CPU's separate arena comes out of the same memory.
    const bool possible =
        plan.host_arena_bytes + plan.device_arena_bytes <= base.settings.host_available_bytes;
    if (possible) {
      ways.push_back(raised);
    }
  }
  return ways;
}

}  // namespace

Error refusal(const ModelSpec& model, const PlanSettings& settings) {
  const Plan plan = smallest(model, settings);
  const std::size_t device_cap =
      settings.device_memory_bytes.value_or(settings.device_available_bytes);
  std::string why =
      fmt::format("the smallest plan needs {} of host memory (tiers.host_memory is {})",
                  format_bytes(plan.host_arena_bytes),
                  format_bytes(settings.host_memory_bytes));
  if (settings.separate_device) {
    why += fmt::format(" and {} of device memory (tiers.device_memory is {})",
                       format_bytes(plan.device_arena_bytes),
                       format_bytes(device_cap));
  }
  std::string hint =
      "no single change helps: use a smaller model, batch.micro_batch or batch.seq_len, or a "
      "machine with more memory";
  for (const Way& way : ways_out(model, settings)) {
    if (!way.sets.empty() && fits(smallest(way.model, way.settings), way.settings)) {
      hint = "the nearest plan that fits:" + way.sets;
      break;
    }
  }
  return does_not_fit_error("the run does not fit")
      .with_why(std::move(why))
      .with_hint(std::move(hint));
}

}  // namespace headrace::plan
