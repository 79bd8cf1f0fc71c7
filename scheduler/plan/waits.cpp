// From accesses to waits: for every instruction, the earlier ones that it conflicts with, less what
// is implied.
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "core/assert.hpp"
#include "scheduler/plan/program.hpp"

namespace headrace::plan {

namespace {

struct Use {
  std::size_t begin = 0, end = 0;
  int instruction = 0;
  int queue = 0;
  bool write = false;
};

// The queue an instruction belongs to, as a number: lanes are queues of their own.
int queue_number(const Instruction& instruction) {
  constexpr int kFirstLane = 8;
  return instruction.queue == QueueKind::kNvme ? kFirstLane + instruction.lane
                                               : static_cast<int>(instruction.queue);
}

// For each instruction, the latest instruction of every queue that is known to come before it (a
// vector clock of program positions).
class Orders {
 public:
  explicit Orders(std::size_t count) : before_(count) {}

  [[nodiscard]] bool implied(int instruction, int queue, int earlier) const {
    const auto& clock = before_[static_cast<std::size_t>(instruction)];
    return static_cast<std::size_t>(queue) < clock.size() &&
           clock[static_cast<std::size_t>(queue)] >= earlier;
  }

  void merge(int instruction, int queue, int earlier) {
    auto& clock = before_[static_cast<std::size_t>(instruction)];
    const auto& other = before_[static_cast<std::size_t>(earlier)];
    if (clock.size() < std::max(other.size(), static_cast<std::size_t>(queue) + 1)) {
      clock.resize(std::max(other.size(), static_cast<std::size_t>(queue) + 1), -1);
    }
    for (std::size_t i = 0; i < other.size(); ++i) {
      clock[i] = std::max(clock[i], other[i]);
    }
    clock[static_cast<std::size_t>(queue)] =
        std::max(clock[static_cast<std::size_t>(queue)], earlier);
  }

 private:
  std::vector<std::vector<int>> before_;
};

std::vector<int> conflicts_of(const Instruction& instruction,
                              std::map<int, std::vector<Use>>& uses) {
  std::vector<int> conflicts;
  for (const Access& access : instruction.accesses) {
    if (access.buffer < 0 || access.bytes == 0) {
      continue;
    }
    const bool write = access.mode != AccessMode::kRead;
    for (const Use& use : uses[access.buffer]) {
      if ((write || use.write) && use.begin < access.offset + access.bytes &&
          access.offset < use.end) {
        conflicts.push_back(use.instruction);
      }
    }
  }
  std::sort(conflicts.begin(), conflicts.end(), std::greater<>());
  conflicts.erase(std::unique(conflicts.begin(), conflicts.end()), conflicts.end());
  return conflicts;
}

void remember(const Instruction& instruction, int number, std::map<int, std::vector<Use>>& uses) {
  for (const Access& access : instruction.accesses) {
    if (access.buffer < 0 || access.bytes == 0) {
      continue;
    }
    const Use use{.begin = access.offset,
                  .end = access.offset + access.bytes,
                  .instruction = number,
                  .queue = queue_number(instruction),
                  .write = access.mode != AccessMode::kRead};
    std::vector<Use>& of_buffer = uses[access.buffer];
    // What a write covers wholly is ordered before it, so whoever conflicts with the covered use
    // conflicts with this write as well. So it is with a read and earlier reads of its queue.
    std::erase_if(of_buffer, [&](const Use& old) {
      const bool ordered = use.write || (!old.write && old.queue == use.queue);
      return ordered && old.begin >= use.begin && old.end <= use.end;
    });
    of_buffer.push_back(use);
  }
}

}  // namespace

void derive_waits(Program& program) {
  std::map<int, std::vector<Use>> uses;
  std::map<int, int> last_of_queue;
  Orders orders(program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    Instruction& instruction = program.instructions[i];
    const int number = static_cast<int>(i);
    const int queue = queue_number(instruction);
    instruction.waits.clear();
    instruction.needed_by = -1;
    if (const auto last = last_of_queue.find(queue); last != last_of_queue.end()) {
      orders.merge(number, queue, last->second);
    }
    for (const int earlier :
         conflicts_of(instruction, uses)) {  // latest first: it implies most of the others
      HEADRACE_ASSERT(earlier < number, "an instruction waits for earlier ones only");
      const int other = queue_number(program.instructions[static_cast<std::size_t>(earlier)]);
      if (!orders.implied(number, other, earlier)) {
        instruction.waits.push_back(earlier);
        int& needed_by = program.instructions[static_cast<std::size_t>(earlier)].needed_by;
        needed_by = needed_by < 0 ? number : needed_by;
        orders.merge(number, other, earlier);
      }
    }
    last_of_queue[queue] = number;
    remember(instruction, number, uses);
  }
}

}  // namespace headrace::plan
