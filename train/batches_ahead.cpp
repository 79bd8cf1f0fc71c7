#include "train/batches_ahead.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "core/assert.hpp"
#include "core/log.hpp"

namespace headrace::train {

BatchesAhead::BatchesAhead(Fill fill, const BatchSection& batch, Steps steps)
    : fill_(std::move(fill)),
      steps_(steps),
      batches_{StepBatch(batch), StepBatch(batch)},
      next_(steps.first),
      read_(steps.first) {}

std::unique_ptr<BatchesAhead> BatchesAhead::start(const TrainLoader& loader,
                                                  const BatchSection& batch,
                                                  Steps steps) {
  return start([&loader](std::int64_t step, StepBatch& out) { return loader.fill(step, out); },
               batch,
               steps);
}

std::unique_ptr<BatchesAhead> BatchesAhead::start(Fill fill,
                                                  const BatchSection& batch,
                                                  Steps steps) {
  auto ahead = std::unique_ptr<BatchesAhead>(new BatchesAhead(std::move(fill), batch, steps));
  try {
    ahead->thread_ = std::thread(&BatchesAhead::read_ahead, ahead.get());
  } catch (const std::system_error& error) {
    log_warning(
        fmt::format("data: no thread to be had ({}): steps wait for their data", error.what()));
  }
  return ahead;
}

BatchesAhead::~BatchesAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

StepBatch& BatchesAhead::batch_of(std::int64_t step) {
  return batches_.at(static_cast<std::size_t>(step % 2));
}

// An exception must not leave the thread: it would end the process without a word.
Status BatchesAhead::fill(std::int64_t step) {
  try {
    return fill_(step, batch_of(step));
  } catch (const std::bad_alloc&) {
    return operating_error("data: out of memory while a batch is read")
        .with_hint("lower batch.seq_len or batch.micro_batch, or give the process more memory");
  } catch (const std::exception& exception) {
    return operating_error("data: reading a batch failed").with_why(exception.what());
  }
}

void BatchesAhead::read_ahead() {
  pthread_setname_np(pthread_self(), "hr-data");
  for (std::int64_t step = steps_.first; step < steps_.end; ++step) {
    {
      // Step next_ - 1 is being used; the place of the one before it is free.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || step <= next_; });
      if (stop_) {
        return;
      }
    }
    Status status = fill(step);
    const bool failed = !status;
    {
      const std::lock_guard lock(mutex_);
      status_ = std::move(status);
      read_ = step + 1;
    }
    changed_.notify_all();
    if (failed) {
      return;
    }
  }
}

Result<const StepBatch*> BatchesAhead::take() {
  HEADRACE_ASSERT(next_ < steps_.end, "a batch of the run's steps is taken");
  if (!thread_.joinable()) {
    HEADRACE_TRY(fill(next_));
    return &batch_of(next_++);
  }
  std::unique_lock lock(mutex_);
  const std::int64_t step = next_++;
  changed_.notify_all();
  changed_.wait(lock, [&] { return read_ > step || !status_; });
  // Only the last one read can have failed.
  if (!status_ && step + 1 >= read_) {
    return status_.error();
  }
  return &batch_of(step);
}

}  // namespace headrace::train
