#include "train/plan_changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "scheduler/exec/state_format.hpp"

namespace headrace::train {
namespace {

constexpr std::int64_t kShortestSequence = 16;
constexpr std::int64_t kAccumulateMax = 4096;  // that batch.accumulate takes

// What a model's numbers are made from again.
struct Source {
  RunConfig config;
  model::Architecture architecture;
};

using SharedSource = std::shared_ptr<const Source>;

bool remake(const Source& source, const BatchSection& batch, plan::ModelSpec& model) {
  RunConfig config = source.config;
  config.batch = batch;
  Result<plan::ModelSpec> spec = make_run_spec(config, source.architecture);
  if (!spec) {
    return false;
  }
  model = *std::move(spec);
  return true;
}

plan::Change bf16_gradients() {
  return {.group = "grad",
          .sets = {"precision.grad=\"bf16\""},
          .changes_numbers = true,
          .apply = [](plan::ModelSpec&, plan::PlanSettings& settings) {
            return std::exchange(settings.grad, Dtype::kBf16) != Dtype::kBf16;
          }};
}

void add_states(const RunConfig& config, std::vector<plan::Change>& changes) {
  std::vector<plan::StateFormat> formats = exec::state_formats();
  std::stable_sort(formats.begin(), formats.end(), [](const auto& a, const auto& b) {
    return a.bytes_per_parameter() > b.bytes_per_parameter();
  });
  const double now = exec::state_format(config.optim.state).bytes_per_parameter();
  for (const plan::StateFormat& format : formats) {
    if (format.bytes_per_parameter() < now) {
      changes.push_back({.group = "state",
                         .sets = {fmt::format("optim.state=\"{}\"", format.name)},
                         .changes_numbers = true,
                         .apply = [format](plan::ModelSpec&, plan::PlanSettings& settings) {
                           settings.format = format;
                           return true;
                         }});
    }
  }
}

plan::Change batch_of(const SharedSource& source, std::int64_t micro, std::int64_t accumulate) {
  plan::Change change;
  change.group = "batch";
  const BatchSection& now = source->config.batch;
  if (micro != now.micro_batch) {
    change.sets.push_back(fmt::format("batch.micro_batch={}", micro));
  }
  if (accumulate != now.accumulate) {
    change.sets.push_back(fmt::format("batch.accumulate={}", accumulate));
  }
  change.changes_numbers = true;
  change.apply = [=](plan::ModelSpec& model, plan::PlanSettings&) {
    return remake(
        *source,
        {.micro_batch = micro, .seq_len = model.seq_len, .accumulate = accumulate, .traversal = {}},
        model);
  };
  return change;
}

// Smaller micro-batches of the same step, then fewer of them.
void add_batches(const SharedSource& source, std::vector<plan::Change>& changes) {
  const BatchSection& batch = source->config.batch;
  for (std::int64_t parts = 2; parts <= batch.micro_batch; ++parts) {
    if (batch.micro_batch % parts == 0 && batch.accumulate * parts <= kAccumulateMax) {
      changes.push_back(batch_of(source, batch.micro_batch / parts, batch.accumulate * parts));
    }
  }
  std::int64_t fewer = batch.micro_batch * batch.accumulate;
  while (fewer > 1) {
    fewer = std::min(fewer / 2, kAccumulateMax);
    changes.push_back(batch_of(source, 1, fewer));
  }
}

void add_sequences(const SharedSource& source, std::vector<plan::Change>& changes) {
  for (std::int64_t seq_len = source->config.batch.seq_len / 2; seq_len >= kShortestSequence;
       seq_len /= 2) {
    changes.push_back({.group = "seq_len",
                       .sets = {fmt::format("batch.seq_len={}", seq_len)},
                       .changes_numbers = true,
                       .apply = [=](plan::ModelSpec& model, plan::PlanSettings&) {
                         return remake(*source,
                                       {.micro_batch = model.micro_batch,
                                        .seq_len = seq_len,
                                        .accumulate = model.accumulate,
                                        .traversal = {}},
                                       model);
                       }});
  }
}

}  // namespace

std::vector<plan::Change> changes_of(const RunConfig& config,
                                     const model::Architecture& architecture,
                                     const PlanRequest& request) {
  std::vector<plan::Change> changes;
  if (request.purpose != plan::Purpose::kTrain || request.stored_tile_elements) {
    return changes;
  }
  const auto source = std::make_shared<const Source>(Source{config, architecture});
  changes.push_back(bf16_gradients());
  add_states(config, changes);
  add_batches(source, changes);
  add_sequences(source, changes);
  return changes;
}

}  // namespace headrace::train
