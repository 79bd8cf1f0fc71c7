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

// Windows of `stride` + 1 tokens, `stride` apart.
std::int64_t windows_in(const TokenRange& range, std::int64_t stride) {
  return range.tokens > 0 ? (range.tokens - 1) / stride : 0;
}

// Before anything is as large as a window.
Status check_one_window(const TokenRange& range, std::int64_t stride) {
  if (windows_in(range, stride) > 0) {
    return {};
  }
  return usage_error(fmt::format("data: {} tokens are too few", range.tokens))
      .with_why(fmt::format("one window needs {} tokens and the one after", stride))
      .with_hint("add data, or lower batch.seq_len");
}

std::int64_t stride_of(const BatchSection& batch, bool shuffled) {
  return shuffled ? batch.seq_len : batch.seq_len * batch.micro_batch;
}

}  // namespace

StepBatch::StepBatch(const BatchSection& batch)
    : tokens(static_cast<std::size_t>(rows_of_step(batch))),
      targets(static_cast<std::size_t>(rows_of_step(batch))) {}

TrainLoader::TrainLoader(TokenSource& source, TokenRange range, Settings settings)
    : source_(&source),
      range_(range),
      settings_(std::move(settings)),
      shuffled_(settings_.order != "sequential") {
  const std::int64_t stride = stride_of(settings_.batch, shuffled_);
  pieces_per_step_ = settings_.batch.accumulate * (shuffled_ ? settings_.batch.micro_batch : 1);
  per_epoch_ = windows_in(range_, stride);
  window_.resize(static_cast<std::size_t>(stride + 1));
}

Result<TrainLoader> TrainLoader::make(TokenSource& source, TokenRange range, Settings settings) {
  if (settings.order != "shuffled" && settings.order != "sequential") {
    return usage_error(fmt::format("data.order: '{}' is not an order", settings.order))
        .with_hint("one of shuffled, sequential");
  }
  HEADRACE_TRY(check_one_window(range, stride_of(settings.batch, settings.order != "sequential")));
  return TrainLoader(source, range, std::move(settings));
}

std::int64_t TrainLoader::tokens_per_step() const {
  return rows_of_step(settings_.batch);
}

std::int64_t TrainLoader::steps_in(double epochs) const {
  const double steps =
      std::floor(epochs * static_cast<double>(per_epoch_) / static_cast<double>(pieces_per_step_));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(steps, kStepsMax)));
}

double TrainLoader::epochs_at(std::int64_t step) const {
  return static_cast<double>(step * pieces_per_step_) / static_cast<double>(per_epoch_);
}

// `window_` holds the tokens at `first`; its inputs and targets go to rows [row, …) of the batch.
Status TrainLoader::fill_rows(std::int64_t first, std::int64_t row, StepBatch& batch) {
  HEADRACE_TRY(source_->read(range_.first + first, window_));
  std::copy(window_.begin(), window_.end() - 1, batch.tokens.begin() + row);
  std::copy(window_.begin() + 1, window_.end(), batch.targets.begin() + row);
  return {};
}

Status TrainLoader::fill_window(std::int64_t sequence, std::int64_t row, StepBatch& batch) {
  const FeistelPermutation order({.size = static_cast<std::uint64_t>(per_epoch_),
                                  .seed = settings_.seed,
                                  .epoch = static_cast<std::uint32_t>(sequence / per_epoch_)});
  const auto window =
      static_cast<std::int64_t>(order(static_cast<std::uint64_t>(sequence % per_epoch_)));
  return fill_rows(window * settings_.batch.seq_len, row, batch);
}

Status TrainLoader::fill_run(std::int64_t micro_batch, std::int64_t row, StepBatch& batch) {
  const std::int64_t stride = settings_.batch.micro_batch * settings_.batch.seq_len;
  return fill_rows((micro_batch % per_epoch_) * stride, row, batch);
}

Status TrainLoader::fill(std::int64_t step, StepBatch& batch) {
  HEADRACE_ASSERT(step >= 0, "steps are counted from 0");
  const std::int64_t pieces = pieces_per_step_;
  const std::int64_t rows = tokens_per_step() / pieces;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t number = step * pieces + i;
    HEADRACE_TRY(shuffled_ ? fill_window(number, i * rows, batch)
                           : fill_run(number, i * rows, batch));
  }
  batch.unmasked_targets = tokens_per_step();
  return {};
}

EvalLoader::EvalLoader(TokenSource& source, TokenRange range, Settings settings)
    : source_(&source), range_(range), settings_(std::move(settings)) {
  const std::int64_t seq_len = settings_.batch.seq_len;
  windows_ = windows_in(range_, seq_len);
  if (settings_.micro_batches) {
    windows_ = std::min(windows_, *settings_.micro_batches * settings_.batch.micro_batch);
  }
  window_.resize(static_cast<std::size_t>(seq_len + 1));
}

Result<EvalLoader> EvalLoader::make(TokenSource& source, TokenRange range, Settings settings) {
  HEADRACE_TRY(check_one_window(range, settings.batch.seq_len));
  return EvalLoader(source, range, std::move(settings));
}

std::int64_t EvalLoader::batches() const {
  const std::int64_t per_batch = settings_.batch.accumulate * settings_.batch.micro_batch;
  return (windows_ + per_batch - 1) / per_batch;
}

Status EvalLoader::fill(std::int64_t index, StepBatch& batch) {
  const std::int64_t seq_len = settings_.batch.seq_len;
  const std::int64_t per_batch = settings_.batch.accumulate * settings_.batch.micro_batch;
  batch.unmasked_targets = 0;
  for (std::int64_t i = 0; i < per_batch; ++i) {
    const std::int64_t window = index * per_batch + i;
    const auto row = static_cast<std::ptrdiff_t>(i * seq_len);
    if (window >= windows_) {
      std::fill_n(batch.tokens.begin() + row, seq_len, 0);
      std::fill_n(batch.targets.begin() + row, seq_len, kMaskedTarget);
      continue;
    }
    HEADRACE_TRY(source_->read(range_.first + window * seq_len, window_));
    std::copy(window_.begin(), window_.end() - 1, batch.tokens.begin() + row);
    std::copy(window_.begin() + 1, window_.end(), batch.targets.begin() + row);
    batch.unmasked_targets += seq_len;
  }
  return {};
}

DataSplit split_tail(std::int64_t tokens, std::optional<double> fraction) {
  DataSplit split;
  const auto tail =
      fraction ? static_cast<std::int64_t>(std::floor(static_cast<double>(tokens) * *fraction)) : 0;
  split.train = {.first = 0, .tokens = tokens - tail};
  split.eval = {.first = tokens - tail, .tokens = tail};
  return split;
}

}  // namespace headrace::train
