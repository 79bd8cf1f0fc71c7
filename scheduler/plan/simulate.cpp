// See simulate.hpp.
#include "scheduler/plan/simulate.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "core/assert.hpp"

namespace headrace::plan {

namespace {

enum Resource : std::size_t { kCores = 0, kNvmeRead, kNvmeWrite, kH2d, kD2h, kResources };

Resource resource_of(const Instruction& instruction) {
  switch (instruction.queue) {
    case QueueKind::kNvme:
      return is_read(instruction.kind) ? kNvmeRead : kNvmeWrite;
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

const char* cause_of(const Instruction& instruction) {
  switch (resource_of(instruction)) {
    case kNvmeRead:
      return "nvme_read";
    case kNvmeWrite:
      return "nvme_write";
    case kH2d:
      return "h2d";
    case kD2h:
      return "d2h";
    default:
      break;
  }
  return instruction.kind == InstructionKind::kUpdate ||
                 instruction.kind == InstructionKind::kDecode
             ? "optimizer"
             : "host";
}

// Who comes after an instruction: those that wait for it, and the next of its queue.
class Successors {
 public:
  explicit Successors(const Program& program) : open_(program.instructions.size(), 0) {
    const std::size_t count = program.instructions.size();
    std::vector<int> previous(count, -1);
    std::vector<int> last_of_queue;
    first_.assign(count + 1, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const auto queue = static_cast<std::size_t>(queue_number(program.instructions[i]));
      if (last_of_queue.size() <= queue) {
        last_of_queue.resize(queue + 1, -1);
      }
      previous[i] = last_of_queue[queue];
      last_of_queue[queue] = static_cast<int>(i);
      each_before(program, previous, i, [&](std::size_t before) {
        ++first_[before + 1];
        ++open_[i];
      });
    }
    for (std::size_t i = 0; i < count; ++i) {
      first_[i + 1] += first_[i];
    }
    after_.resize(static_cast<std::size_t>(first_[count]));
    std::vector<int> at(first_.begin(), first_.end() - 1);
    for (std::size_t i = 0; i < count; ++i) {
      each_before(program, previous, i, [&](std::size_t before) {
        after_[static_cast<std::size_t>(at[before]++)] = static_cast<int>(i);
      });
    }
  }

  [[nodiscard]] bool is_open(std::size_t instruction) const { return open_[instruction] > 0; }

  // Calls ready(successor) for each that waited for nothing else.
  template <class Ready>
  void close(std::size_t instruction, const Ready& ready) {
    for (int i = first_[instruction]; i < first_[instruction + 1]; ++i) {
      const int successor = after_[static_cast<std::size_t>(i)];
      if (--open_[static_cast<std::size_t>(successor)] == 0) {
        ready(static_cast<std::size_t>(successor));
      }
    }
  }

 private:
  template <class Each>
  static void each_before(const Program& program,
                          const std::vector<int>& previous,
                          std::size_t i,
                          const Each& each) {
    if (previous[i] >= 0) {
      each(static_cast<std::size_t>(previous[i]));
    }
    for (const int wait : program.instructions[i].waits) {
      each(static_cast<std::size_t>(wait));
    }
  }

  std::vector<int> open_;   // by instruction: of those before it, how many have not ended
  std::vector<int> first_;  // by instruction: its part of after_
  std::vector<int> after_;
};

class Simulator {
 public:
  Simulator(const Program& program, const Contention& contention)
      : program_(program), contention_(contention), successors_(program) {
    result_.spans.resize(program.instructions.size());
    kernels_left_.reserve(program.instructions.size());
    for (const Instruction& instruction : program.instructions) {
      kernels_left_.push_back(instruction.kernels);
    }
  }

  Simulation run() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      if (!successors_.is_open(i)) {
        make_ready(i);
      }
    }
    std::size_t ended = 0;
    while (start_what_can()) {
      ended += end_next() ? 1 : 0;
    }
    HEADRACE_ASSERT(ended == program_.instructions.size(), "a program runs to its end");
    result_.prediction = prediction();
    return std::move(result_);
  }

 private:
  struct Active {
    int instruction = -1;     // none
    double work_seconds = 0;  // that are left, alone
  };

  struct Waiting {
    std::uint64_t rank = 0;  // smaller first
    int instruction = 0;

    bool operator<(const Waiting& other) const {  // of a max-heap
      return std::pair(rank, instruction) > std::pair(other.rank, other.instruction);
    }
  };

  static constexpr std::uint64_t kBackground = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t kAfterHost = kBackground / 2;

  void make_ready(std::size_t i) {
    result_.spans[i].ready = now_;
    put(i);
  }

  void put(std::size_t i) {
    const Instruction& instruction = program_.instructions[i];
    const Resource resource = resource_of(instruction);
    std::uint64_t rank = arrivals_++;
    if (instruction.queue == QueueKind::kCompute) {
      rank += kAfterHost;  // all of the host's that is ready goes between two kernels
    } else if (instruction.queue == QueueKind::kNvme) {
      rank = instruction.needed_by >= 0 ? static_cast<std::uint64_t>(instruction.needed_by)
                                        : kBackground;
    }
    ready_[resource].push({.rank = rank, .instruction = static_cast<int>(i)});
  }

  // Returns whether anything runs.
  bool start_what_can() {
    bool any = false;
    for (std::size_t resource = 0; resource < kResources; ++resource) {
      if (active_[resource].instruction < 0 && !ready_[resource].empty() && !held_back(resource)) {
        start(resource, ready_[resource].top().instruction);
        ready_[resource].pop();
      }
      any = any || active_[resource].instruction >= 0;
    }
    return any;
  }

  // A write that nobody waits for gives way to reads: the engine lets little of it through.
  [[nodiscard]] bool held_back(std::size_t resource) const {
    return resource == kNvmeWrite && ready_[resource].top().rank == kBackground &&
           active_[kNvmeRead].instruction >= 0;
  }

  void start(std::size_t resource, int number) {
    const Instruction& instruction = program_.instructions[static_cast<std::size_t>(number)];
    active_[resource] = {.instruction = number,
                         .work_seconds = instruction.seconds / instruction.kernels};
    if (kernels_left_[static_cast<std::size_t>(number)]-- < instruction.kernels) {
      return;  // not its first
    }
    SimulatedSpan& span = result_.spans[static_cast<std::size_t>(number)];
    span.begin = now_;
    if (instruction.queue == QueueKind::kCompute) {
      if (now_ > device_free_) {
        const char* cause = span.ready > device_free_ ? stall_cause(instruction) : "host";
        stall_seconds_[cause] += now_ - device_free_;
      }
    }
  }

  // Of what the device waited for, the last to end.
  [[nodiscard]] const char* stall_cause(const Instruction& instruction) const {
    int last = -1;
    for (const int wait : instruction.waits) {
      if (last < 0 || result_.spans[static_cast<std::size_t>(wait)].end >
                          result_.spans[static_cast<std::size_t>(last)].end) {
        last = wait;
      }
    }
    return last < 0 ? "host" : cause_of(program_.instructions[static_cast<std::size_t>(last)]);
  }

  // Shares of the rates alone, by what is active.
  [[nodiscard]] std::array<double, kResources> speeds() const {
    const auto runs = [&](Resource resource) { return active_[resource].instruction >= 0; };
    const bool nvme = runs(kNvmeRead) || runs(kNvmeWrite);
    const bool copies = runs(kH2d) || runs(kD2h);
    const bool computes =
        runs(kCores) &&
        program_.instructions[static_cast<std::size_t>(active_[kCores].instruction)].queue ==
            QueueKind::kCompute;
    std::array<double, kResources> speed{};
    speed[kCores] =
        (nvme ? (computes ? contention_.compute_beside_nvme : contention_.update_beside_nvme)
              : 1.0) *
        (copies ? contention_.compute_beside_copy : 1.0);
    const double nvme_speed =
        (runs(kCores)
             ? (computes ? contention_.nvme_beside_compute : contention_.nvme_beside_update)
             : 1.0) *
        (runs(kNvmeRead) && runs(kNvmeWrite) ? contention_.nvme_beside_nvme : 1.0);
    speed[kNvmeRead] = speed[kNvmeWrite] = nvme_speed;
    speed[kH2d] = speed[kD2h] = runs(kCores) ? contention_.copy_beside_compute : 1.0;
    return speed;
  }

  // Lets time pass until the first of the active operations has ended, or a kernel of it. Returns
  // whether it was an operation.
  bool end_next() {
    const std::array<double, kResources> speed = speeds();
    std::size_t first = kResources;
    double passed = std::numeric_limits<double>::infinity();
    for (std::size_t resource = 0; resource < kResources; ++resource) {
      const Active& active = active_[resource];
      if (active.instruction >= 0 && active.work_seconds / speed[resource] < passed) {
        passed = active.work_seconds / speed[resource];
        first = resource;
      }
    }
    now_ += passed;
    for (std::size_t resource = 0; resource < kResources; ++resource) {
      if (active_[resource].instruction >= 0 && resource != first) {
        Active& active = active_[resource];
        active.work_seconds = std::max(0.0, active.work_seconds - passed * speed[resource]);
      }
    }
    const auto number = static_cast<std::size_t>(active_[first].instruction);
    active_[first] = {};
    if (kernels_left_[number] > 0) {
      put(number);
      return false;
    }
    const Instruction& instruction = program_.instructions[number];
    result_.spans[number].end = now_;
    if (instruction.queue == QueueKind::kCompute) {
      device_free_ = now_;
    }
    account(instruction);
    successors_.close(number, [&](std::size_t successor) { make_ready(successor); });
    return true;
  }

  void account(const Instruction& instruction) {
    const Resource resource = resource_of(instruction);
    busy_seconds_[resource] += instruction.seconds;
    bytes_[resource] += instruction.link_bytes;
    if (instruction.queue == QueueKind::kCompute) {
      device_seconds_ += instruction.seconds;
    }
  }

  [[nodiscard]] Prediction prediction() const {
    Prediction prediction;
    prediction.seconds = now_;
    prediction.stall_seconds = stall_seconds_;
    prediction.busy_seconds = {{"cores", busy_seconds_[kCores]},
                               {"device", device_seconds_},
                               {"nvme", busy_seconds_[kNvmeRead] + busy_seconds_[kNvmeWrite]},
                               {"h2d", busy_seconds_[kH2d]},
                               {"d2h", busy_seconds_[kD2h]}};
    prediction.link_bytes = {{"nvme_read", bytes_[kNvmeRead]},
                             {"nvme_write", bytes_[kNvmeWrite]},
                             {"h2d", bytes_[kH2d]},
                             {"d2h", bytes_[kD2h]}};
    std::erase_if(prediction.busy_seconds, [](const auto& busy) { return busy.second <= 0; });
    std::erase_if(prediction.link_bytes, [](const auto& bytes) { return bytes.second == 0; });
    for (const auto& [resource, seconds] : prediction.busy_seconds) {
      prediction.bound_seconds = std::max(prediction.bound_seconds, seconds);
    }
    return prediction;
  }

  const Program& program_;
  const Contention contention_;
  Successors successors_;
  std::array<std::priority_queue<Waiting>, kResources> ready_;
  std::array<Active, kResources> active_;
  std::vector<int> kernels_left_;  // by instruction: that have not begun
  std::uint64_t arrivals_ = 0;
  double now_ = 0;
  double device_free_ = 0;                         // when the last compute operation ended
  std::array<double, kResources> busy_seconds_{};  // alone
  std::array<std::size_t, kResources> bytes_{};
  double device_seconds_ = 0;
  std::map<std::string, double> stall_seconds_;
  Simulation result_;
};

double share_or_1(double measured) {
  return measured > 0 ? std::min(measured, 1.0) : 1.0;
}

}  // namespace

Contention contention_of(const MachineProfile& machine, const PlanSettings& settings) {
  Contention contention;
  contention.compute_beside_nvme = share_or_1(machine.compute_beside_nvme);
  contention.update_beside_nvme = share_or_1(machine.update_beside_nvme);
  contention.nvme_beside_compute = share_or_1(machine.nvme_beside_compute);
  contention.nvme_beside_update = share_or_1(machine.nvme_beside_update);
  contention.compute_beside_copy = share_or_1(machine.compute_beside_copy);
  contention.copy_beside_compute = share_or_1(machine.copy_beside_compute);
  // A capped link is held back by itself, not by the drive.
  if (!settings.nvme_read_cap && !settings.nvme_write_cap && machine.nvme_mixed_bytes_per_s > 0) {
    const double alone = machine.nvme_read_bytes_per_s + machine.nvme_write_bytes_per_s;
    contention.nvme_beside_nvme = share_or_1(machine.nvme_mixed_bytes_per_s / alone);
  }
  return contention;
}

Simulation simulate(const Program& program, const Contention& contention) {
  return Simulator(program, contention).run();
}

}  // namespace headrace::plan
