// Vector clocks and the shadow of memory: which access touched each range last.
//
// Timeline 0 is the host; every queue gets the next number when it is first seen, so a process that
// makes many queues does not grow the clocks of a checker that sees few. A timeline's own component
// counts its submissions and waits, so it identifies a prefix of the queue: whoever's clock has
// component c of queue q has everything that q's first c entries came after. Hence "is A before B"
// is one comparison, and an event is implied when its own component is covered.
//
// Shadow: disjoint segments per space, each with its last write and the reads since that no later
// read is ordered after. Thread: any, one mutex. Failure: none; races are results.
#include "tiers/race_checker.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace headrace::tiers {

namespace {

constexpr std::size_t kHost = 0;

// Indexed by timeline; a missing component is 0.
using Clock = std::vector<std::uint64_t>;

std::uint64_t component(const Clock& clock, std::size_t timeline) {
  return timeline < clock.size() ? clock[timeline] : 0;
}

void merge(Clock& target, const Clock& source) {
  if (target.size() < source.size()) {
    target.resize(source.size(), 0);
  }
  for (std::size_t i = 0; i < source.size(); ++i) {
    target[i] = std::max(target[i], source[i]);
  }
}

// The clock of a queue as an event captured it.
struct EventClock {
  std::uint64_t ticket = 0;
  Clock clock;
};

struct Timeline {
  std::string name;
  Clock clock = {};
  std::uint64_t host_version = 0;  // of the host's clock, when it was last merged into this one
  std::deque<EventClock> recorded =
      {};  // ascending tickets; those that the host covers are dropped
};

// An operation as the shadow remembers it. `at` is its component of its timeline; 0: no access.
struct Access {
  std::size_t timeline = 0;
  std::uint64_t at = 0;
  const char* name = "";
  std::uint64_t id = 0;
};

struct Segment {
  std::uint64_t end = 0;
  Access write = {};
  std::vector<Access> reads = {};
};

enum class Kind : std::uint8_t { kRead, kWrite };

const char* verb(Kind kind) {
  return kind == Kind::kRead ? "reads" : "writes";
}

// The operation that is being checked.
struct Current {
  Access access;
  const Clock* clock = nullptr;

  [[nodiscard]] bool comes_after(const Access& other) const {
    return other.at <= component(*clock, other.timeline);
  }
};

struct Conflict {
  Access other;
  Kind kind = Kind::kRead;
  Kind other_kind = Kind::kRead;
  MemorySpan::Space space = MemorySpan::Space::kMemory;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::string hex(std::uint64_t value) {
  std::array<char, 17> digits = {};
  std::size_t at = digits.size() - 1;
  do {
    digits[--at] = "0123456789abcdef"[value % 16];
    value /= 16;
  } while (value != 0);
  return std::string("0x") + &digits[at];
}

std::string range_text(const Conflict& conflict) {
  const bool memory = conflict.space == MemorySpan::Space::kMemory;
  return std::string(memory ? "memory [" : "storage [") +
         (memory ? hex(conflict.begin) : std::to_string(conflict.begin)) + ", +" +
         std::to_string(conflict.end - conflict.begin) + ")";
}

// What was last done to each range of one space.
class Shadow {
 public:
  explicit Shadow(MemorySpan::Space space) : space_(space) {}

  void read(const Current& current, const MemorySpan& span, std::vector<Conflict>& conflicts) {
    const std::uint64_t end = span.begin + span.bytes;
    split_at(span.begin);
    split_at(end);
    std::uint64_t begin = span.begin;
    while (begin < end) {
      auto segment = segments_.lower_bound(begin);
      if (segment == segments_.end() || segment->first > begin) {
        const std::uint64_t gap_end =
            segment == segments_.end() ? end : std::min(end, segment->first);
        segment = segments_.emplace_hint(segment, begin, Segment{.end = gap_end});
      }
      read_segment(current, segment->first, segment->second, conflicts);
      begin = segment->second.end;
    }
  }

