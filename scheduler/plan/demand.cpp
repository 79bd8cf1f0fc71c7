// See demand.hpp.
#include "scheduler/plan/demand.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "scheduler/plan/residency.hpp"
#include "scheduler/plan/search.hpp"

namespace headrace::plan {

namespace {

constexpr std::int64_t kPageBytes = 4096;

std::array<const std::vector<int>*, kSlotKinds> slots_of(const Layout& layout) {
  return {&layout.weight_slots,
          &layout.gradient_slots,
          &layout.staging_param,
          &layout.staging_state,
          &layout.staging_weights,
          &layout.landing};
}

std::int64_t paged_bytes(const Plan& plan, int buffer) {
  const auto bytes =
      static_cast<std::int64_t>(plan.buffers[static_cast<std::size_t>(buffer)].bytes);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// A layout's arenas, slots by themselves.
struct Measured {
  TierBytes bytes{};
  std::array<std::int64_t, kSlotKinds> slot_bytes{};
  std::array<std::array<std::int64_t, kSlotKinds>, kTiers> slots{};
};

Measured measure(const Candidate& candidate) {
  const Plan& plan = candidate.plan;
  Measured measured;
  measured.bytes = {static_cast<std::int64_t>(plan.host_arena_bytes),
                    static_cast<std::int64_t>(plan.device_arena_bytes)};
  const auto lists = slots_of(candidate.layout);
  for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
    for (const int buffer : *lists[kind]) {
      const bool device =
          plan.buffers[static_cast<std::size_t>(buffer)].tier == MemoryTier::kDevice;
      const std::int64_t bytes = paged_bytes(plan, buffer);
      measured.slot_bytes[kind] = bytes;
      measured.slots[device ? 1 : 0][kind] += 1;
      measured.bytes[device ? 1 : 0] -= bytes;
    }
  }
  return measured;
}

// Counts what the programs of a steady step ask, by unit. What belongs to none is the first's.
class Count {
 public:
  Count(const Plan& plan, std::vector<Asks>& asked)
      : plan_(plan), asked_(asked), held_(plan.update == Update::kHeld) {}

  void add(const Program& program, bool drains) {
    read_.clear();
    before_ = !drains;
    drains_ = drains;
    // What is read for the next step was read for this one by the step before.
    for (const Instruction& instruction : program.instructions) {
      if (held_ && is_ahead(instruction)) {
        read_.insert({instruction.kind, instruction.unit, instruction.index});
      }
    }
    for (const Instruction& instruction : program.instructions) {
      before_ = before_ && instruction.kind != InstructionKind::kHeadGradient;
      add(instruction);
    }
  }

 private:
  static bool is_ahead(const Instruction& instruction) {
    return is_read(instruction.kind) && instruction.lane >= kLanes - kPrefetchLanes;
  }

  // The first of its kind for a tile.
  [[nodiscard]] bool is_first(const Instruction& instruction) {
    return read_.insert({instruction.kind, instruction.unit, instruction.index}).second;
  }

  void add(const Instruction& instruction) {
    auto& asked = asked_[static_cast<std::size_t>(std::max(instruction.unit, 0))];
    const bool reads = is_read(instruction.kind);
    Asked what = kCoresBefore;
    switch (instruction.queue) {
      case QueueKind::kNvme:
        what = !reads                  ? (drains_ ? kDrainWritten : kWritten)
               : is_ahead(instruction) ? (held_ ? kReadBefore : kDrainRead)
               : drains_               ? kDrainRead
               : is_first(instruction) ? kReadBefore
                                       : kReadAgain;
        asked[kReads] += reads ? 1 : 0;
        asked[kNvmeBytes] += what == kReadAgain ? 0 : static_cast<double>(instruction.link_bytes);
        break;
      case QueueKind::kH2d:
        what = drains_                            ? kDrainH2d
               : instruction.unit < 0             ? kH2dBefore
               : is_first(instruction) && before_ ? kH2dBefore
                                                  : kH2dAgain;
        if (instruction.unit < 0 && !before_) {  // an input that was offloaded
          return;
        }
        asked[kCopiedBytes] += what == kH2dAgain ? 0 : static_cast<double>(instruction.link_bytes);
        break;
      case QueueKind::kD2h:
        what = kD2h;
        break;
      case QueueKind::kCompute:
      case QueueKind::kHost: {
        // An update leaves floats as decoding does.
        const bool makes_floats = instruction.kind == InstructionKind::kDecode ||
                                  instruction.kind == InstructionKind::kUpdate;
        const bool again =
            makes_floats &&
            !read_.insert({InstructionKind::kDecode, instruction.unit, instruction.index}).second;
        what = drains_ ? kDrainCores : again ? kDecodeAgain : before_ ? kCoresBefore : kCoresAfter;
        break;
      }
    }
    asked[what] += instruction.seconds;
  }

