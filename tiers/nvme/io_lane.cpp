#include "tiers/nvme/io_lane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/assert.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

// The race checker's address of a byte of a folder's file: files are smaller than 2^60 bytes.
constexpr unsigned kFolderShift = 60;
constexpr std::uint64_t kFolderMask = 0xF;

}  // namespace

void Signals::wake_engine() {
  if (!std::exchange(awake, true)) {
    backend->wake();
  }
}

Lane::Lane(Runtime& runtime, std::string name, const Setup& setup)
    : IoLane(runtime, std::move(name)),
      transfer(setup.header, setup.sub_blocks_max),
      store_(setup.store),
      folder_(setup.folder),
      signals_(setup.signals),
      ring_(setup.capacity) {
  HEADRACE_ASSERT(setup.capacity > 0, "a lane's ring holds at least one operation");
  completion_.lane = this;
  completion_.call = [](Completion* completion) {
    Lane& lane = *static_cast<WaitCompletion*>(completion)->lane;
    const std::scoped_lock lock(lane.signals_.mutex);
    lane.wait_over_ = true;
    lane.signals_.wake_engine();
  };
}

template <class Fill>
void Lane::put(Fill fill) {
  std::unique_lock lock(signals_.mutex);
  not_full_.wait(lock, [this] { return tail_ - head_ < ring_.size(); });
  LaneEntry& entry = ring_[tail_ % ring_.size()];
  entry.ticket = next_ticket();
  entry.deadline = ~IoDeadline{0};
  fill(entry);
  ++tail_;
  if (soonest_) {
    soonest_ = std::min(*soonest_, entry.deadline);
  }
  signals_.wake_engine();
}

void Lane::push(const Operation& operation, Body body) {
  put([&](LaneEntry& entry) {
    entry.kind = LaneEntry::Kind::kBody;
    entry.name = operation.name;
    entry.id = operation.id;
    entry.body = body;
  });
}

void Lane::push_wait(const Event& event) {
  put([&](LaneEntry& entry) {
    entry.kind = LaneEntry::Kind::kWait;
    entry.name = "wait";
    entry.id = 0;
    entry.event = event;
  });
}

void Lane::check_memory(const ExtentKey& key, const void* memory, std::size_t bytes) const {
  const ExtentPlace place = store_.home_place(key);
  HEADRACE_ASSERT(bytes == place.payload_bytes, "the payload has the extent's length");
  HEADRACE_ASSERT(place.folder == folder_, "the extent lies in the engine's folder");
  HEADRACE_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0,
                  "direct I/O needs page-aligned memory");
}

MemorySpan Lane::storage(const ExtentKey& key) const {
  const ExtentPlace place = store_.home_place(key);
  return MemorySpan::storage(place.offset + ((folder_ & kFolderMask) << kFolderShift),
                             place.header_bytes + place.payload_bytes);
}

void Lane::read(const ExtentKey& key,
                std::span<std::byte> target,
                std::uint64_t id,
                IoDeadline deadline,
                ReadCheck check) {
  check_memory(key, target.data(), target.size());
  const std::array reads = {storage(key)};
  const std::array writes = {MemorySpan(target.data(), target.size())};
  const Operation operation{.name = "nvme read", .reads = reads, .writes = writes, .id = id};
  declare(operation);
  put([&](LaneEntry& entry) {
    entry.kind = LaneEntry::Kind::kRead;
    entry.name = operation.name;
    entry.id = id;
    entry.deadline = deadline;
    entry.key = key;
    entry.memory = target.data();
    entry.bytes = target.size();
    entry.check = check;
  });
}