  void write(const Current& current, const MemorySpan& span, std::vector<Conflict>& conflicts) {
    const std::uint64_t end = span.begin + span.bytes;
    split_at(span.begin);
    split_at(end);
    auto segment = segments_.lower_bound(span.begin);
    while (segment != segments_.end() && segment->first < end) {
      check(current, Kind::kWrite, segment->second.write, Kind::kWrite, *segment, conflicts);
      for (const Access& read : segment->second.reads) {
        check(current, Kind::kWrite, read, Kind::kRead, *segment, conflicts);
      }
      segment = segments_.erase(segment);
    }
    segments_.emplace_hint(segment, span.begin, Segment{.end = end, .write = current.access});
  }

 private:
  using Segments = std::map<std::uint64_t, Segment>;  // by begin

  void split_at(std::uint64_t place) {
    auto after = segments_.upper_bound(place);
    if (after == segments_.begin()) {
      return;
    }
    auto segment = std::prev(after);
    if (segment->first == place || segment->second.end <= place) {
      return;
    }
    Segment tail = segment->second;
    segment->second.end = place;
    segments_.emplace_hint(after, place, std::move(tail));
  }

  void read_segment(const Current& current,
                    std::uint64_t begin,
                    Segment& segment,
                    std::vector<Conflict>& conflicts) const {
    const Segments::value_type place(begin, Segment{.end = segment.end});
    check(current, Kind::kRead, segment.write, Kind::kWrite, place, conflicts);
    // Whoever comes after this read comes after the reads that it comes after.
    std::erase_if(segment.reads, [&](const Access& read) { return current.comes_after(read); });
    segment.reads.push_back(current.access);
  }

  void check(const Current& current,
             Kind kind,
             const Access& other,
             Kind other_kind,
             const Segments::value_type& segment,
             std::vector<Conflict>& conflicts) const {
    if (current.comes_after(other)) {
      return;
    }
    const std::uint64_t end = segment.second.end;
    for (Conflict& known : conflicts) {
      if (known.other.timeline == other.timeline && known.other.at == other.at &&
          known.kind == kind && known.other_kind == other_kind && known.space == space_ &&
          known.end == segment.first) {
        known.end = end;  // the next segment of the same overlap
        return;
      }
    }
    conflicts.push_back({other, kind, other_kind, space_, segment.first, end});
  }

  MemorySpan::Space space_;
  Segments segments_;
};

}  // namespace

struct RaceChecker::State {
  mutable std::mutex mutex;
  std::vector<Timeline> timelines{Timeline{.name = "the host"}};
  std::unordered_map<int, std::size_t> timeline_of;  // by Queue::index
  std::uint64_t host_version = 1;                    // changes with the host's clock
  Shadow memory{MemorySpan::Space::kMemory};
  Shadow storage{MemorySpan::Space::kStorage};
  std::unordered_set<std::string> names;  // operations' names may die before the checker
  std::vector<Conflict> conflicts;        // of the operation being checked
  std::vector<Race> races;
  std::unordered_set<std::string> race_texts;  // a plan repeats its races every step
  std::uint64_t race_count = 0;
  std::uint64_t operations_checked = 0;

  // Waits of queues for others, and of the host.
  struct Waits {
    std::uint64_t checked = 0;
    std::uint64_t implied = 0;
    std::vector<ImpliedWait> list;  // of the implied ones
    std::optional<std::uint64_t> leave_out;
  };

  Waits queue_waits;
  Waits host_waits;
  std::string left_out;
  // The event of a host's wait that was left out, until the host does something: its timeline and
  // component.
  std::optional<std::pair<std::size_t, std::uint64_t>> missing;
  bool left_out_was_implied = false;

  std::size_t timeline(const Queue& queue) {
    const auto [found, is_new] = timeline_of.try_emplace(queue.index(), timelines.size());
    if (is_new) {
      timelines.push_back({.name = queue.name()});
    }
    return found->second;
  }

