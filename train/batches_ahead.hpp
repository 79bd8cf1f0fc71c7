// Batches of a run's steps, read by a thread of their own while the step before is computed.
//
// Invariant: `take` gives what TrainLoader::fill gives for the step, whatever the timing; memory is
// two batches. Thread: one, which takes; the other one ends with the object. Failure: an error of
// reading, also one that was thrown, comes out at the step that it belongs to, and is the last.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/error.hpp"
#include "train/data.hpp"

namespace headrace::train {

class BatchesAhead {
 public:
  struct Steps {
    std::int64_t first = 0;
    std::int64_t end = 0;  // none is read from here on
  };

  // Of the step with this number; it may throw.
  using Fill = std::function<Status(std::int64_t step, StepBatch& batch)>;

  // What `fill` works on outlives the object. Where no thread can be had, `take` reads.
  [[nodiscard]] static std::unique_ptr<BatchesAhead> start(Fill fill,
                                                           const BatchSection& batch,
                                                           Steps steps);
  // With the loader's.
  [[nodiscard]] static std::unique_ptr<BatchesAhead> start(const TrainLoader& loader,
                                                           const BatchSection& batch,
                                                           Steps steps);
  ~BatchesAhead();
  BatchesAhead(const BatchesAhead&) = delete;
  BatchesAhead& operator=(const BatchesAhead&) = delete;

  // The batch of the next step, the first one first. It is whole until the next call.
  [[nodiscard]] Result<const StepBatch*> take();

 private:
  BatchesAhead(Fill fill, const BatchSection& batch, Steps steps);
  void read_ahead();
  [[nodiscard]] Status fill(std::int64_t step);
  [[nodiscard]] StepBatch& batch_of(std::int64_t step);

  Fill fill_;
  Steps steps_;
  std::array<StepBatch, 2> batches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Steps, under the mutex: `next_` is taken next, those before `read_` have been read, or failed.
  std::int64_t next_;
  std::int64_t read_;
  Status status_;  // of the last one read
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace headrace::train
