// Spans of a run as Chrome trace events (chrome://tracing, ui.perfetto.dev).
//
// Invariant: the buffer is allocated when made; record() neither allocates nor locks, and what does
// not fit is counted, not lost in silence. Times are of the monotonic clock, in nanoseconds.
// Thread: record() from any, at once; add_track() and write() from the owner, while nobody records.
// Failure: write() returns the file's error.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace headrace {

// A row of the picture: a queue, a link or a thread.
struct TraceTrack {
  std::uint32_t index = 0;
};

struct TraceSpan {
  std::string_view name;  // the first 31 bytes are kept
  TraceTrack track;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t id = -1;  // a step, unit or instruction; written as args.id unless negative
};

class TraceRecorder {
 public:
  // 64 bytes an event.
  explicit TraceRecorder(std::size_t events_max);

  [[nodiscard]] static std::int64_t now_ns();

  [[nodiscard]] TraceTrack add_track(std::string name);
  void record(const TraceSpan& span) noexcept;

  [[nodiscard]] std::size_t events_recorded() const;
  [[nodiscard]] std::size_t events_dropped() const;

  // One JSON document, times relative to the earliest span; the counts are in its otherData.
  [[nodiscard]] Status write(const std::string& path) const;

 private:
  struct Event {
    std::array<char, 32> name;
    std::int64_t begin_ns;
    std::int64_t end_ns;
    std::int64_t id;
    std::uint32_t track;
    std::atomic<bool> written;
  };

  std::size_t events_max_;
  std::unique_ptr<Event[]> events_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::string> tracks_;
};

// Records from its construction to its end; a null recorder records nothing.
class TraceScope {
 public:
  TraceScope(TraceRecorder* recorder, TraceTrack track, std::string_view name, std::int64_t id = -1)
      : recorder_(recorder),
        span_{.name = name, .track = track, .begin_ns = 0, .end_ns = 0, .id = id} {
    if (recorder_ != nullptr) {
      span_.begin_ns = TraceRecorder::now_ns();
    }
  }

  ~TraceScope() {
    if (recorder_ != nullptr) {
      span_.end_ns = TraceRecorder::now_ns();
      recorder_->record(span_);
    }
  }

  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceRecorder* recorder_;
  TraceSpan span_;
};

}  // namespace headrace
