// The back end over a SimulatedDisk: requests wait for one device of a bandwidth, each then for its
// own latency, in virtual time; so they overtake each other.
//
// Invariant: a request takes effect when it completes, or in part when the power goes before.
// While requests are under way wait() never sleeps: it moves the clock. Thread: io_backend.hpp.
#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "tiers/nvme/simulated_disk.hpp"

namespace headrace::tiers::nvme {
namespace {

class SimulatedBackend final : public IoBackend {
 public:
  SimulatedBackend(SimulatedDisk& disk, unsigned depth) : disk_(disk), depth_(depth) {
    pending_.reserve(depth);
    queued_.reserve(depth);
  }

  ~SimulatedBackend() override;

  void queue(IoRequest& request) override;
  [[nodiscard]] std::size_t wait(std::span<IoCompletion> completions,
                                 std::optional<std::int64_t> timeout_ns) override;
  void wake() override;
  void cancel() override;

  [[nodiscard]] std::int64_t now_ns() const override { return disk_.now_ns(); }

  [[nodiscard]] BackendFacts facts() const override {
    return {.name = "simulator", .memory_bytes = depth_ * (sizeof(Pending) + sizeof(IoRequest*))};
  }

 private:
  struct Pending {
    IoRequest* request = nullptr;
    std::int64_t begin_ns = 0;  // when the device comes to it
    std::int64_t due_ns = 0;
    int refused = 0;  // a negated errno: never reaches the disk
  };

  void start(IoRequest& request);
  [[nodiscard]] bool sleep_for_news(std::optional<std::int64_t> timeout_ns);
  [[nodiscard]] int finish(const Pending& pending);

  SimulatedDisk& disk_;
  unsigned depth_;
  std::vector<IoRequest*> queued_;
  std::vector<Pending> pending_;
  std::int64_t device_free_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable woken_changed_;
  bool woken_ = false;
};

SimulatedBackend::~SimulatedBackend() {
  std::array<IoCompletion, 64> completions{};
  while (!queued_.empty() || !pending_.empty()) {
    [[maybe_unused]] const std::size_t count = wait(completions, std::nullopt);
  }
}

void SimulatedBackend::queue(IoRequest& request) {
  HEADRACE_ASSERT(queued_.size() + pending_.size() < depth_,
                  "at most `depth` requests are under way");
  queued_.push_back(&request);
}

void SimulatedBackend::start(IoRequest& request) {
  constexpr double kNsPerS = 1e9;
  const SimulatedDiskOptions& options = disk_.options();
  const std::int64_t begin_ns = std::max(device_free_ns_, disk_.now_ns());
  device_free_ns_ = begin_ns + static_cast<std::int64_t>(static_cast<double>(request.bytes) /
                                                         options.bytes_per_s * kNsPerS);
  pending_.push_back({.request = &request,
                      .begin_ns = begin_ns,
                      .due_ns = device_free_ns_ + options.latency_ns + disk_.draw_jitter_ns()});
}

int SimulatedBackend::finish(const Pending& pending) {
  if (pending.refused != 0) {
    return pending.refused;
  }
  if (!disk_.power().on()) {
    if (pending.request->write) {
      disk_.arrive_in_part(*pending.request);
    }
    return -EIO;
  }
  return disk_.transfer(*pending.request);
}

// Nothing is under way: until a wake, or for the timeout in virtual time. True: woken.
bool SimulatedBackend::sleep_for_news(std::optional<std::int64_t> timeout_ns) {
  std::unique_lock lock(mutex_);
  if (!timeout_ns) {
    woken_changed_.wait(lock, [this] { return woken_; });
  } else if (!woken_) {
    disk_.advance_to(disk_.now_ns() + std::max<std::int64_t>(*timeout_ns, 0));
  }
  return std::exchange(woken_, false);
}

std::size_t SimulatedBackend::wait(std::span<IoCompletion> completions,
                                   std::optional<std::int64_t> timeout_ns) {
  const bool power = disk_.power().on();
  for (IoRequest* request : queued_) {
    start(*request);
    pending_.back().refused = power ? 0 : -EIO;
  }
  queued_.clear();
  if (pending_.empty()) {
    [[maybe_unused]] const bool woken = sleep_for_news(timeout_ns);
    return 0;
  }
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(woken_, false)) {
      timeout_ns = 0;
    }
  }
  const auto sooner = [](const Pending& left, const Pending& right) {
    return left.due_ns < right.due_ns;
  };
  const std::int64_t first_ns = std::min_element(pending_.begin(), pending_.end(), sooner)->due_ns;
  const std::int64_t now_ns = disk_.now_ns();
  if (timeout_ns && first_ns > now_ns + *timeout_ns) {
    disk_.advance_to(now_ns + *timeout_ns);
    return 0;
  }
  disk_.advance_to(first_ns);
  std::size_t count = 0;
  while (count < completions.size() && !pending_.empty()) {
    const auto next = std::min_element(pending_.begin(), pending_.end(), sooner);
    if (next->due_ns > disk_.now_ns()) {
      break;
    }
    const Pending done = *next;
    pending_.erase(next);
    completions[count++] = {.request = done.request, .result = finish(done)};
  }
  return count;
}

void SimulatedBackend::wake() {
  const std::scoped_lock lock(mutex_);
  woken_ = true;
  woken_changed_.notify_one();
}

// Those that the device has begun with complete as ever.
void SimulatedBackend::cancel() {
  for (IoRequest* request : queued_) {
    start(*request);
    pending_.back().refused = -ECANCELED;
  }
  queued_.clear();
  for (Pending& pending : pending_) {
    if (pending.begin_ns > disk_.now_ns()) {
      pending.refused = -ECANCELED;
    }
  }
}

}  // namespace

Result<std::unique_ptr<IoBackend>> make_simulated_backend(BlockFile& file,
                                                          const BackendOptions& options) {
  HEADRACE_ASSERT(options.depth > 0, "a back end has requests");
  auto* simulated = dynamic_cast<SimulatedFile*>(&file);
  HEADRACE_ASSERT(simulated != nullptr, "the simulator reads files of its own");
  return std::make_unique<SimulatedBackend>(simulated->disk(), options.depth);
}

}  // namespace headrace::tiers::nvme
