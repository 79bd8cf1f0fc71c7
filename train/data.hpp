// Batches: which tokens a step sees.
//
// A pure function of the settings and the step number, so that a resume needs the number only:
//   shuffled    window w is the seq_len + 1 tokens at w * seq_len; an epoch is every window once,
//               in the order of a Feistel permutation of (seed, epoch); the run is one long
//               sequence of epochs, and a batch may span two.
//   sequential  micro-batch i of the run is the B * T + 1 tokens at i * B * T, targets shifted by
//               one, and wraps to the start when the next would not be whole, as llm.c does.
//
// Of chat files the rows of train/rows.hpp stand in place of windows: in both orders, sequential
// ones in the files' order. Evaluation reads windows or rows in order; what is missing of the last
// batch is masked (target -1).
//
// Thread: any, with batches of its own. Failure: Result; too little data is found when the loader
// is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "train/rows.hpp"
#include "train/tokens.hpp"

namespace headrace::train {

// [accumulate][micro_batch][seq_len], allocated once.
struct StepBatch {
  explicit StepBatch(const BatchSection& batch);

  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::int64_t unmasked_targets = 0;
};

// Of a StepBatch.
[[nodiscard]] std::size_t step_batch_bytes(const BatchSection& batch);

class TrainLoader {
 public:
  struct Settings {
    std::string order;  // "shuffled" | "sequential"
    BatchSection batch;
    std::uint64_t seed = 0;
    bool packed = false;  // chat files: several examples a row
  };

  // `source` outlives the loader. Errors: the range holds not even one window (or micro-batch).
  [[nodiscard]] static Result<TrainLoader> make(TokenSource& source,
                                                DataRange range,
                                                Settings settings);

  // The batch of step `step`, counted from 0.
  [[nodiscard]] Status fill(std::int64_t step, StepBatch& batch) const;

  // Whole steps in `epochs` epochs, at least 1.
  [[nodiscard]] std::int64_t steps_in(double epochs) const;
  [[nodiscard]] std::int64_t tokens_per_step() const;
  [[nodiscard]] double epochs_at(std::int64_t step) const;

  [[nodiscard]] const Rows& rows() const { return rows_; }

 private:
  TrainLoader(Rows rows, Settings settings, std::int64_t row_tokens);
  [[nodiscard]] std::int64_t row_of(std::int64_t number) const;

  Rows rows_;
  Settings settings_;
  std::int64_t row_tokens_ = 0;
  std::int64_t rows_per_step_ = 0;
};

class EvalLoader {
 public:
  struct Settings {
    BatchSection batch;
    std::optional<std::int64_t> micro_batches;  // at most; absent: the whole range
    bool packed = false;                        // as in training
  };

  [[nodiscard]] static Result<EvalLoader> make(TokenSource& source,
                                               DataRange range,
                                               Settings settings);

  [[nodiscard]] std::int64_t batches() const;
  [[nodiscard]] Status fill(std::int64_t index, StepBatch& batch) const;

 private:
  EvalLoader(Rows rows, Settings settings);

  Rows rows_;
  Settings settings_;
  std::int64_t count_ = 0;  // rows that are read
};

// Cuts the tail of `fraction` (0 < fraction < 1, or absent: none) off for evaluation.
struct DataSplit {
  DataRange train;
  DataRange eval;
};

[[nodiscard]] DataSplit split_tail(DataRange whole, std::optional<double> fraction);

}  // namespace headrace::train
