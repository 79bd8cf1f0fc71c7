#include "train/probe_beside.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

namespace headrace::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kCopyBytes = std::size_t{4} << 20U;  // a tile's
constexpr std::size_t kCopiesBytes = std::size_t{64} << 20U;

// Repeats a load until told to stop, at least once. Work per second.
template <class Stop>
Result<double> repeat(const Load& load, const Stop& stop) {
  const Clock::time_point begin = Clock::now();
  double work = 0;
  do {
    HEADRACE_ASSIGN(const double done, load());
    work += done;
  } while (!stop());
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return work / std::max(seconds.count(), 1e-9);
}

}  // namespace

Result<double> run_alone(std::chrono::milliseconds time, const Load& load) {
  HEADRACE_TRY(load());
  const Clock::time_point end = Clock::now() + time;
  return repeat(load, [&] { return Clock::now() >= end; });
}

Result<Together> run_together(std::chrono::milliseconds time,
                              const Load& first,
                              const Load& second) {
  std::atomic<bool> stop{false};
  std::optional<Result<double>> beside;
  std::thread other;
  try {
    other = std::thread([&] { beside.emplace(repeat(second, [&] { return stop.load(); })); });
  } catch (const std::exception& error) {
    return operating_error("probe: cannot start a thread")
        .with_why(error.what())
        .with_hint("raise the limit of processes: `ulimit -u`, or pids.max of the cgroup");
  }
  const Clock::time_point end = Clock::now() + time;
  const Result<double> rate = repeat(first, [&] { return Clock::now() >= end; });
  stop.store(true);
  other.join();
  if (!rate) {
    return rate.error();
  }
  HEADRACE_ASSIGN(const double rate_beside, *std::move(beside));
  return Together{.first = *rate, .second = rate_beside};
}

double share_of(double together, double alone) {
  constexpr double kLeast = 0.01;  // what is less is no share of a working machine
  return alone > 0 && together > 0 ? std::clamp(together / alone, kLeast, 1.0) : 0;
}

Result<std::unique_ptr<CopyBench>> CopyBench::create() {
  std::unique_ptr<CopyBench> bench(new CopyBench);
  HEADRACE_ASSIGN(bench->host_, tiers::Arena::create(tiers::Tier::kHost, "probe", kCopiesBytes));
  HEADRACE_ASSIGN(bench->device_, tiers::make_cpu_device(bench->runtime_, {.aliases_host = false}));
  HEADRACE_ASSIGN(bench->arena_, bench->device_->allocate(kCopiesBytes));
  HEADRACE_TRY(bench->device_->pin({bench->host_->data(), kCopiesBytes}));
  std::memset(bench->host_->data(), 1, kCopiesBytes);
  std::memset(bench->arena_.data(), 2, bench->arena_.size());
  return bench;
}

// Each direction over its own half of both memories.
Load CopyBench::load(CopyWay way) {
  return [this, way]() -> Result<double> {
    constexpr std::size_t kHalf = kCopiesBytes / 2;
    double bytes = 0;
    for (std::size_t at = 0; at < kHalf; at += kCopyBytes) {
      if (way != CopyWay::kToHost) {
        device_->copy(
            device_->h2d(), "probe", 0, arena_.data() + at, host_->data() + at, kCopyBytes);
        bytes += kCopyBytes;
      }
      if (way != CopyWay::kToDevice) {
        device_->copy(device_->d2h(),
                      "probe",
                      0,
                      host_->data() + kHalf + at,
                      arena_.data() + kHalf + at,
                      kCopyBytes);
        bytes += kCopyBytes;
      }
    }
    HEADRACE_TRY(device_->h2d().drain());
    HEADRACE_TRY(device_->d2h().drain());
    return bytes;
  };
}

}  // namespace headrace::train
