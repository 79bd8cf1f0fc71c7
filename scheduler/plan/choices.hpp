// Internal to the planner: one complete set of choices, and what building it gives. The search
// (plan.cpp) tries several and keeps the best that fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

struct UnitChoice {
  Home state_home = Home::kHost;
  // Param extents stay in host (or device) memory; otherwise they are read from the store. Where
  // weights are decoded, state and param extents are in one place.
  bool master_in_memory = true;
  // With the master in memory and state on NVMe: what an update makes of it is written to the store
  // at once, as if it lived there. Reads are spared, a commit has nothing to write.
  bool write_through = false;
  // Weights stay on the device; otherwise they stream through slots. An aliasing device asks only
  // where they are decoded; else what is in memory is on it.
  bool pinned = true;

  [[nodiscard]] bool operator==(const UnitChoice&) const = default;
};

struct Choices {
  int group_size = 1;
  Update update = Update::kHeld;
  int lookahead = 1;
  int staging_slots = 4;  // tiles on their way between store, optimizer and device
  std::int64_t tile_elements = 16 * kBlockElements;
  int kept_blocks = 0;     // the last ones: backward finds their activations
  int spilled_blocks = 0;  // those before them: theirs leave and come back; others are recomputed
  // Separate device: inputs of blocks wait for backward in host memory (deep models; Layout).
  bool offload_inputs = false;
  std::vector<UnitChoice> units;
  std::shared_ptr<const std::vector<std::vector<TileSpec>>> tiles;  // by unit, of tile_elements
};

inline constexpr std::int64_t kTileElementsAutoMax = 64 * kBlockElements;  // that "auto" chooses

// Of NVMe transfers: the queues that a plan spreads them over. Writes wait for updates, what is
// read for the next step waits for writes, and activations that leave make room for the next
// block's: each has lanes of its own.
inline constexpr int kReadLanes = 8;
inline constexpr int kWriteLanes = 8;
inline constexpr int kWriteThroughLanes = 4;
inline constexpr int kSpillLanes = 2;
inline constexpr int kPrefetchLanes = 4;
inline constexpr int kLanes =
    kReadLanes + kWriteLanes + kWriteThroughLanes + kSpillLanes + kPrefetchLanes;

// Room for a tile's state in the memory of held gradients, which is free from the update of what it
// covers until backward writes gradients again.
struct BorrowedSlot {
  int buffer = -1;         // in Plan::buffers
  int unit = 0, tile = 0;  // the last whose gradient it covers
};

// Indices in Plan::buffers of what the programs use, beside what Plan itself names. -1 or empty:
// absent.
struct Layout {
  // [block input 0..L][micro-batch slot]. Where inputs are offloaded, lookahead + 2 of them share
  // the device's memory in turn.
  std::vector<std::vector<int>> activations;
  std::vector<std::vector<int>> offloaded;  // [block input][slot]: on the host; empty: not
  // [block][micro-batch slot]; blocks that are recomputed share one buffer, and those that are
  // spilled have the kept ones' in turn.
  std::vector<std::vector<int>> saved;
  // [block][slot]: where spilled ones wait; -1: they are not spilled.
  std::vector<std::vector<int>> spilled;
  int saved_slots = 0;          // buffers of their own that blocks have, for each micro-batch slot
  std::vector<int> gradients;   // d(activation) per micro-batch slot
  std::vector<int> head_state;  // per micro-batch slot
  int workspace = -1;
  int dx_host = -1;  // separate device: d(x) of one micro-batch, for the embedding
  int logits_device = -1;
  std::vector<int> weight_slots;
  std::vector<int> gradient_slots;
  std::vector<int> staging_param, staging_state;
  std::vector<BorrowedSlot> borrowed_state;
  std::vector<int> staging_weights;  // host: a tile decoded, on its way to the device or the lookup
  std::vector<int> landing;          // host: fp32 gradients of one tile
  std::vector<int> store_param,
      store_state;  // per unit: kStore pseudo-buffers, with room for floats of every tile
};

// Blocks whose activations leave memory while others take their places: in turn, one being computed
// and one on its way.
inline constexpr int kSpillSlotsLeast = 2;
[[nodiscard]] int spilled_blocks(const ModelSpec& model, const Choices& choices);

// Sizes every buffer and gives it an address. Fills plan.buffers, units, arenas, memory table,
// lanes and peaks.
[[nodiscard]] Layout lay_out_memory(const ModelSpec& model,
                                    const PlanSettings& settings,
                                    const Choices& choices,
                                    Plan& plan);

// Fills the programs of a plan whose memory is laid out, with waits and durations.
void build_programs(const ModelSpec& model,
                    const PlanSettings& settings,
                    const MachineProfile& machine,
                    const Choices& choices,
                    const Layout& layout,
                    Plan& plan);

// The same of the programs that a steady step runs, and no others.
void build_steady(const ModelSpec& model,
                  const PlanSettings& settings,
                  const MachineProfile& machine,
                  const Choices& choices,
                  const Layout& layout,
                  Plan& plan);

// In the order in which it runs them.
[[nodiscard]] std::vector<const Program*> steady_programs(const PlanSettings& settings,
                                                          const Plan& plan);

// Of a tile, with the one that speculation writes to, where there is one.
[[nodiscard]] int physical_slots(const PlanSettings& settings, Update update);

// True where backward writes fp32 gradients straight into the held buffer; otherwise they pass
// through a device slot.
[[nodiscard]] bool gradient_is_direct(const Plan& plan, const UnitPlan& unit);

inline constexpr std::size_t kMebibyte = std::size_t{1} << 20U;
// "24MiB", rounded up: for a --set line.
[[nodiscard]] std::string mebibytes(std::size_t bytes);

}  // namespace headrace::plan
