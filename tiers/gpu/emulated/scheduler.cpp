// When and in what order the emulated device runs what is on its streams. See engine.hpp.
//
// Three moods, by seed: nothing runs until a query asks for it, and then only what it needs; some
// operation or other runs at any call; one stream runs ahead of all others. A query first answers
// "not ready" a few times.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/assert.hpp"
#include "core/hash.hpp"
#include "core/trace.hpp"
#include "tiers/gpu/emulated/engine.hpp"

namespace headrace::tiers::gpu::emulated {

namespace {

enum class Mood : std::uint8_t { kLazy, kRandom, kFavourite };

Mood mood_of(std::uint64_t seed) {
  constexpr std::uint64_t kMoods = 3;
  return static_cast<Mood>(seed % kMoods);
}

bool overlap(const std::byte* one,
             std::size_t one_bytes,
             const std::byte* other,
             std::size_t other_bytes) {
  return one < other + other_bytes && other < one + one_bytes;
}

}  // namespace

std::uint64_t Engine::below(std::uint64_t limit) {
  return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random_);
}

void Engine::submit(EmulatedStream& stream, StreamOperation operation) {
  operation.number = next_number_++;
  stream.operations.push_back(std::move(operation));
  StreamOperation& placed = stream.operations.back();
  if (placed.reads_host || placed.writes_host) {
    host_copies_.emplace(placed.number, &placed);
    poison_targets();
  }
  run_some();
}

// ---- order ----

bool Engine::can_run(const EmulatedStream& stream) const {
  if (stream.operations.empty()) {
    return false;
  }
  const StreamOperation& first = stream.operations.front();
  return first.kind != StreamOperation::Kind::kWait || first.event->done >= first.version;
}

void Engine::run_some() {
  const Mood mood = mood_of(options.seed);
  // One time in three of a call.
  constexpr std::uint64_t kOneIn = 3;
  if (mood == Mood::kLazy || (mood == Mood::kRandom && below(kOneIn) != 0)) {
    return;
  }
  if (mood == Mood::kFavourite) {
    const auto found = streams_.find(favourite_);
    while (found != streams_.end() && can_run(*found->second)) {
      run_front(*found->second);
    }
    return;
  }
  std::vector<EmulatedStream*> ready;
  for (auto& [number, stream] : streams_) {
    if (can_run(*stream)) {
      ready.push_back(stream.get());
    }
  }
  if (!ready.empty()) {
    run_front(*ready[below(ready.size())]);
  }
}

// How many operations of its stream come up to the record of this version, itself included; 0: it
// has run.
std::size_t Engine::place_of_record(const EmulatedEvent& event, std::uint64_t version) const {
  if (event.done >= version) {
    return 0;
  }
  const auto& operations = streams_.at(event.stream)->operations;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const StreamOperation& operation = operations[i];
    if (operation.kind == StreamOperation::Kind::kRecord && operation.event == &event &&
        operation.version == version) {
      return i + 1;
    }
  }
  return 0;
}

// Adds to `needed`, by stream, how many of the oldest operations must run for `count` of `stream`.
void Engine::need(std::uint64_t stream,
                  std::size_t count,
                  std::map<std::uint64_t, std::size_t>& needed) {
  std::vector<std::pair<std::uint64_t, std::size_t>> todo = {{stream, count}};
  while (!todo.empty()) {
    const auto [number, wanted] = todo.back();
    todo.pop_back();
    std::size_t& known = needed[number];
    const auto& operations = streams_.at(number)->operations;
    while (known < wanted) {
      const StreamOperation& operation = operations[known++];
      if (operation.kind == StreamOperation::Kind::kWait) {
        if (const std::size_t place = place_of_record(*operation.event, operation.version);
            place > 0) {
          todo.emplace_back(operation.event->stream, place);
        }
      }
    }
  }
}

void Engine::run_until(const EmulatedEvent& event, std::uint64_t version) {
  std::map<std::uint64_t, std::size_t> needed;
  if (const std::size_t place = place_of_record(event, version); place > 0) {
    need(event.stream, place, needed);
  }
  std::vector<EmulatedStream*> ready;
  while (device_error == cudaSuccess) {
    ready.clear();
    for (const auto& [number, count] : needed) {
      if (count > 0 && can_run(*streams_.at(number))) {
        ready.push_back(streams_.at(number).get());
      }
    }
    if (ready.empty()) {
      return;
    }
    EmulatedStream& next = *ready[below(ready.size())];
    --needed[next.number];
    run_front(next);
  }
}

