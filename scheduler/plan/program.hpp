// The instructions of a plan: what one step does, in submission order, with every buffer range and
// every wait. The executor walks it; the simulator prices it.
//
// Invariant: an instruction waits for every earlier one whose accesses conflict with its own
// (overlapping range, one of them a write), directly, by the order of its queue, or through others.
// derive_waits computes the waits from the accesses; no instruction waits for a later one, so a
// program cannot deadlock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::plan {

// kStore stands for the extents of the store: its buffers order reads after writes of the same tile
// and have no address.
enum class MemoryTier : std::uint8_t { kDevice, kHost, kStore };

// A planned range of an arena.
struct Buffer {
  std::string name;  // "weights.slot.1"
  MemoryTier tier = MemoryTier::kHost;
  std::size_t offset =
      0;  // in the arena of its tier (an aliasing device has one arena: the host's)
  std::size_t bytes = 0;
  bool borrowed = false;  // lies over other buffers, while these are not in use
};

enum class QueueKind : std::uint8_t { kCompute, kH2d, kD2h, kHost, kNvme };

enum class InstructionKind : std::uint8_t {
  kReadParam,     // nvme: [0] target, [1] the tile's param extent (kStore)
  kReadState,     // nvme: [0] target, [1] the tile's state extent
  kWriteParam,    // nvme: [0] source, [1] the tile's param extent
  kWriteState,    // nvme: [0] source, [1] the tile's state extent
  kReadSaved,     // nvme: [0] target, [1] spilled activations of a block and micro-batch (kStore)
  kWriteSaved,    // nvme: [0] source, [1] the same
  kCopy,          // h2d or d2h: [0] source -> [1] target
  kGather,        // host: [0] tile of the embedding, [1] x of every micro-batch (added to)
  kForward,       // compute: [0] weights, [1] input, [2] output, [3] saved, [4] workspace
  kBackward,      // compute: [0] weights, [1] input, [2] saved, [3] gradient (in place), [4] weight
                  // gradients, [5] workspace; `recompute`: forward first
  kHeadBegin,     // compute: [0] norm weights, [1] input, [2] state, [3] workspace
  kHeadScore,     // compute: [0] row piece, [1] targets, [2] state, [3] workspace
  kHeadLoss,      // compute: [0] targets, [1] state, [2] loss (double), [3] workspace
  kHeadGradient,  // compute: [0] row piece, [1] targets, [2] state, [3] gradient, [4] weight
                  // gradients, [5] workspace
  kHeadEnd,  // compute: [0] norm weights, [1] input, [2] state, [3] gradient (in place), [4] norm
             // gradients, [5] workspace
  kHeadLogits,  // compute: [0] row piece, [1] state, [2] logits, [3] workspace
  kScatter,     // host: [0] gradient of x, [1] row accumulators
  kSpread,      // host: [0] row accumulators, [1] the head's gradient of the range (or none), [2]
                // gradient of the range
  kAccumulate,  // host or compute: [0] incoming fp32, [1] accumulator fp32 (added; `first`: copied)
  kCollect,     // host or compute: [0] fp32 gradient, [1] held gradient (may be the same memory):
                // rounds, sums squares, finds NaN and Inf
  kUpdate,      // host or compute: [0] param, [1] state, [2] held gradient, [3] the new weights as
                // floats (decoded formats, where they are wanted)
  kDecode,      // host or compute: [0] param, [1] state, [2] the weights as floats
};

enum class AccessMode : std::uint8_t { kRead, kWrite, kReadWrite };

struct Access {
  int buffer = -1;         // -1: this operand is absent
  std::size_t offset = 0;  // in the buffer
  std::size_t bytes = 0;
  AccessMode mode = AccessMode::kRead;
  std::uint64_t content =
      0;  // what the range's lease must hold (a number per unit and piece, or tile); 0: scratch
};

struct Instruction {
  InstructionKind kind = InstructionKind::kForward;
  QueueKind queue = QueueKind::kCompute;
  int lane = 0;  // of kNvme
  int unit = 0;
  int index = 0;        // tile, row piece, block range, or slot of a micro-batch, by kind
  int micro_batch = 0;  // -1: all
  bool first = false;   // the first of a series that accumulates: store, do not add
  bool recompute = false;
  // Of the step's own update, before its norm is known (Update::kSpeculative): undone if it has to
  // be clipped.
  bool speculative = false;
  std::int64_t begin = 0;  // element range of the unit that a host operation is about
  std::int64_t elements = 0;
  std::vector<Access> accesses;  // operands in the order given at the kind
  std::vector<int> waits;        // earlier instructions (derive_waits)
  int needed_by = -1;            // the first instruction that waits for this one; -1: none does
  double seconds = 0;            // predicted duration, without waiting
  int kernels = 1;               // operations that it is: between two of them others may run
  std::size_t link_bytes = 0;    // bytes over the link, for nvme and copies
};

struct Program {
  std::string name;  // "compute.held": as in Plan
  std::vector<Instruction> instructions;
};

// Of NVMe transfers: from the drive.
[[nodiscard]] constexpr bool is_read(InstructionKind kind) {
  return kind == InstructionKind::kReadParam || kind == InstructionKind::kReadState ||
         kind == InstructionKind::kReadSaved;
}

// The queue that an instruction belongs to, as a number from 0: lanes are queues of their own,
// after the others.
[[nodiscard]] int queue_number(const Instruction& instruction);

// Fills `waits` (and with them `needed_by`) of every instruction, without those that queue order or
// another wait already implies. Accesses conflict by address: `buffers` may lie over one another.
void derive_waits(Program& program, std::span<const Buffer> buffers);

}  // namespace headrace::plan
