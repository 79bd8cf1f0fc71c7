// The CPU as a device. Aliasing: device memory is host memory, its links carry nothing. Separate: a
// capped arena that is copied to and from by one thread a link, throttled where a cap is set.
//
// Invariant: a throttled copy ends no earlier than bytes / cap after it could begin, that is after
// it was submitted, after what it waited for, and after the copy before it was due. Due times are
// absolute, so waking late costs a row of copies nothing, while a copy that ran slower than the cap
// gives the next one no credit. Threads: "compute" (master of an OpenMP team), "h2d", "d2h".
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <thread>

#include "core/assert.hpp"
#include "core/float_environment.hpp"
#include "tiers/device.hpp"
#include "tiers/memory.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers {

namespace {

using Clock = std::chrono::steady_clock;

// When a link may have finished. Its worker's thread only.
class Throttle {
 public:
  explicit Throttle(std::optional<double> bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  // The link waited for something until now: what it copies next could not begin before.
  void became_ready() { ready_at_ = Clock::now(); }

  // Sleeps until a copy that was submitted at `submitted_at`, and whose bytes have just arrived, is
  // due.
  void finish_copy(Clock::time_point submitted_at, std::size_t bytes) {
    if (!bytes_per_s_.has_value()) {
      return;
    }
    const Clock::time_point begin = std::max({submitted_at, ready_at_, due_at_});
    const std::chrono::duration<double> duration(static_cast<double>(bytes) / *bytes_per_s_);
    // Rounded up: never early.
    const auto ticks = std::chrono::ceil<Clock::duration>(duration);
    due_at_ = std::max(begin + ticks, Clock::now());
    std::this_thread::sleep_until(due_at_);
  }

 private:
  std::optional<double> bytes_per_s_;
  Clock::time_point ready_at_ = Clock::time_point::min();
  Clock::time_point due_at_ = Clock::time_point::min();
};

// On the compute queue's thread, when it starts: the team that every operation uses, all of it with
// flush-to-zero, made now rather than in the first operation.
void start_team(int threads) {
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
#pragma omp parallel
  set_flush_to_zero();
}

class CpuDevice final : public Device {
 public:
  CpuDevice(Runtime& runtime, const CpuDeviceOptions& options)
      : aliases_host_(options.aliases_host),
        h2d_throttle_(options.h2d_bytes_per_s),
        d2h_throttle_(options.d2h_bytes_per_s),
        compute_(runtime,
                 "compute",
                 {.cores = options.cores,
                  .expedites = true,
                  .on_thread_start = [threads = options.compute_threads] { start_team(threads); },
                  .on_waited = options.on_compute_waited}),
        h2d_(runtime, "h2d", link_options(h2d_throttle_)),
        d2h_(runtime, "d2h", link_options(d2h_throttle_)) {}

  ~CpuDevice() override {
    // All before any: they may wait for one another. A fault is the host's to have looked at.
    for (Queue* queue : std::initializer_list<Queue*>{&compute_, &h2d_, &d2h_}) {
      [[maybe_unused]] const Status status = queue->drain();
    }
  }

  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  [[nodiscard]] std::string name() const override { return "cpu"; }

  [[nodiscard]] bool aliases_host() const override { return aliases_host_; }

  [[nodiscard]] Queue& compute() override { return compute_; }

  [[nodiscard]] Queue& h2d() override { return h2d_; }

  [[nodiscard]] Queue& d2h() override { return d2h_; }

  [[nodiscard]] Result<std::span<std::byte>> allocate(std::size_t bytes) override {
    HEADRACE_ASSERT(!aliases_host_, "a device that aliases the host has no memory of its own");
    HEADRACE_ASSERT(memory_ == nullptr, "a device's memory is allocated once");
    HEADRACE_ASSIGN(memory_, Arena::create(Tier::kDevice, "device", bytes));
    return std::span<std::byte>(memory_->data(), bytes);
  }

  // Any memory will do for a CPU.
  [[nodiscard]] Status pin(std::span<std::byte> /*host*/) override { return {}; }

  [[nodiscard]] std::size_t pinned_bytes() const override { return 0; }

  void copy(Queue& link,
            const char* name,
            std::uint64_t id,
            void* target,
            const void* source,
            std::size_t bytes) override {
    HEADRACE_ASSERT(!aliases_host_, "a device that aliases the host copies nothing");
    HEADRACE_ASSERT(&link == &h2d_ || &link == &d2h_, "copies go through a link of this device");
    Throttle* throttle = &link == &h2d_ ? &h2d_throttle_ : &d2h_throttle_;
    const MemorySpan read(source, bytes);
    const MemorySpan write(target, bytes);
    const Operation operation{.name = name, .reads = {&read, 1}, .writes = {&write, 1}, .id = id};
    link.submit(operation, [throttle, target, source, bytes, submitted_at = Clock::now()] {
      if (bytes > 0) {
        std::memcpy(target, source, bytes);
      }
      throttle->finish_copy(submitted_at, bytes);
    });
  }

 private:
  static ThreadQueueOptions link_options(Throttle& throttle) {
    return {.on_waited = [&throttle](const Event&, std::chrono::nanoseconds) {
      throttle.became_ready();
    }};
  }

  bool aliases_host_;
  std::unique_ptr<Arena> memory_;
  Throttle h2d_throttle_;
  Throttle d2h_throttle_;
  // After what their threads use.
  ThreadQueue compute_;
  ThreadQueue h2d_;
  ThreadQueue d2h_;
};

bool is_rate(const std::optional<double>& cap) {
  return !cap.has_value() || *cap > 0;
}

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(Runtime& runtime, const CpuDeviceOptions& options) {
  if (options.compute_threads < 1) {
    return usage_error("cpu device: " + std::to_string(options.compute_threads) +
                       " compute threads")
        .with_hint("use at least 1");
  }
  if (!is_rate(options.h2d_bytes_per_s) || !is_rate(options.d2h_bytes_per_s)) {
    return usage_error("cpu device: the cap of a link must be above 0 bytes per second");
  }
  if (options.aliases_host &&
      (options.h2d_bytes_per_s.has_value() || options.d2h_bytes_per_s.has_value())) {
    return usage_error("cpu device: a device that shares the host's memory has no links to cap")
        .with_hint("make it a separate device, or drop the caps");
  }
  try {
    return std::unique_ptr<Device>(std::make_unique<CpuDevice>(runtime, options));
  } catch (const std::exception& exception) {  // no thread, no memory
    return operating_error("cpu device: cannot start its threads").with_why(exception.what());
  }
}

}  // namespace headrace::tiers
