// From accesses to waits: for every instruction, the earlier ones that it conflicts with, less what
// is implied.
//
// Memory is compared by address, so that buffers may share it. Each space (a tier's arena, or the
// extents of one kStore buffer) is a line of segments that know who wrote them last and who has
// read them since: an instruction conflicts with those, and through them with all before.
#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "core/assert.hpp"
#include "scheduler/plan/program.hpp"

namespace headrace::plan {

namespace {

struct Reader {
  int queue = 0;
  int instruction = 0;
};

struct Segment {
  std::size_t end = 0;
  int writer = -1;              // none
  std::vector<Reader> readers;  // since; the last of each queue
};

// One space: disjoint segments by where they begin. What nobody has used has none.
class Space {
 public:
  // Adds to `conflicts` whom the access conflicts with, and remembers it.
  void use(
      std::size_t begin, std::size_t end, bool write, Reader user, std::vector<int>& conflicts) {
    cut(begin);
    cut(end);
    auto at = segments_.lower_bound(begin);
    if (write) {
      for (auto it = at; it != segments_.end() && it->first < end; ++it) {
        append(it->second, true, conflicts);
      }
      // Whoever conflicts with what is covered conflicts with this write as well.
      at = segments_.erase(at, segments_.lower_bound(end));
      segments_.emplace_hint(
          at, begin, Segment{.end = end, .writer = user.instruction, .readers = {}});
      return;
    }
    std::size_t covered = begin;  // so far
    for (; at != segments_.end() && at->first < end; ++at) {
      if (covered < at->first) {
        segments_.emplace_hint(
            at, covered, Segment{.end = at->first, .writer = -1, .readers = {user}});
      }
      append(at->second, false, conflicts);
      add_reader(at->second, user);
      covered = at->second.end;
    }
    if (covered < end) {
      segments_.emplace_hint(at, covered, Segment{.end = end, .writer = -1, .readers = {user}});
    }
  }

 private:
  void cut(std::size_t position) {
    auto after = segments_.upper_bound(position);
    if (after == segments_.begin()) {
      return;
    }
    const auto within = std::prev(after);
    if (within->first < position && position < within->second.end) {
      Segment second = within->second;
      within->second.end = position;
      segments_.emplace_hint(after, position, std::move(second));
    }
  }

  static void append(const Segment& segment, bool readers, std::vector<int>& conflicts) {
    if (segment.writer >= 0) {
      conflicts.push_back(segment.writer);
    }
    if (readers) {
      for (const Reader& reader : segment.readers) {
        conflicts.push_back(reader.instruction);
      }
    }
  }

  static void add_reader(Segment& segment, Reader user) {
    for (Reader& reader : segment.readers) {
      if (reader.queue == user.queue) {
        reader.instruction = user.instruction;
        return;
      }
    }
    segment.readers.push_back(user);
  }

  std::map<std::size_t, Segment> segments_;
};

class Spaces {
 public:
  explicit Spaces(std::span<const Buffer> buffers)
      : buffers_(buffers), spaces_(kArenas + buffers.size()) {}

  void use(const Access& access, Reader user, std::vector<int>& conflicts) {
    if (access.buffer < 0 || access.bytes == 0) {
      return;
    }
    const auto index = static_cast<std::size_t>(access.buffer);
    const Buffer& buffer = buffers_[index];
    const bool stored = buffer.tier == MemoryTier::kStore;
    Space& space = spaces_[stored ? kArenas + index : static_cast<std::size_t>(buffer.tier)];
    const std::size_t begin = access.offset + (stored ? 0 : buffer.offset);
    space.use(begin, begin + access.bytes, access.mode != AccessMode::kRead, user, conflicts);
  }

 private:
  static constexpr std::size_t kArenas = 2;  // device and host, the first of the tiers

  std::span<const Buffer> buffers_;
  std::vector<Space> spaces_;
};

// For each instruction, the latest instruction of every queue that is known to come before it (a
// vector clock of program positions).
class Orders {
 public:
  Orders(std::size_t instructions, std::size_t queues)
      : queues_(queues), before_(instructions * queues, -1) {}

  [[nodiscard]] bool implied(int instruction, int queue, int earlier) const {
    return before_[at(instruction) + static_cast<std::size_t>(queue)] >= earlier;
  }

  void merge(int instruction, int queue, int earlier) {
    const std::size_t target = at(instruction), source = at(earlier);
    for (std::size_t i = 0; i < queues_; ++i) {
      before_[target + i] = std::max(before_[target + i], before_[source + i]);
    }
    int& own = before_[target + static_cast<std::size_t>(queue)];
    own = std::max(own, earlier);
  }

 private:
  [[nodiscard]] std::size_t at(int instruction) const {
    return static_cast<std::size_t>(instruction) * queues_;
  }

  std::size_t queues_;
  std::vector<int> before_;
};

}  // namespace

int queue_number(const Instruction& instruction) {
  constexpr int kFirstLane = 4;  // after the other kinds
  static_assert(static_cast<int>(QueueKind::kNvme) == kFirstLane);
  return instruction.queue == QueueKind::kNvme ? kFirstLane + instruction.lane
                                               : static_cast<int>(instruction.queue);
}

void derive_waits(Program& program, std::span<const Buffer> buffers) {
  int queues = 0;
  for (const Instruction& instruction : program.instructions) {
    queues = std::max(queues, queue_number(instruction) + 1);
  }
  Spaces spaces(buffers);
  std::vector<int> last_of_queue(static_cast<std::size_t>(queues), -1);
  Orders orders(program.instructions.size(), static_cast<std::size_t>(queues));
  std::vector<int> conflicts;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    Instruction& instruction = program.instructions[i];
    const int number = static_cast<int>(i);
    const int queue = queue_number(instruction);
    instruction.waits.clear();
    instruction.needed_by = -1;
    int& last = last_of_queue[static_cast<std::size_t>(queue)];
    if (last >= 0) {
      orders.merge(number, queue, last);
    }
    last = number;
    conflicts.clear();
    for (const Access& access : instruction.accesses) {
      spaces.use(access, {.queue = queue, .instruction = number}, conflicts);
    }
    // Latest first: it implies most of the others.
    std::sort(conflicts.begin(), conflicts.end(), std::greater<>());
    conflicts.erase(std::unique(conflicts.begin(), conflicts.end()), conflicts.end());
    for (const int earlier : conflicts) {
      if (earlier == number) {  // an operand of its own
        continue;
      }
      HEADRACE_ASSERT(earlier < number, "an instruction waits for earlier ones only");
      Instruction& other = program.instructions[static_cast<std::size_t>(earlier)];
      const int other_queue = queue_number(other);
      if (!orders.implied(number, other_queue, earlier)) {
        instruction.waits.push_back(earlier);
        other.needed_by = other.needed_by < 0 ? number : other.needed_by;
        orders.merge(number, other_queue, earlier);
      }
    }
  }
}

}  // namespace headrace::plan
