// Internal to the planner: what keeping something of a unit in memory takes of the arenas and asks
// of a step, told apart for every unit, so that any residency of all units is a sum. For models of
// few units, of which every residency is looked at (exhaustive.hpp).
//
// Measured, not modelled: units are laid out one by one and their instructions counted. Memory adds
// up but for slots, which are as large as the largest unit that needs them. Threads: any. Failure:
// none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/plan/choices.hpp"

namespace headrace::plan {

// What a steady step is asked for, in seconds of a resource alone, and in bytes of a drive and of
// copies. "Before": what has ended when the first gradient is made. "Again": a second reading of
// weights, which a slot may still hold. "Drain": of the program after backward.
enum Asked : std::size_t {
  kCoresBefore,
  kReadBefore,
  kH2dBefore,
  kCoresAfter,
  kDecodeAgain,
  kReadAgain,
  kH2dAgain,
  kWritten,
  kD2h,
  kDrainCores,
  kDrainRead,
  kDrainWritten,
  kDrainH2d,
  kNvmeBytes,
  kCopiedBytes,
  kReads,  // of the drive, how many
  kAskedCount
};

// Lists of slots in Layout.
enum SlotKind : std::size_t {
  kWeightSlots,
  kGradientSlots,
  kStagingParam,
  kStagingState,
  kStagingWeights,
  kLanding,
  kSlotKinds
};

inline constexpr std::size_t kTiers = 2;  // host, device

using Asks = std::array<double, kAskedCount>;
using TierBytes = std::array<std::int64_t, kTiers>;

// Of some units together.
struct Demand {
  std::array<std::int64_t, kTiers> bytes{};           // beyond those of the most resident; adds up
  std::array<double, kAskedCount> asked{};            // adds up
  std::array<std::int64_t, kSlotKinds> slot_bytes{};  // the largest

  [[nodiscard]] bool no_more_than(const Demand& other) const;
};

[[nodiscard]] Demand together(const Demand& a, const Demand& b);

// What a unit may be, the least resident first, the most resident last.
[[nodiscard]] std::vector<UnitChoice> unit_choices(const ModelSpec& model,
                                                   const PlanSettings& settings);

using Demands = std::vector<std::vector<Demand>>;  // by unit and choice

// Of memory, with the tiles and the order of work of `choices`.
[[nodiscard]] Demands unit_demands(const ModelSpec& model,
                                   const PlanSettings& settings,
                                   const Choices& choices,
                                   const std::vector<UnitChoice>& options);

// The same with what is asked of a step that keeps no activations.
[[nodiscard]] Demands unit_demands(const ModelSpec& model,
                                   const PlanSettings& settings,
                                   const MachineProfile& machine,
                                   const Choices& choices,
                                   const std::vector<UnitChoice>& options);

// What everything but residency decides: buffers of all units, and how many slots there are.
struct Frame {
  Choices choices;  // without units
  // Staging slots of the frame that has fewer; as many as there are reads are enough.
  int fewer_slots = 0;
  TierBytes bytes{};
  std::array<std::array<std::int64_t, kSlotKinds>, kTiers> slots{};

  [[nodiscard]] TierBytes arenas(const Demand& demand) const;
  [[nodiscard]] bool fits(const Demand& demand, const PlanSettings& settings) const;
};

[[nodiscard]] Frame frame_of(const ModelSpec& model,
                             const PlanSettings& settings,
                             const Choices& choices,
                             const std::vector<UnitChoice>& options,
                             const Demands& demands);

}  // namespace headrace::plan
