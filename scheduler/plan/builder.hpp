// Internal to the planner: emits instructions. One Builder makes one Program; the residency of
// weight slots is tracked as it goes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "scheduler/plan/choices.hpp"
#include "scheduler/plan/price.hpp"

namespace headrace::plan {

// What each Lease must find in a range (Access::content): a number per (unit, piece) or (unit,
// tile), never 0.
[[nodiscard]] std::uint64_t piece_content(int unit, int piece);
[[nodiscard]] std::uint64_t tile_content(int unit, int tile);

struct BuilderInputs {
  const ModelSpec& model;
  const PlanSettings& settings;
  const MachineProfile& machine;
  const Layout& layout;
  const Plan& plan;
};

// The tiles that a program stages, in the order in which it takes slots; an extent each.
struct StagedTile {
  int unit = 0, tile = 0;

  bool operator==(const StagedTile&) const = default;
};

struct StagedTiles {
  std::vector<StagedTile> params, states;
};

// What of the last step's update a program makes before the tiles' first use.
enum class Pending : std::uint8_t {
  kNone,
  kAll,
  kRest,  // of units that the last step has not updated itself (UnitPlan::speculated)
};

class Builder {
 public:
  // `entry`: what an earlier program has left in the first slots.
  Builder(const BuilderInputs& inputs, std::string name, StagedTiles entry = {});

  // Forward and backward over every micro-batch; each unit is updated before its first use, if it
  // is due. `speculates`: speculated units are updated in backward, too. At the end `next` is read
  // into the first slots.
  void training_step(Pending pending, bool speculates, const StagedTiles& next);
  // Every trainable tile that is due is updated.
  void drain(Pending pending);
  void evaluation();
  [[nodiscard]] Program take();

  // What was staged so far.
  [[nodiscard]] const StagedTiles& staged() const { return staged_; }

 private:
  struct Range {  // a resolved operand
    int buffer = -1;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  struct Group {  // micro-batches that go through a unit together
    int first = 0, count = 1;
    bool last = true;
  };

  // Operands.
  [[nodiscard]] Access read(const Range& range, std::uint64_t content = 0) const;
  [[nodiscard]] Access write(const Range& range, std::uint64_t content = 0) const;
  [[nodiscard]] Access update(const Range& range, std::uint64_t content = 0) const;
  [[nodiscard]] Range whole(int buffer) const;
  [[nodiscard]] Range slice(int buffer,
                            std::int64_t begin,
                            std::int64_t elements,
                            std::size_t element_bytes) const;
  [[nodiscard]] Range activation(std::size_t block, int micro_batch) const;
  [[nodiscard]] int slot_of(int micro_batch) const;
  [[nodiscard]] Access saved(std::size_t block, int micro_batch, AccessMode mode) const;
  [[nodiscard]] std::vector<Group> groups() const;
  [[nodiscard]] static std::vector<Group> cut(const Group& whole, int size);
  [[nodiscard]] std::vector<Group> summed_together(const Group& group, int unit) const;
  [[nodiscard]] bool host_adds() const;

  // Weights.
  struct Weights {
    Range range;
    std::uint64_t content = 0;
  };

  Weights ensure(int unit, int piece);
  int take_weight_slot();

  // What is wanted of a tile.
  struct TileUse {
    int unit = 0, tile = 0;
    bool update = false;
    bool read = true;     // its weights as floats: by kernels or the lookup
    Weights target = {};  // where on the device; buffer -1: nowhere
    bool speculative = false;
  };

  // Which has lanes of its own, in this order.
  enum class TransferClass : std::uint8_t { kRead, kWrite, kWriteThrough, kSpill, kPrefetch };