  // Advances a queue's clock: everything that the host has waited for comes before what follows.
  void tick(std::size_t index) {
    Timeline& line = timelines[index];
    if (missing) {
      left_out_was_implied = missing->second <= component(timelines[kHost].clock, missing->first);
      missing.reset();
    }
    if (index == kHost) {
      ++host_version;
    } else if (line.host_version != host_version) {
      merge(line.clock, timelines[kHost].clock);
      line.host_version = host_version;
    }
    if (line.clock.size() <= index) {
      line.clock.resize(index + 1, 0);
    }
    ++line.clock[index];
  }

  // The clock that an event captured; null when the host covers it (or nothing had been submitted).
  [[nodiscard]] const Clock* event_clock(std::size_t index, std::uint64_t ticket) const {
    const auto& recorded = timelines[index].recorded;
    // An event that was not recorded counts as the last recorded one before it.
    const auto after = std::upper_bound(
        recorded.begin(),
        recorded.end(),
        ticket,
        [](std::uint64_t wanted, const EventClock& event) { return wanted < event.ticket; });
    return after == recorded.begin() ? nullptr : &std::prev(after)->clock;
  }

  void drop_events_that_the_host_covers() {
    const Clock& host = timelines[kHost].clock;
    for (std::size_t index = 1; index < timelines.size(); ++index) {
      auto& recorded = timelines[index].recorded;
      while (!recorded.empty() &&
             component(recorded.front().clock, index) <= component(host, index)) {
        recorded.pop_front();
      }
    }
  }

  void check(std::size_t index, const Operation& operation) {
    tick(index);
    ++operations_checked;
    const Clock& clock = timelines[index].clock;
    const Current current{.access = {.timeline = index,
                                     .at = clock[index],
                                     .name = names.insert(operation.name).first->c_str(),
                                     .id = operation.id},
                          .clock = &clock};
    conflicts.clear();
    for (const MemorySpan& span : operation.reads) {
      if (span.bytes > 0) {
        shadow(span).read(current, span, conflicts);
      }
    }
    for (const MemorySpan& span : operation.writes) {
      if (span.bytes > 0) {
        shadow(span).write(current, span, conflicts);
      }
    }
    for (const Conflict& conflict : conflicts) {
      report(current, conflict);
    }
  }

  // Counts a wait of `index` for an event of `other`. Null: there is nothing to merge, since it is
  // implied or left out.
  const Clock* note_wait(Waits& waits, std::size_t index, std::size_t other, std::uint64_t ticket) {
    const std::uint64_t number = waits.checked++;
    const Clock* captured = event_clock(other, ticket);
    const bool implied = captured == nullptr ||
                         component(*captured, other) <= component(timelines[index].clock, other);
    const bool leaves_out = waits.leave_out == number;
    if (!implied && !leaves_out) {
      return captured;
    }
    std::string text = timelines[index].name + " for ticket " + std::to_string(ticket) + " of " +
                       timelines[other].name;
    if (leaves_out) {
      left_out = std::move(text);
      if (index == kHost) {
        missing = {other, captured == nullptr ? 0 : component(*captured, other)};
      }
      return nullptr;
    }
    ++waits.implied;
    if (waits.list.size() < kRacesMax) {
      waits.list.push_back({.number = number, .text = std::move(text)});
    }
    return nullptr;
  }

  Shadow& shadow(const MemorySpan& span) {
    return span.space == MemorySpan::Space::kMemory ? memory : storage;
  }

  void report(const Current& current, const Conflict& conflict) {
    ++race_count;
    if (races.size() >= kRacesMax) {
      return;
    }
    std::string text = describe(current.access) + " " + verb(conflict.kind) + " " +
                       range_text(conflict) + " that " + describe(conflict.other) + " " +
                       verb(conflict.other_kind) + "; no wait orders them";
    if (race_texts.insert(text).second) {
      races.push_back({std::move(text)});
    }
  }

