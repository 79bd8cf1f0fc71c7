// The trace buffer and its JSON form (core/trace.hpp).
#include "core/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>

#include "core/files.hpp"
#include "core/json.hpp"

namespace headrace {

namespace {

// Microseconds with all nanoseconds, as the format wants them.
std::string microseconds(std::int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

}  // namespace

TraceRecorder::TraceRecorder(std::size_t events_max)
    : events_max_(events_max), events_(std::make_unique<Event[]>(events_max)) {}

std::int64_t TraceRecorder::now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

TraceTrack TraceRecorder::add_track(std::string name) {
  tracks_.push_back(std::move(name));
  return {.index = static_cast<std::uint32_t>(tracks_.size() - 1)};
}

void TraceRecorder::record(const TraceSpan& span) noexcept {
  const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= events_max_) {
    return;  // counted by next_
  }
  Event& event = events_[index];
  const std::size_t length = std::min(span.name.size(), event.name.size() - 1);
  std::copy_n(span.name.begin(), length, event.name.begin());
  event.name[length] = '\0';
  event.begin_ns = span.begin_ns;
  event.end_ns = span.end_ns;
  event.id = span.id;
  event.track = span.track.index;
  event.written.store(true, std::memory_order_release);
}

std::size_t TraceRecorder::events_recorded() const {
  return std::min(next_.load(std::memory_order_relaxed), events_max_);
}

std::size_t TraceRecorder::events_dropped() const {
  return next_.load(std::memory_order_relaxed) - events_recorded();
}

Status TraceRecorder::write(const std::string& path) const {
  const std::size_t count = events_recorded();
  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < count; ++i) {
    origin_ns = std::min(origin_ns, events_[i].begin_ns);
  }
  fmt::memory_buffer out;
  auto append = std::back_inserter(out);
  fmt::format_to(append,
                 "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"events_recorded\":{},"
                 "\"events_dropped\":{}}},\"traceEvents\":[",
                 count,
                 events_dropped());
  const char* separator = "\n";
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    fmt::format_to(append,
                   "{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\","
                   "\"args\":{{\"name\":{}}}}}",
                   separator,
                   i,
                   Json(tracks_[i]).dump());
    separator = ",\n";
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Event& event = events_[i];
    if (!event.written.load(std::memory_order_acquire)) {
      continue;  // being recorded at this moment
    }
    fmt::format_to(append,
                   "{}{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":{},\"ts\":{},\"dur\":{}",
                   separator,
                   event.track,
                   Json(event.name.data()).dump(),
                   microseconds(event.begin_ns - origin_ns),
                   microseconds(std::max<std::int64_t>(0, event.end_ns - event.begin_ns)));
    if (event.id >= 0) {
      fmt::format_to(append, ",\"args\":{{\"id\":{}}}", event.id);
    }
    fmt::format_to(append, "}}");
    separator = ",\n";
  }
  fmt::format_to(append, "\n]}}\n");
  return write_file_atomically(path, {out.data(), out.size()});
}

}  // namespace headrace