void Engine::run_all(EmulatedStream& stream) {
  while (device_error == cudaSuccess && !stream.operations.empty()) {
    const StreamOperation& first = stream.operations.front();
    if (!can_run(stream)) {
      run_until(*first.event, first.version);
    }
    run_front(stream);
  }
}

// ---- running ----

void Engine::run_front(EmulatedStream& stream) {
  StreamOperation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  host_copies_.erase(operation.number);
  const bool is_work = operation.kind != StreamOperation::Kind::kRecord &&
                       operation.kind != StreamOperation::Kind::kWait;
  if (is_work && operations_run++ == fail_at_operation) {
    lose_device(fail_operation_error);
    return;
  }
  if (is_work) {
    open_device(true);
    execute(operation);
    open_device(false);
    poison_targets();
  } else if (operation.kind == StreamOperation::Kind::kRecord) {
    operation.event->done = operation.version;
    operation.event->done_tick = device_tick();
  }
}

// The device's clock is not the host's: by seed it gains or loses up to a thousandth.
std::int64_t Engine::device_tick() const {
  constexpr std::int64_t kMillion = 1'000'000;
  constexpr std::int64_t kGainMax = 1000;
  const auto gain = static_cast<std::int64_t>(options.seed % (2 * kGainMax + 1)) - kGainMax;
  const std::int64_t ticks = TraceRecorder::now_ns() / kNsPerTick;
  return ticks + ticks * gain / kMillion;
}

void Engine::execute(StreamOperation& operation) {
  if (operation.kind == StreamOperation::Kind::kCopy) {
    execute_copy(operation);
  } else if (operation.kind == StreamOperation::Kind::kFill) {
    std::memset(operation.target, operation.value, operation.bytes);
  } else {
    std::vector<void*> arguments;
    arguments.reserve(operation.offsets.size());
    for (const std::size_t offset : operation.offsets) {
      arguments.push_back(operation.arguments.data() + offset);
    }
    operation.kernel(arguments.data());
  }
}

void Engine::execute_copy(StreamOperation& operation) {
  if (operation.reads_host &&
      hash_bytes({operation.source, operation.bytes}) != operation.source_hash) {
    violate("the host memory that a copy to the device reads was changed before it ran");
  }
  if (operation.poisoned) {
    const bool intact = std::all_of(operation.target,
                                    operation.target + operation.bytes,
                                    [this](std::byte value) { return value == poison(); });
    if (!intact) {
      violate("the host memory that a copy from the device fills was written before it ran");
    }
  }
  std::memmove(operation.target, operation.source, operation.bytes);
  if (operation.writes_host) {
    rehash_sources(operation);
  }
}

void Engine::open_device(bool open) {
  for (const auto& [data, allocation] : allocations_) {
    const int result = ::mprotect(
        allocation.data, allocation.open_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    HEADRACE_ASSERT(result == 0, "an allocation's access can be changed");
  }
}

// ---- host memory of pending copies ----

// Not zero, not a float that anything computes.
std::byte Engine::poison() const {
  constexpr std::uint64_t kFirst = 0xC1;
  constexpr std::uint64_t kValues = 15;
  return static_cast<std::byte>(kFirst + options.seed % kValues);
}

// The target of a copy to the host is worthless from when the copy may run: once the copies before
// it that use the same memory, and must be ordered before it, have run.
void Engine::poison_targets() {
  for (auto later = host_copies_.begin(); later != host_copies_.end(); ++later) {
    StreamOperation& copy = *later->second;
    if (!copy.writes_host || copy.poisoned) {
      continue;
    }
    const bool in_use = std::any_of(host_copies_.begin(), later, [&copy](const auto& entry) {
      const StreamOperation& earlier = *entry.second;
      const std::byte* host = earlier.writes_host ? earlier.target : earlier.source;
      return overlap(host, earlier.bytes, copy.target, copy.bytes);
    });
    if (!in_use) {
      std::memset(copy.target, static_cast<int>(poison()), copy.bytes);
      copy.poisoned = true;
    }
  }
}

// A copy to the host has landed: copies to the device that wait for it read what it brought.
void Engine::rehash_sources(const StreamOperation& landed) {
  for (auto& [number, copy] : host_copies_) {
    if (copy->reads_host && overlap(copy->source, copy->bytes, landed.target, landed.bytes)) {
      copy->source_hash = hash_bytes({copy->source, copy->bytes});
    }
  }
}

}  // namespace headrace::tiers::gpu::emulated
