// The simulated step: every instruction of a program gets a start and an end, from durations,
// waits, queue order and shared resources.
//
// Resources: an NVMe folder serves one transfer at a time at its bandwidth (lanes share it); on the
// CPU device compute and host operations share the cores. A discrete-event loop always starts the
// instruction that can start first, so the order of service is that of readiness, as in the engine.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <vector>

#include "scheduler/plan/choices.hpp"

namespace headrace::plan {

namespace {

struct Timeline {
  std::vector<double> end;                 // per instruction; negative: not yet
  std::map<int, std::vector<int>> queues;  // queue number -> its instructions in order
  std::map<int, std::size_t> head;         // position in each
  std::map<int, double> queue_free;
  std::array<double, 4> resource_free{};  // by Resource
};

enum Resource : std::size_t { kCores = 0, kNvme = 1, kH2d = 2, kD2h = 3 };

Resource resource_of(const Instruction& instruction) {
  switch (instruction.queue) {
    case QueueKind::kNvme:
      return kNvme;
    case QueueKind::kH2d:
      return kH2d;
    case QueueKind::kD2h:
      return kD2h;
    case QueueKind::kCompute:
    case QueueKind::kHost:
      return kCores;
  }
  return kCores;
}

int queue_number(const Instruction& instruction) {
  return instruction.queue == QueueKind::kNvme ? 8 + instruction.lane
                                               : static_cast<int>(instruction.queue);
}

const char* cause_of(const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::kReadParam:
    case InstructionKind::kReadState:
      return "nvme_read";
    case InstructionKind::kWriteParam:
    case InstructionKind::kWriteState:
      return "nvme_write";
    case InstructionKind::kCopy:
      return instruction.queue == QueueKind::kH2d ? "h2d" : "d2h";
    case InstructionKind::kUpdate:
    case InstructionKind::kDecode:
      return "optimizer";
    default:
      return "host";
  }
}

// When the head of a queue can start, or a negative number while one of its waits has no end yet.
double ready_time(const Program& program, const Timeline& timeline, int number, double queue_free) {
  double ready = queue_free;
  for (const int wait : program.instructions[static_cast<std::size_t>(number)].waits) {
    const double end = timeline.end[static_cast<std::size_t>(wait)];
    if (end < 0) {
      return -1;
    }
    ready = std::max(ready, end);
  }
  return ready;
}

// The cause of the device's wait: follow, from the instruction that it waited for, the
// longest-waiting predecessor that is not compute.
const char* stall_cause(const Program& program, const Timeline& timeline, int number) {
  int last = -1;
  for (const int wait : program.instructions[static_cast<std::size_t>(number)].waits) {
    if (last < 0 || timeline.end[static_cast<std::size_t>(wait)] >
                        timeline.end[static_cast<std::size_t>(last)]) {
      last = wait;
    }
  }
  return last < 0 ? "host" : cause_of(program.instructions[static_cast<std::size_t>(last)]);
}

void account(const Instruction& instruction, Prediction& prediction) {
  switch (resource_of(instruction)) {
    case kNvme:
      prediction.busy_seconds["nvme"] += instruction.seconds;
      prediction.link_bytes[cause_of(instruction)] += instruction.link_bytes;
      break;
    case kH2d:
    case kD2h:
      prediction.busy_seconds[cause_of(instruction)] += instruction.seconds;
      prediction.link_bytes[cause_of(instruction)] += instruction.link_bytes;
      break;
    case kCores:
      prediction.busy_seconds["cores"] += instruction.seconds;
      if (instruction.queue == QueueKind::kCompute) {
        prediction.busy_seconds["device"] += instruction.seconds;
      }
      break;
  }
}

}  // namespace

Prediction simulate(const Program& program) {
  Timeline timeline;
  timeline.end.assign(program.instructions.size(), -1);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    timeline.queues[queue_number(program.instructions[i])].push_back(static_cast<int>(i));
  }
  Prediction prediction;
  double device_free = 0;
  for (std::size_t done = 0; done < program.instructions.size(); ++done) {
    int best = -1;
    int best_queue = 0;
    double best_start = std::numeric_limits<double>::infinity();
    double best_ready = 0;
    for (const auto& [queue, members] : timeline.queues) {
      const std::size_t at = timeline.head[queue];
      if (at == members.size()) {
        continue;
      }
      const double ready = ready_time(program, timeline, members[at], timeline.queue_free[queue]);
      if (ready < 0) {
        continue;
      }
      const double start =
          std::max(ready,
                   timeline.resource_free[resource_of(
                       program.instructions[static_cast<std::size_t>(members[at])])]);
      // Equal starts: the one that was ready first, as a fair lock would serve them.
      if (start < best_start || (start == best_start && ready < best_ready)) {
        best = members[at];
        best_queue = queue;
        best_start = start;
        best_ready = ready;
      }
    }
    const Instruction& instruction = program.instructions[static_cast<std::size_t>(best)];
    if (instruction.queue == QueueKind::kCompute) {
      if (best_start > device_free) {
        prediction.stall_seconds[best_ready > device_free ? stall_cause(program, timeline, best)
                                                          : "host"] += best_start - device_free;
      }
      device_free = best_start + instruction.seconds;
    }
    timeline.end[static_cast<std::size_t>(best)] = best_start + instruction.seconds;
    timeline.queue_free[best_queue] = timeline.end[static_cast<std::size_t>(best)];
    timeline.resource_free[resource_of(instruction)] = timeline.end[static_cast<std::size_t>(best)];
    timeline.head[best_queue]++;
    account(instruction, prediction);
    prediction.seconds = std::max(prediction.seconds, timeline.end[static_cast<std::size_t>(best)]);
  }
  for (const auto& [resource, seconds] : prediction.busy_seconds) {
    prediction.bound_seconds = std::max(prediction.bound_seconds, seconds);
  }
  return prediction;
}

}  // namespace headrace::plan