  [[nodiscard]] int next_lane(TransferClass kind);
  Weights bring_tile(const TileUse& use);
  Weights stage_param(const TileUse& use);
  Weights stage_state(const TileUse& use);
  [[nodiscard]] int take_state_slot();
  void lend_gradient(int unit, int tile);
  // Reads `next` into the first slots.
  void prefetch(const StagedTiles& next);
  [[nodiscard]] Weights floats_of(const TileUse& use, const Weights& param);
  [[nodiscard]] Weights device_copy(const UnitPlan& unit, const TileSpec& tile) const;
  // `ahead`: for the next program.
  void transfer(InstructionKind kind,
                const TileUse& use,
                const Weights& memory,
                bool ahead = false);
  void update_tile(const TileUse& use,
                   const Weights& param,
                   const Weights& state,
                   const Weights& decoded);
  void decode_tile(const TileUse& use,
                   const Weights& param,
                   const Weights& state,
                   const Weights& decoded);
  [[nodiscard]] QueueKind update_queue(int unit) const;
  [[nodiscard]] bool update_due(int unit, int tile) const;
  [[nodiscard]] Weights take_from_weight_slot(const TileUse& use, int piece_index);
  [[nodiscard]] std::vector<int> tiles_of(int unit, const PieceSpec& piece) const;

  // The step.
  void gather();
  void copy_inputs();
  void forward_blocks(const Group& group, bool backward_follows);
  void copy_input(std::size_t block, int micro_batch, QueueKind queue);
  void copy_offloaded(const Group& group, std::size_t block, QueueKind queue);
  void move_saved(const Group& group, std::size_t block, bool away);
  void head(const Group& group, bool backward);
  void head_scores(const Group& group);
  void head_gradients(const Group& group);
  void head_norm_gradient(const Group& group);
  void logits();
  void backward_blocks(const Group& group);
  void scatter(const Group& group);
  void embedding_gradient();

  // Gradients.
  struct GradientTarget {
    Range range;
    bool direct = true;
    bool present = false;
  };

  GradientTarget gradient_target(int unit, const PieceSpec& piece);
  void backward(std::size_t block,
                int micro_batch,
                const Weights& weights,
                const GradientTarget& target,
                bool first);
  void gradient_out(
      int unit, int piece_index, const GradientTarget& target, const Group& group, bool collect);
  void collect(int unit, const TileSpec& tile, int tile_index, const Range& source);
  void speculate_collected();
  [[nodiscard]] bool piece_trainable(int unit, const PieceSpec& piece) const;
  [[nodiscard]] Range held(int unit, std::int64_t begin, std::int64_t elements) const;

  int emit(Instruction instruction);
  [[nodiscard]] Instruction make(
      InstructionKind kind, QueueKind queue, int unit, int index, int micro_batch) const;

  const BuilderInputs in_;
  const Pricer pricer_;
  Program program_;
  Pending pending_ = Pending::kNone;
  bool speculates_ = false;

  struct Collected {
    int unit = 0, piece = 0, tile = 0;
  };

  std::vector<Collected> collected_;        // of speculated units, not yet updated
  std::vector<std::vector<char>> updated_;  // [unit][tile] in this program

  struct Slot {
    int unit = -1, piece = -1;
    int last_use = -1;
  };

  // Where the state of a tile on its way is.
  struct StateSlot {
    int buffer = -1;
    bool borrowed = false;
    std::size_t usable_from = 0;  // number of the take
  };

  std::vector<Slot> slots_;
  int clock_ = 0;
  const StagedTiles entry_;
  StagedTiles staged_;
  std::deque<StateSlot> state_slots_;  // the one that was used longest ago first
  std::deque<StateSlot> lent_slots_;   // borrowed ones that nobody has used yet
  StagedTile last_update_{.unit = -1, .tile = -1};
  std::size_t next_lent_ = 0;  // in Layout::borrowed_state
  bool lending_ = true;
  std::size_t next_decoded_ = 0, next_gradient_slot_ = 0, next_landing_ = 0;
  std::array<int, 5> next_lane_{};  // by TransferClass
};

}  // namespace headrace::plan