  [[nodiscard]] std::string describe(const Access& access) const {
    return "'" + std::string(access.name) + "' (#" + std::to_string(access.id) + " on " +
           timelines[access.timeline].name + ")";
  }
};

RaceChecker::RaceChecker() : state_(std::make_unique<State>()) {}

RaceChecker::~RaceChecker() = default;

void RaceChecker::on_submit(const Queue& queue, const Operation& operation) {
  const std::scoped_lock lock(state_->mutex);
  state_->check(state_->timeline(queue), operation);
}

void RaceChecker::on_host_access(const Operation& operation) {
  const std::scoped_lock lock(state_->mutex);
  state_->check(kHost, operation);
}

void RaceChecker::on_record(const Queue& queue, std::uint64_t ticket) {
  const std::scoped_lock lock(state_->mutex);
  const std::size_t index = state_->timeline(queue);
  Timeline& line = state_->timelines[index];
  // The first clock of a ticket counts: the event may be done before anything that came later.
  const bool known = !line.recorded.empty() && line.recorded.back().ticket >= ticket;
  const bool covered =
      component(line.clock, index) <= component(state_->timelines[kHost].clock, index);
  if (!known && !covered) {
    line.recorded.push_back({ticket, line.clock});
  }
}

bool RaceChecker::on_wait(const Queue& queue, const Event& event) {
  if (event.queue() == nullptr || event.queue() == &queue) {
    return true;
  }
  const std::scoped_lock lock(state_->mutex);
  const std::size_t index = state_->timeline(queue);
  const std::size_t other = state_->timeline(*event.queue());
  state_->tick(index);
  const bool leaves_out = state_->queue_waits.leave_out == state_->queue_waits.checked;
  if (const Clock* captured =
          state_->note_wait(state_->queue_waits, index, other, event.ticket())) {
    merge(state_->timelines[index].clock, *captured);
  }
  return !leaves_out;
}

void RaceChecker::on_host_wait(const Event& event) {
  if (event.queue() == nullptr) {
    return;
  }
  const std::scoped_lock lock(state_->mutex);
  const std::size_t other = state_->timeline(*event.queue());
  if (const Clock* captured = state_->note_wait(state_->host_waits, kHost, other, event.ticket())) {
    merge(state_->timelines[kHost].clock, *captured);
    ++state_->host_version;
    state_->drop_events_that_the_host_covers();
  }
}

void RaceChecker::leave_out_wait(std::uint64_t number) {
  const std::scoped_lock lock(state_->mutex);
  state_->queue_waits.leave_out = number;
}

void RaceChecker::leave_out_host_wait(std::uint64_t number) {
  const std::scoped_lock lock(state_->mutex);
  state_->host_waits.leave_out = number;
}

std::string RaceChecker::left_out() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->left_out;
}

bool RaceChecker::left_out_was_implied() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->left_out_was_implied;
}

std::vector<Race> RaceChecker::races() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->races;
}

std::uint64_t RaceChecker::race_count() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->race_count;
}

std::uint64_t RaceChecker::operations_checked() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->operations_checked;
}

std::uint64_t RaceChecker::waits_checked() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queue_waits.checked;
}

std::uint64_t RaceChecker::implied_waits() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queue_waits.implied;
}

std::uint64_t RaceChecker::host_waits_checked() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->host_waits.checked;
}

std::vector<ImpliedWait> RaceChecker::implied_queue_waits() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queue_waits.list;
}

std::vector<ImpliedWait> RaceChecker::implied_host_waits() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->host_waits.list;
}

std::size_t RaceChecker::event_clocks_held() const {
  const std::scoped_lock lock(state_->mutex);
  std::size_t held = 0;
  for (const Timeline& line : state_->timelines) {
    held += line.recorded.size();
  }
  return held;
}

}  // namespace headrace::tiers
