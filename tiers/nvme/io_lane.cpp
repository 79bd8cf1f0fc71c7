#include "tiers/nvme/io_lane.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/assert.hpp"

namespace headrace::tiers::nvme {

void Signals::wake_engine() {
  if (std::exchange(wake_written, true)) {
    return;
  }
  const std::uint64_t one = 1;
  ssize_t put = 0;
  do {
    put = ::write(wake.get(), &one, sizeof(one));
  } while (put < 0 && errno == EINTR);
  HEADRACE_ASSERT(put == sizeof(one), "an eventfd that is read before it overflows takes a write");
}

Lane::Lane(Runtime& runtime, std::string name, const Setup& setup)
    : IoLane(runtime, std::move(name)),
      store_(setup.store),
      signals_(setup.signals),
      header_(setup.header),
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
  fill(entry);
  ++tail_;
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
  HEADRACE_ASSERT(bytes == store_.home_place(key).payload_bytes,
                  "the payload has the extent's length");
  HEADRACE_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0,
                  "direct I/O needs page-aligned memory");
}

void Lane::read(const ExtentKey& key, std::span<std::byte> target, std::uint64_t id) {
  check_memory(key, target.data(), target.size());
  const ExtentPlace place = store_.home_place(key);
  const std::array reads = {
      MemorySpan::storage(place.offset, place.header_bytes + place.payload_bytes)};
  const std::array writes = {MemorySpan(target.data(), target.size())};
  const Operation operation{.name = "nvme read", .reads = reads, .writes = writes, .id = id};
  declare(operation);
  put([&](LaneEntry& entry) {
    entry.kind = LaneEntry::Kind::kRead;
    entry.name = operation.name;
    entry.id = id;
    entry.key = key;
    entry.memory = target.data();
    entry.bytes = target.size();
  });
}

void Lane::write(const ExtentKey& key,
                 std::span<const std::byte> source,
                 std::int64_t step,
                 std::uint64_t id) {
  check_memory(key, source.data(), source.size());
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  HEADRACE_ASSERT(store_.ready_for_writes(),
                  "with one slot Store::mark_dirty comes before the first write after a commit");
  const ExtentPlace place = store_.home_place(key);
  const std::array reads = {MemorySpan(source.data(), source.size())};
  const std::array writes = {
      MemorySpan::storage(place.offset, place.header_bytes + place.payload_bytes)};
  const Operation operation{.name = "nvme write", .reads = reads, .writes = writes, .id = id};
  declare(operation);
  put([&](LaneEntry& entry) {
    entry.kind = LaneEntry::Kind::kWrite;
    entry.name = operation.name;
    entry.id = id;
    entry.key = key;
    // One entry type serves both directions; a write only reads from it.
    entry.memory =
        const_cast<std::byte*>(source.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    entry.bytes = source.size();
    entry.step = step;
  });
}

bool Lane::take() {
  const std::scoped_lock lock(signals_.mutex);
  if (head_ == tail_) {
    return false;
  }
  current = ring_[head_ % ring_.size()];
  return true;
}

void Lane::finish_current() {
  phase = Phase::kIdle;
  finish(current.ticket);
  {
    const std::scoped_lock lock(signals_.mutex);
    ++head_;
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

}  // namespace headrace::tiers::nvme