void Lane::write(const ExtentKey& key,
                 std::span<const std::byte> source,
                 std::int64_t step,
                 std::uint64_t id,
                 IoDeadline deadline) {
  check_memory(key, source.data(), source.size());
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  HEADRACE_ASSERT(key.kind == ExtentKind::kSpill || store_.ready_for_writes(),
                  "with one slot Store::mark_dirty comes before the first write after a commit");
  const std::array reads = {MemorySpan(source.data(), source.size())};
  const std::array writes = {storage(key)};
  const Operation operation{.name = "nvme write", .reads = reads, .writes = writes, .id = id};
  declare(operation);
  put([&](LaneEntry& entry) {
    entry.kind = LaneEntry::Kind::kWrite;
    entry.name = operation.name;
    entry.id = id;
    entry.deadline = deadline;
    entry.key = key;
    // One entry type serves both directions; a write only reads from it.
    entry.memory =
        const_cast<std::byte*>(source.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    entry.bytes = source.size();
    entry.step = step;
  });
}

void Lane::on_expedited() {
  const std::scoped_lock lock(signals_.mutex);
  signals_.wake_engine();
}

std::optional<Queue::PendingWait> Lane::next_wait(std::uint64_t after, std::uint64_t last) {
  const std::scoped_lock lock(signals_.mutex);
  for (std::uint64_t i = head_; i < tail_; ++i) {
    const LaneEntry& entry = ring_[i % ring_.size()];
    if (entry.kind == LaneEntry::Kind::kWait && entry.ticket > after && entry.ticket <= last) {
      return PendingWait{.ticket = entry.ticket, .event = entry.event};
    }
  }
  return std::nullopt;
}

bool Lane::take() {
  const std::scoped_lock lock(signals_.mutex);
  if (head_ == tail_) {
    return false;
  }
  current = ring_[head_ % ring_.size()];
  taken_ = true;
  current_begin_ns_ = TraceRecorder::now_ns();
  return true;
}

IoDeadline Lane::deadline_locked() const {
  if (head_ == tail_) {
    return ~IoDeadline{0};
  }
  if (ring_[head_ % ring_.size()].ticket <= wanted_ticket()) {
    return kWantedNow;
  }
  if (!soonest_) {
    soonest_ = ~IoDeadline{0};
    for (std::uint64_t i = head_; i < tail_; ++i) {
      soonest_ = std::min(*soonest_, ring_[i % ring_.size()].deadline);
    }
  }
  return *soonest_;
}

void Lane::finish_current() {
  phase = Phase::kIdle;
  finish(current.ticket);
  {
    const std::scoped_lock lock(signals_.mutex);
    ++head_;
    taken_ = false;
    if (soonest_ == current.deadline) {
      soonest_.reset();
    }
  }
  not_full_.notify_one();
}

bool Lane::empty() {
  const std::scoped_lock lock(signals_.mutex);
  return head_ == tail_;
}

bool Lane::begin_wait(const Event& event) {
  if (event.done()) {
    return true;
  }
  event.queue()->notify(event.ticket(), &completion_);
  return wait_over();
}

bool Lane::wait_over() {
  const std::scoped_lock lock(signals_.mutex);
  return std::exchange(wait_over_, false);
}

std::optional<QueueWait> Lane::describe_wait() const {
  const std::scoped_lock lock(signals_.mutex);
  if (head_ == tail_) {
    return std::nullopt;
  }
  const LaneEntry& entry = ring_[head_ % ring_.size()];
  QueueWait wait{
      .kind = QueueWait::Kind::kTransfers, .what = name() + ": ", .since_ns = current_begin_ns_};
  if (!taken_) {
    wait.what += fmt::format("{} (#{}) was submitted", entry.name, entry.id);
    wait.since_ns = TraceRecorder::now_ns();
  } else if (entry.kind == LaneEntry::Kind::kWait) {
    wait.kind = QueueWait::Kind::kWaits;
    wait.what +=
        fmt::format("waits for ticket {} of {}", entry.event.ticket(), entry.event.queue()->name());
  } else if (entry.kind == LaneEntry::Kind::kBody) {
    wait.kind = QueueWait::Kind::kRuns;
    wait.what += fmt::format("runs {} (#{})", entry.name, entry.id);
  } else {
    wait.what += fmt::format(
        "{} (#{}) of unit {}, tile {} ({}) at offset {} of '{}': {} of {} bytes moved, "
        "{} requests in flight",
        entry.name,
        entry.id,
        entry.key.unit,
        entry.key.tile,
        kind_name(entry.key.kind),
        progress.offset.load(std::memory_order_relaxed),
        store_.data_path(folder_),
        progress.moved_bytes.load(std::memory_order_relaxed),
        progress.total_bytes.load(std::memory_order_relaxed),
        progress.in_flight.load(std::memory_order_relaxed));
  }
  if (tail_ - head_ > 1) {
    wait.what += fmt::format("; {} behind it", tail_ - head_ - 1);
  }
  return wait;
}

}  // namespace headrace::tiers::nvme
