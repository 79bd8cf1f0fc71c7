// See watchdog.hpp.
#include "scheduler/exec/watchdog.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/trace.hpp"

namespace headrace::exec {
namespace {

using tiers::QueueWait;

constexpr int kLooksPerLimit = 8;
constexpr std::chrono::nanoseconds kPauseMax = std::chrono::seconds(5);

std::string duration(std::int64_t ns) {
  return format_duration(static_cast<double>(ns) * 1e-9);
}

std::string_view advice(bool transfers, bool runs) {
  if (transfers) {
    return "a drive that does not answer: see `dmesg` and `smartctl -a` of its device; the run "
           "goes "
           "on when it does";
  }
  return runs ? "see `top` whether it computes; a slow operation comes to its end by itself"
              : "every queue waits for another: this is a fault of headrace, please report it";
}

}  // namespace

Result<std::unique_ptr<Watchdog>> Watchdog::create(Source source, std::int64_t limit_ns) {
  HEADRACE_ASSERT(limit_ns > 0, "a watchdog has a limit");
  auto watchdog = std::make_unique<Watchdog>(std::move(source), limit_ns);
  try {
    watchdog->thread_ = std::thread([raw = watchdog.get()] { raw->serve(); });
  } catch (const std::system_error& error) {
    return operating_error("watchdog: cannot start its thread")
        .with_why(error.what())
        .with_hint("raise the limit of processes: `ulimit -u`, or the container's pids limit");
  }
  return watchdog;
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Watchdog::serve() {
  pthread_setname_np(pthread_self(), "hr-watchdog");
  const auto pause = std::min(kPauseMax, std::chrono::nanoseconds(limit_ns_ / kLooksPerLimit + 1));
  std::unique_lock lock(mutex_);
  while (!ended_changed_.wait_for(lock, pause, [this] { return ended_; })) {
    lock.unlock();
    if (const std::optional<Report> report = look(TraceRecorder::now_ns())) {
      log(report->stuck ? LogLevel::kWarning : LogLevel::kInfo, report->text);
    }
    lock.lock();
  }
}

std::optional<Watchdog::Report> Watchdog::look(std::int64_t now_ns) {
  const std::uint64_t progress = source_.progress() + ticks_.load(std::memory_order_relaxed);
  std::vector<QueueWait> waits = source_.waits();
  {
    const std::scoped_lock lock(mutex_);
    if (task_) {
      waits.push_back(*task_);
    }
  }
  const bool done = std::exchange(progress_, progress) != progress;
  if (done || waits.empty() || !done_ns_) {
    const bool warned = done_ns_ && next_warning_ns_ > limit_ns_;
    const std::int64_t silence_ns = now_ns - done_ns_.value_or(now_ns);
    done_ns_ = now_ns;
    next_warning_ns_ = limit_ns_;
    if (warned) {
      return Report{.stuck = false,
                    .text = fmt::format("the run goes on, after {}", duration(silence_ns))};
    }
    return std::nullopt;
  }
  const std::int64_t silence_ns = now_ns - *done_ns_;
  if (silence_ns < next_warning_ns_) {
    return std::nullopt;
  }
  next_warning_ns_ = 2 * silence_ns;
  return Report{
      .stuck = true,
      .text = fmt::format(
          "nothing has been done for {}:{}", duration(silence_ns), describe(waits, now_ns))};
}

std::string Watchdog::describe(const std::vector<QueueWait>& waits, std::int64_t now_ns) const {
  std::string stuck;
  std::string waiting;
  bool transfers = false;
  for (const QueueWait& wait : waits) {
    transfers = transfers || wait.kind == QueueWait::Kind::kTransfers;
    std::string& text = wait.kind == QueueWait::Kind::kWaits ? waiting : stuck;
    text += fmt::format("\n    {} (since {})", wait.what, duration(now_ns - wait.since_ns));
  }
  return fmt::format("{}{}{}\n  {}",
                     stuck,
                     waiting.empty() ? "" : "\n  and these wait for others:",
                     waiting,
                     advice(transfers, !stuck.empty()));
}

Watchdog::Task::Task(Watchdog* watchdog, std::string what) : watchdog_(watchdog) {
  if (watchdog_ != nullptr) {
    const std::scoped_lock lock(watchdog_->mutex_);
    watchdog_->task_ = QueueWait{.kind = QueueWait::Kind::kTransfers,
                                 .what = std::move(what),
                                 .since_ns = TraceRecorder::now_ns()};
  }
}

Watchdog::Task::~Task() {
  if (watchdog_ != nullptr) {
    tick();
    const std::scoped_lock lock(watchdog_->mutex_);
    watchdog_->task_.reset();
  }
}

void Watchdog::Task::tick() {
  if (watchdog_ != nullptr) {
    watchdog_->ticks_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace headrace::exec