  const Plan& plan_;
  std::vector<Asks>& asked_;
  bool held_;
  bool before_ = true, drains_ = false;
  std::set<std::tuple<InstructionKind, int, int>> read_;
};

}  // namespace

bool Demand::no_more_than(const Demand& other) const {
  const auto all = [](const auto& a, const auto& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] > b[i]) {
        return false;
      }
    }
    return true;
  };
  return all(bytes, other.bytes) && all(asked, other.asked) && all(slot_bytes, other.slot_bytes);
}

Demand together(const Demand& a, const Demand& b) {
  Demand sum = a;
  for (std::size_t i = 0; i < kTiers; ++i) {
    sum.bytes[i] += b.bytes[i];
  }
  for (std::size_t i = 0; i < kAskedCount; ++i) {
    sum.asked[i] += b.asked[i];
  }
  for (std::size_t i = 0; i < kSlotKinds; ++i) {
    sum.slot_bytes[i] = std::max(sum.slot_bytes[i], b.slot_bytes[i]);
  }
  return sum;
}

std::vector<UnitChoice> unit_choices(const ModelSpec& model, const PlanSettings& settings) {
  const UnitChoice base = base_units(model, settings).front();
  const std::vector<UnitChange> changes = residencies(settings);
  std::vector<UnitChoice> all;
  for (std::size_t set = 0; set < std::size_t{1} << changes.size(); ++set) {
    UnitChoice choice = base;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if ((set >> i & 1U) != 0) {
        changes[i](choice);
      }
    }
    if (std::find(all.begin(), all.end(), choice) == all.end()) {
      all.push_back(choice);
    }
  }
  return all;
}

Demands unit_demands(const ModelSpec& model,
                     const PlanSettings& settings,
                     const Choices& choices,
                     const std::vector<UnitChoice>& options) {
  Choices one = choices;
  one.kept_blocks = 0;
  one.units.assign(model.units.size(), options.back());
  const Measured most = measure(lay_out_candidate(model, settings, one));
  Demands demands(model.units.size(), std::vector<Demand>(options.size()));
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t o = 0; o < options.size(); ++o) {
      one.units[u] = options[o];
      const Measured measured =
          o + 1 == options.size() ? most : measure(lay_out_candidate(model, settings, one));
      Demand& demand = demands[u][o];
      for (std::size_t tier = 0; tier < kTiers; ++tier) {
        demand.bytes[tier] = measured.bytes[tier] - most.bytes[tier];
      }
      demand.slot_bytes = measured.slot_bytes;
    }
  }
  return demands;
}

Demands unit_demands(const ModelSpec& model,
                     const PlanSettings& settings,
                     const MachineProfile& machine,
                     const Choices& choices,
                     const std::vector<UnitChoice>& options) {
  Demands demands = unit_demands(model, settings, choices, options);
  Choices one = choices;
  one.kept_blocks = 0;
  for (std::size_t o = 0; o < options.size(); ++o) {
    one.units.assign(model.units.size(), options[o]);
    Candidate candidate = lay_out_candidate(model, settings, one);
    build_steady(model, settings, machine, one, candidate.layout, candidate.plan);
    std::vector<Asks> asked(model.units.size());
    Count count(candidate.plan, asked);
    for (const Program* program : steady_programs(settings, candidate.plan)) {
      count.add(*program, program == &candidate.plan.drain);
    }
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      demands[u][o].asked = asked[u];
    }
  }
  return demands;
}

bool Frame::fits(const Demand& demand, const PlanSettings& settings) const {
  const TierBytes bytes_needed = arenas(demand);
  const auto host = static_cast<std::int64_t>(settings.host_memory_bytes);
  const auto device = static_cast<std::int64_t>(
      settings.device_memory_bytes.value_or(settings.device_available_bytes));
  return bytes_needed[0] <= host && (!settings.separate_device || bytes_needed[1] <= device);
}

TierBytes Frame::arenas(const Demand& demand) const {
  TierBytes all = bytes;
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    all[tier] += demand.bytes[tier];
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
      all[tier] += slots[tier][kind] * demand.slot_bytes[kind];
    }
  }
  return all;
}

Frame frame_of(const ModelSpec& model,
               const PlanSettings& settings,
               const Choices& choices,
               const std::vector<UnitChoice>& options,
               const Demands& demands) {
  Frame frame{.choices = choices};
  frame.choices.units.assign(model.units.size(), options.front());
  const Measured measured = measure(lay_out_candidate(model, settings, frame.choices));
  frame.bytes = measured.bytes;
  frame.slots = measured.slots;
  for (const std::vector<Demand>& of_unit : demands) {
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      frame.bytes[tier] -= of_unit.front().bytes[tier];
    }
  }
  return frame;
}

}  // namespace headrace::plan
