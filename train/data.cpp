#include "train/data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/assert.hpp"
#include "core/random.hpp"

namespace headrace::train {
namespace {

std::int64_t rows_of_step(const BatchSection& batch) {
  return batch.accumulate * batch.micro_batch * batch.seq_len;
}

// A run has no more steps than run.steps may ask for.
constexpr double kStepsMax = 1e12;

// Row `index` of those that a batch is made of.
struct BatchRow {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> targets;
};

BatchRow row_of_batch(StepBatch& batch, std::int64_t index, std::int64_t row_tokens) {
  const auto first = static_cast<std::size_t>(index * row_tokens);
  const auto count = static_cast<std::size_t>(row_tokens);
  return {.tokens = std::span(batch.tokens).subspan(first, count),
          .targets = std::span(batch.targets).subspan(first, count)};
}

}  // namespace

StepBatch::StepBatch(const BatchSection& batch)
    : tokens(static_cast<std::size_t>(rows_of_step(batch))),
      targets(static_cast<std::size_t>(rows_of_step(batch))) {}

std::size_t step_batch_bytes(const BatchSection& batch) {
  return 2 * sizeof(std::int32_t) * static_cast<std::size_t>(rows_of_step(batch));
}

TrainLoader::TrainLoader(Rows rows, Settings settings, std::int64_t row_tokens)
    : rows_(std::move(rows)),
      settings_(std::move(settings)),
      row_tokens_(row_tokens),
      rows_per_step_(rows_of_step(settings_.batch) / row_tokens) {}

Result<TrainLoader> TrainLoader::make(TokenSource& source, DataRange range, Settings settings) {
  if (settings.order != "shuffled" && settings.order != "sequential") {
    return usage_error(fmt::format("data.order: '{}' is not an order", settings.order))
        .with_hint("one of shuffled, sequential");
  }
  // llm.c's stride: a micro-batch is one run of tokens.
  const bool in_runs = settings.order == "sequential" && !source.is_chat();
  const std::int64_t row_tokens =
      settings.batch.seq_len * (in_runs ? settings.batch.micro_batch : 1);
  if (settings.packed && !source.is_chat()) {
    return usage_error("data.packing = \"wrapped\" is for chat files, and data.train is none")
        .with_why("windows of other tokens go from one text to the next anyway")
        .with_hint("leave out data.packing, or name a file of headrace tokenize --chat");
  }
  HEADRACE_ASSIGN(Rows rows,
                  Rows::make(source, range, {.length = row_tokens, .packed = settings.packed}));
  return TrainLoader(std::move(rows), std::move(settings), row_tokens);
}

std::int64_t TrainLoader::tokens_per_step() const {
  return rows_of_step(settings_.batch);
}

std::int64_t TrainLoader::steps_in(double epochs) const {
  const double steps =
      std::floor(epochs * static_cast<double>(rows_.count()) / static_cast<double>(rows_per_step_));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(steps, kStepsMax)));
}

double TrainLoader::epochs_at(std::int64_t step) const {
  return static_cast<double>(step * rows_per_step_) / static_cast<double>(rows_.count());
}

// Of the run's rows, counted from its start.
std::int64_t TrainLoader::row_of(std::int64_t number) const {
  const std::int64_t per_epoch = rows_.count();
  if (settings_.order == "sequential") {
    return number % per_epoch;
  }
  const FeistelPermutation order({.size = static_cast<std::uint64_t>(per_epoch),
                                  .seed = settings_.seed,
                                  .epoch = static_cast<std::uint32_t>(number / per_epoch)});
  return static_cast<std::int64_t>(order(static_cast<std::uint64_t>(number % per_epoch)));
}

Status TrainLoader::fill(std::int64_t step, StepBatch& batch) const {
  HEADRACE_ASSERT(step >= 0, "steps are counted from 0");
  batch.unmasked_targets = 0;
  for (std::int64_t i = 0; i < rows_per_step_; ++i) {
    const BatchRow row = row_of_batch(batch, i, row_tokens_);
    HEADRACE_ASSIGN(const std::int64_t unmasked,
                    rows_.read(row_of(step * rows_per_step_ + i), row.tokens, row.targets));
    batch.unmasked_targets += unmasked;
  }
  return {};
}

EvalLoader::EvalLoader(Rows rows, Settings settings)
    : rows_(std::move(rows)), settings_(std::move(settings)), count_(rows_.count()) {
  if (settings_.micro_batches) {
    count_ = std::min(count_, *settings_.micro_batches * settings_.batch.micro_batch);
  }
}

Result<EvalLoader> EvalLoader::make(TokenSource& source, DataRange range, Settings settings) {
  HEADRACE_ASSIGN(
      Rows rows,
      Rows::make(source, range, {.length = settings.batch.seq_len, .packed = settings.packed}));
  return EvalLoader(std::move(rows), std::move(settings));
}

std::int64_t EvalLoader::batches() const {
  const std::int64_t per_batch = settings_.batch.accumulate * settings_.batch.micro_batch;
  return (count_ + per_batch - 1) / per_batch;
}

Status EvalLoader::fill(std::int64_t index, StepBatch& batch) const {
  const std::int64_t per_batch = settings_.batch.accumulate * settings_.batch.micro_batch;
  batch.unmasked_targets = 0;
  for (std::int64_t i = 0; i < per_batch; ++i) {
    const std::int64_t number = index * per_batch + i;
    const BatchRow row = row_of_batch(batch, i, settings_.batch.seq_len);
    if (number >= count_) {
      std::fill(row.tokens.begin(), row.tokens.end(), 0);
      std::fill(row.targets.begin(), row.targets.end(), kMaskedTarget);
      continue;
    }
    HEADRACE_ASSIGN(const std::int64_t unmasked, rows_.read(number, row.tokens, row.targets));
    batch.unmasked_targets += unmasked;
  }
  return {};
}

DataSplit split_tail(DataRange whole, std::optional<double> fraction) {
  const auto tail =
      fraction ? static_cast<std::int64_t>(std::floor(static_cast<double>(whole.count) * *fraction))
               : 0;
  const std::int64_t rest = whole.count - tail;
  return {.train = {.first = whole.first, .count = rest},
          .eval = {.first = whole.first + rest, .count = tail}};
}

}  // namespace headrace::train
