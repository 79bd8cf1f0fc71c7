// Batches: which tokens a step sees.
//
// A pure function of the settings and the step number, so that a resume needs the number only:
//   shuffled    window w is the seq_len + 1 tokens at w * seq_len; an epoch is every window once,
//   in
//               the order of a Feistel permutation of (seed, epoch); the run is one long sequence
//               of epochs, and a batch may span two.
//   sequential  micro-batch i of the run is the B * T + 1 tokens at i * B * T, targets shifted by
//               one, and wraps to the start when the next would not be whole, as llm.c does.
// Evaluation reads windows in order; what is missing of the last batch is masked (target -1).
//
// Thread: one at a time. Failure: Result; too little data is found when the loader is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "train/tokens.hpp"

namespace headrace::train {

inline constexpr std::int32_t kMaskedTarget = -1;

// Tokens [first, first + tokens) of a source.
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t tokens = 0;
};

// [accumulate][micro_batch][seq_len], allocated once.
struct StepBatch {
  explicit StepBatch(const BatchSection& batch);

  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::int64_t unmasked_targets = 0;
};

class TrainLoader {
 public:
  struct Settings {
    std::string order;  // "shuffled" | "sequential"
    BatchSection batch;
    std::uint64_t seed = 0;
  };

  // `source` outlives the loader. Errors: the range holds not even one window (or micro-batch).
  [[nodiscard]] static Result<TrainLoader> make(TokenSource& source,
                                                TokenRange range,
                                                Settings settings);

  // The batch of step `step`, counted from 0.
  [[nodiscard]] Status fill(std::int64_t step, StepBatch& batch);

  // Whole steps in `epochs` epochs, at least 1.
  [[nodiscard]] std::int64_t steps_in(double epochs) const;
  [[nodiscard]] std::int64_t tokens_per_step() const;
  [[nodiscard]] double epochs_at(std::int64_t step) const;

 private:
  TrainLoader(TokenSource& source, TokenRange range, Settings settings);
  [[nodiscard]] Status fill_window(std::int64_t sequence, std::int64_t row, StepBatch& batch);
  [[nodiscard]] Status fill_run(std::int64_t micro_batch, std::int64_t row, StepBatch& batch);
  [[nodiscard]] Status fill_rows(std::int64_t first, std::int64_t row, StepBatch& batch);

  TokenSource* source_;
  TokenRange range_;
  Settings settings_;
  bool shuffled_ = true;
  std::int64_t pieces_per_step_ = 0;  // windows, or micro-batches where sequential
  std::int64_t per_epoch_ = 0;        // the same
  std::vector<std::int32_t> window_;
};

class EvalLoader {
 public:
  struct Settings {
    BatchSection batch;
    std::optional<std::int64_t> micro_batches;  // at most; absent: the whole range
  };

  [[nodiscard]] static Result<EvalLoader> make(TokenSource& source,
                                               TokenRange range,
                                               Settings settings);

  [[nodiscard]] std::int64_t batches() const;
  [[nodiscard]] Status fill(std::int64_t index, StepBatch& batch);

 private:
  EvalLoader(TokenSource& source, TokenRange range, Settings settings);

  TokenSource* source_;
  TokenRange range_;
  Settings settings_;
  std::int64_t windows_ = 0;
  std::vector<std::int32_t> window_;
};

// Cuts the tail of `fraction` (0 < fraction < 1, or absent: none) off for evaluation.
struct DataSplit {
  TokenRange train;
  TokenRange eval;
};

[[nodiscard]] DataSplit split_tail(std::int64_t tokens, std::optional<double> fraction);

}  // namespace headrace::train
