// Layout of units, row pieces and tiles: the arithmetic of model_spec.hpp. Pure functions.
#include "scheduler/plan/model_spec.hpp"

#include <algorithm>
#include <numeric>

#include "core/assert.hpp"

namespace headrace::plan {

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool starts_page(const TensorSpec* previous, const TensorSpec& tensor) {
  if (previous == nullptr || tensor.elements >= kPageElements || tensor.own_pages) {
    return true;
  }
  return previous->own_pages || previous->frozen != tensor.frozen;
}

// Where a tile may begin: page-aligned tensor starts, multiples of kBlockElements inside a tensor.
std::vector<std::int64_t> tile_cuts(const UnitSpec& unit) {
  std::vector<std::int64_t> cuts;
  for (const TensorSpec& tensor : unit.tensors) {
    for (std::int64_t at = 0; at == 0 || at < tensor.elements; at += kBlockElements) {
      if ((tensor.offset + at) % kPageElements == 0) {
        cuts.push_back(tensor.offset + at);
      }
    }
  }
  cuts.push_back(unit.elements);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Where a tile must end: at the edges of pieces, and where frozen changes to trainable or back.
std::vector<std::int64_t> forced_cuts(const UnitSpec& unit) {
  std::vector<std::int64_t> cuts;
  for (const PieceSpec& piece : unit.pieces) {
    cuts.push_back(piece.begin);
    cuts.push_back(piece.begin + piece.elements);
  }
  for (std::size_t i = 1; i < unit.tensors.size(); ++i) {
    if (unit.tensors[i].frozen != unit.tensors[i - 1].frozen) {
      cuts.push_back(unit.tensors[i].offset);
    }
  }
  cuts.push_back(unit.elements);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

bool frozen_at(const UnitSpec& unit, std::int64_t element) {
  bool frozen = unit.tensors.front().frozen;
  for (const TensorSpec& tensor : unit.tensors) {
    if (tensor.offset > element) {
      break;
    }
    frozen = tensor.frozen;
  }
  return frozen;
}

}  // namespace

bool same_layout(const UnitSpec& a, const UnitSpec& b) {
  return a.elements == b.elements && std::equal(a.tensors.begin(),
                                                a.tensors.end(),
                                                b.tensors.begin(),
                                                b.tensors.end(),
                                                [](const TensorSpec& x, const TensorSpec& y) {
                                                  return x.offset == y.offset &&
                                                         x.elements == y.elements &&
                                                         x.frozen == y.frozen;
                                                });
}

std::int64_t ModelSpec::parameters() const {
  std::int64_t total = 0;
  for (const UnitSpec& unit : units) {
    for (const TensorSpec& tensor : unit.tensors) {
      total += tensor.elements;
    }
  }
  return total;
}

std::int64_t ModelSpec::trainable_parameters() const {
  std::int64_t total = 0;
  for (const UnitSpec& unit : units) {
    for (const TensorSpec& tensor : unit.tensors) {
      total += tensor.frozen ? 0 : tensor.elements;
    }
  }
  return total;
}

void lay_out(UnitSpec& unit) {
  std::int64_t at = 0;
  const TensorSpec* previous = nullptr;
  for (TensorSpec& tensor : unit.tensors) {
    tensor.elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      tensor.elements *= extent;
    }
    at = round_up(at, starts_page(previous, tensor) ? kPageElements : kTensorAlignElements);
    tensor.offset = at;
    at += tensor.elements;
    previous = &tensor;
  }
  unit.elements = round_up(std::max<std::int64_t>(at, 1), kPageElements);
}

std::vector<RowPiece> cut_rows(UnitSpec& unit,
                               int unit_index,
                               int tensor_index,
                               std::int64_t rows_wanted) {
  const TensorSpec& tensor = unit.tensors.at(static_cast<std::size_t>(tensor_index));
  HEADRACE_ASSERT(tensor.own_pages, "a matrix that is cut into row pieces needs pages of its own");
  const std::int64_t rows = tensor.shape.front();
  const std::int64_t columns = tensor.elements / rows;
  const std::int64_t granule = kBlockElements / std::gcd(kBlockElements, columns);
  const std::int64_t rows_per_piece = round_up(std::max<std::int64_t>(rows_wanted, 1), granule);
  std::vector<RowPiece> pieces;
  for (std::int64_t first = 0; first < rows; first += rows_per_piece) {
    const std::int64_t count = std::min(rows_per_piece, rows - first);
    PieceSpec piece{.begin = tensor.offset + first * columns,
                    .elements = round_up(count * columns, kPageElements)};
    pieces.push_back({.unit = unit_index,
                      .piece = static_cast<int>(unit.pieces.size()),
                      .first_row = first,
                      .rows = count,
                      .tensor_offset = 0});
    unit.pieces.push_back(piece);
  }
  return pieces;
}

std::vector<TileSpec> cut_tiles(const UnitSpec& unit, std::int64_t tile_elements) {
  HEADRACE_ASSERT(tile_elements > 0 && tile_elements % kBlockElements == 0,
                  "a tile is a whole number of blocks");
  const std::vector<std::int64_t> cuts = tile_cuts(unit);
  const std::vector<std::int64_t> forced = forced_cuts(unit);
  std::vector<TileSpec> tiles;
  std::int64_t begin = 0;
  while (begin < unit.elements) {
    const std::int64_t limit = *std::upper_bound(forced.begin(), forced.end(), begin);
    std::int64_t end = limit;
    if (limit - begin > tile_elements) {
      // The last cut that keeps the tile within its size, or the first one after it.
      auto next = std::upper_bound(cuts.begin(), cuts.end(), begin + tile_elements);
      if (next != cuts.begin() && *(next - 1) > begin) {
        --next;
      }
      end = std::min(limit, *next);
    }
    tiles.push_back({.begin = begin, .elements = end - begin, .frozen = frozen_at(unit, begin)});
    begin = end;
  }
  return tiles;
}

}  // namespace headrace::plan
