// Where tensors, tiles and rows of the head begin.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/test_model.hpp"
#include "scheduler/plan/test_support.hpp"

namespace headrace::plan {
namespace {

TEST(Layout, LargeTensorsStartAtPagesAndSmallOnesAtMultiplesOf64) {
  UnitSpec unit;
  unit.tensors = {tensor("a", {7}),
                  tensor("b", {65}),
                  tensor("c", {2048}),
                  tensor("d", {3}),
                  tensor("e", {5}, true),
                  tensor("f", {0}),
                  tensor("g", {100000})};
  lay_out(unit);
  EXPECT_EQ(unit.tensors[0].offset, 0);
  EXPECT_EQ(unit.tensors[1].offset, 64);
  EXPECT_EQ(unit.tensors[2].offset, 2048);
  EXPECT_EQ(unit.tensors[3].offset, 4096);
  EXPECT_EQ(unit.tensors[4].offset % kPageElements, 0) << "frozen changes";
  EXPECT_EQ(unit.tensors[5].offset % kPageElements, 0) << "frozen changes back";
  EXPECT_EQ(unit.tensors[6].offset % kPageElements, 0);
  EXPECT_EQ(unit.elements % kPageElements, 0);
  EXPECT_GE(unit.elements, unit.tensors[6].offset + 100000);
}

// Random units: tiles cover them exactly, start at pages, respect pieces and frozen edges, and cut
// tensors at blocks only.
TEST(Tiles, CoverEveryElementOnceAndCutOnlyWhereTheyMay) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    UnitSpec unit;
    const int tensors = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < tensors; ++i) {
      const auto size = static_cast<std::int64_t>(random() % (random() % 3 == 0 ? 400000 : 3000));
      unit.tensors.push_back(tensor("t" + std::to_string(i), {size}, random() % 3 == 0));
    }
    lay_out(unit);
    const std::int64_t tile_elements = kBlockElements * static_cast<std::int64_t>(1 + random() % 5);
    std::int64_t at = 0;
    for (const TileSpec& tile : cut_tiles(unit, tile_elements)) {
      ASSERT_EQ(tile.begin, at) << "seed " << seed;
      ASSERT_GT(tile.elements, 0);
      ASSERT_EQ(tile.begin % kPageElements, 0);
      for (const TensorSpec& one : unit.tensors) {
        const std::int64_t begin = std::max(one.offset, tile.begin),
                           end = std::min(one.offset + one.elements, tile.begin + tile.elements);
        if (begin < end) {
          ASSERT_EQ(one.frozen, tile.frozen) << "seed " << seed;
          ASSERT_EQ((begin - one.offset) % kBlockElements, 0) << "seed " << seed;
        }
      }
      at += tile.elements;
    }
    ASSERT_EQ(at, unit.elements);
  }
}

TEST(Rows, PiecesHoldEveryRowOnceAndBeginAtPages) {
  for (const std::int64_t hidden : {1, 3, 48, 64, 100, 384, 768, 1600}) {
    UnitSpec unit;
    unit.tensors = {tensor("norm", {hidden}), tensor("rows", {1003, hidden})};
    unit.tensors[1].own_pages = true;
    lay_out(unit);
    std::int64_t next = 0;
    for (const RowPiece& piece : cut_rows(unit, 5, 1, 100)) {
      EXPECT_EQ(piece.first_row, next);
      const PieceSpec& range = unit.pieces[static_cast<std::size_t>(piece.piece)];
      EXPECT_EQ(range.begin % kPageElements, 0);
      EXPECT_EQ((range.begin - unit.tensors[1].offset) % kBlockElements, 0);
      EXPECT_GE(range.elements, piece.rows * hidden);
      EXPECT_LE(range.begin + range.elements, unit.elements);
      next += piece.rows;
    }
    EXPECT_EQ(next, 1003);
  }
}

}  // namespace
}  // namespace headrace::plan
