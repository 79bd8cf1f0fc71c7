// A model as numbers: what the planner knows of it. Made by model/ from an architecture and a batch
// shape; pure data, no memory.
//
// Layout rule (lay_out): the tensors of a unit lie in one flat buffer, in model order. A tensor
// starts at a multiple of 64 elements, or of kPageElements when it has at least that many elements,
// its `frozen` differs from its predecessor's, or it or its predecessor has `own_pages`; the flat
// size is a multiple of kPageElements. So tiles and pieces can start on page boundaries, and direct
// I/O lands in the unit's own buffer. Padding is zero and stays zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "scheduler/plan/work.hpp"

namespace headrace::plan {

inline constexpr std::int64_t kBlockElements = 65536;  // norm blocks and the granule of tiles
inline constexpr std::int64_t kPageElements = 2048;    // one page of bf16, two of fp32
inline constexpr std::int64_t kTensorAlignElements = 64;

struct TensorSpec {
  std::string name;                 // the Hugging Face name
  std::vector<std::int64_t> shape;  // as Hugging Face stores it, row-major
  std::int64_t elements = 0;        // product of shape
  std::int64_t offset = 0;          // elements from the unit's start (lay_out)
  int group = 0;                    // index in ModelSpec::groups
  bool frozen = false;              // no gradient, no state, never written
  bool own_pages = false;           // starts and ends at a page: a matrix that cut_rows will cut
};

// A contiguous range of a unit that is on the device as a whole while an operation uses it. Starts
// at a multiple of kPageElements.
struct PieceSpec {
  std::int64_t begin = 0;     // elements from the unit's start
  std::int64_t elements = 0;  // a multiple of kPageElements
};

enum class UnitKind : std::uint8_t { kEmbedding, kBlock, kHead };

// Costs of one micro-batch through a unit (for a head: through its norm, and a row piece, see
// HeadSpec).
struct UnitCost {
  Work forward = {};
  Work backward = {};  // without recompute
  std::size_t forward_workspace_bytes = 0;
  std::size_t backward_workspace_bytes = 0;
  std::size_t saved_bytes = 0;  // activations that forward leaves for backward (kept, or recomputed
                                // into scratch of this size)
};

struct UnitSpec {
  std::string name;  // "embedding", "block.0", "head"
  UnitKind kind = UnitKind::kBlock;
  std::vector<TensorSpec> tensors;
  std::vector<PieceSpec> pieces;  // ascending; a block: one piece, all of it; the embedding: only
                                  // the row pieces of a tied head
  std::int64_t elements = 0;      // flat size (lay_out)
  UnitCost cost;
};

// Tensors of the same sizes at the same offsets, the same of them frozen: tiles and their work are
// alike.
[[nodiscard]] bool same_layout(const UnitSpec& a, const UnitSpec& b);

// A table whose rows the embedding looks up: x[n] = sum over tables of table[index(n)].
struct RowTable {
  enum class Index : std::uint8_t { kToken, kPosition };
  int tensor = 0;  // in units[0].tensors
  std::int64_t rows = 0;
  Index index = Index::kToken;
};

// The vocabulary matrix of the head, cut into pieces of whole rows.
struct RowPiece {
  int unit = 0;  // units[unit].pieces[piece]; unit 0 when tied
  int piece = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;           // rows of the tensor within the piece
  std::int64_t tensor_offset = 0;  // of first_row, elements from the piece's begin
};

struct HeadSpec {
  int norm_piece = 0;          // of the head unit: final norm
  std::vector<RowPiece> rows;  // ascending; every vocabulary row once
  std::int64_t rows_per_chunk =
      0;                        // a constant of the run: logits are made for so many rows at a time
  std::size_t state_bytes = 0;  // per micro-batch: running max, sum and target logit of every row,
                                // normed input, norm statistics
  UnitCost score;               // per row piece of full size: log-sum-exp pass
  UnitCost gradient;            // per row piece of full size: dlogits, dX, dW
};

// Optimizer settings of a parameter group, resolved.
struct GroupSpec {
  double lr_scale = 1.0;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

struct ModelSpec {
  std::vector<UnitSpec> units;   // [0] embedding, then blocks, last the head
  std::vector<RowTable> tables;  // ascending offsets in units[0]
  HeadSpec head;
  std::vector<GroupSpec> groups;
  bool tied = false;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t micro_batch = 0;  // sequences
  std::int64_t seq_len = 0;
  std::int64_t accumulate = 1;

  [[nodiscard]] std::int64_t rows() const {
    return micro_batch * seq_len;
  }  // of an activation of one micro-batch

  [[nodiscard]] std::size_t activation_bytes() const {
    return static_cast<std::size_t>(rows() * hidden) * 4;
  }

  [[nodiscard]] std::int64_t parameters() const;  // without padding; tied matrices once
  [[nodiscard]] std::int64_t trainable_parameters() const;
};

// Sets offsets and elements of a unit from its tensors' shapes. Does not touch pieces.
void lay_out(UnitSpec& unit);

// Cuts `tensor` of a laid out unit (its rows: shape[0]) into row pieces of about `rows_wanted`
// rows, such that every piece begins at a multiple of kBlockElements from the tensor's start.
// Appends to unit.pieces and returns the rows of each.
[[nodiscard]] std::vector<RowPiece> cut_rows(UnitSpec& unit,
                                             int unit_index,
                                             int tensor,
                                             std::int64_t rows_wanted);

// A tile: the storage granule. Piece and tensor boundaries as documented at the top of this file.
struct TileSpec {
  std::int64_t begin = 0;     // elements from the unit's start, a multiple of kPageElements
  std::int64_t elements = 0;  // a multiple of kPageElements
  bool frozen = false;
};

// Cuts a unit into tiles of at most about `tile_elements` (a multiple of kBlockElements): tiles
// never cross a piece boundary or a frozen boundary, and are cut only at page-aligned tensor starts
// and at multiples of kBlockElements from a tensor's start.
[[nodiscard]] std::vector<TileSpec> cut_tiles(const UnitSpec& unit, std::int64_t tile_elements);

}  // namespace headrace::plan
