// Tiles: the table's conformance test, segments of several tensors with their own settings, tiles
// cut anywhere, thread counts, padding, far ends.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/test_support.hpp"

namespace headrace::optim {
namespace {

// A unit of some tensors of odd sizes, each with its own settings, padded as the engine pads.
struct TensorCase {
  std::int64_t offset;
  std::int64_t elements;
  Dtype gradient_dtype;
  UpdateScalars scalars;
};

const std::array kTensors = {
    TensorCase{0,
               3 * kBlockElements + 500,
               Dtype::kF32,
               {.lr = 1e-3, .weight_decay = 0.1, .update_count = 5}},
    TensorCase{198'656,
               70'001,
               Dtype::kBf16,
               {.lr = 1e-3, .beta1 = 0.8, .update_count = 5, .clip_scale = 0.25}},
    TensorCase{
        270'336, 7, Dtype::kF32, {.lr = 5e-2, .beta2 = 0.999, .eps = 1e-3, .update_count = 1}},
    TensorCase{270'400, 0, Dtype::kF32, {.lr = 1.0}},
    TensorCase{270'400, 1000, Dtype::kBf16, {.lr = 1e-4, .weight_decay = 0.3, .update_count = 99}},
    TensorCase{272'384, kBlockElements, Dtype::kF32, {.lr = 1e-3, .update_count = 5}},
};
constexpr std::int64_t kUnitElements = 337'920;

// A run of whole tensors and of tensors' blocks: what a tile may hold.
struct TileCase {
  std::int64_t begin;
  std::int64_t end;
};

class TileTest : public testing::TestWithParam<const Optimizer*> {
 protected:
  void SetUp() override {
    std::mt19937_64 random(test_seed());
    for (const TensorCase& tensor : kTensors) {
      gradients_.push_back(mixed_floats(random, tensor.elements, -9, 2));
      bf16_gradients_.push_back(to_bf16(gradients_.back()));
    }
    const std::vector<float> weights = mixed_floats(random, kUnitElements, -4, 1);
    param_ = param_bytes(weights);
  }

  [[nodiscard]] static const Optimizer& optimizer() { return *GetParam(); }

  // Weights as a param extent holds them.
  [[nodiscard]] static std::vector<std::byte> param_bytes(const std::vector<float>& weights) {
    const std::vector<std::uint16_t> rounded = to_bf16(weights);
    const bool bf16 = optimizer().param_dtype == Dtype::kBf16;
    const auto* from = bf16 ? reinterpret_cast<const std::byte*>(rounded.data())
                            : reinterpret_cast<const std::byte*>(weights.data());
    return {from, from + weights.size() * dtype_bytes(optimizer().param_dtype)};
  }

  // The segments of elements [tile.begin, tile.end) of the unit.
  [[nodiscard]] std::vector<TileSegment> segments(TileCase tile) const {
    std::vector<TileSegment> result;
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      const TensorCase& tensor = kTensors[i];
      const std::int64_t begin = std::max(tile.begin, tensor.offset);
      const std::int64_t end = std::min(tile.end, tensor.offset + tensor.elements);
      if (begin >= end) {
        continue;
      }
      const auto skipped = static_cast<std::size_t>(begin - tensor.offset);
      const bool bf16 = tensor.gradient_dtype == Dtype::kBf16;
      result.push_back(
          {.offset_elements = begin - tile.begin,
           .elements = end - begin,
           .gradient = bf16 ? static_cast<const void*>(bf16_gradients_[i].data() + skipped)
                            : static_cast<const void*>(gradients_[i].data() + skipped),
           .gradient_dtype = tensor.gradient_dtype,
           .scalars = tensor.scalars,
           .tensor = static_cast<std::uint32_t>(i),
           .tensor_begin = begin - tensor.offset});
    }
    return result;
  }

  // State of the whole unit, plane after plane, from and to the extents of its tiles.
  struct Unit {
    std::vector<std::byte> param;
    std::vector<std::vector<std::byte>> planes;
    std::vector<UpdateStats> stats;  // of all blocks
  };

  [[nodiscard]] Unit fresh_unit() const {
    Unit unit{.param = param_, .planes = {}, .stats = {}};
    for (const StatePlane& plane : optimizer().planes) {
      unit.planes.emplace_back(static_cast<std::size_t>(plane.bytes(kUnitElements)));
    }
    return unit;
  }

  // Three updates of a unit that is cut into the given tiles.
  void update(Unit& unit, const std::vector<TileCase>& tiles, Threads* threads) const {
    for (int round = 0; round < 3; ++round) {
      unit.stats.clear();
      for (const TileCase& tile : tiles) {
        update_one(unit, tile, threads);
      }
    }
  }

  void update_one(Unit& unit, TileCase tile, Threads* threads) const {
    const std::int64_t elements = tile.end - tile.begin;
    std::vector<std::byte> state(static_cast<std::size_t>(optimizer().state_bytes(elements)));
    copy_planes(unit, tile, [&](std::byte* plane, std::size_t at, std::size_t bytes) {
      std::memcpy(state.data() + at, plane, bytes);
    });
    const std::vector<TileSegment> tile_segments = segments(tile);
    const TileUpdate update{
        .param = unit.param.data() + tile.begin * optimizer().param_element_bytes(),
        .state = state.data(),
        .tile_elements = elements,
        .segments = tile_segments};
    const std::int64_t blocks = count_blocks(std::span(tile_segments));
    std::vector<UpdateStats> stats(static_cast<std::size_t>(blocks));
    if (threads != nullptr) {
      update_tile(optimizer(), update, stats, *threads);
    } else {
      const FlushToZeroScope flush_to_zero;
      optimizer().reference_blocks(update, {.begin = 0, .end = blocks}, stats);
    }
    unit.stats.insert(unit.stats.end(), stats.begin(), stats.end());
    copy_planes(unit, tile, [&](std::byte* plane, std::size_t at, std::size_t bytes) {
      std::memcpy(plane, state.data() + at, bytes);
    });
  }

  // The bytes of element i are the same in both. A scale is of the whole group: it changes with the
  // other elements.
  [[nodiscard]] static bool same_element(const Unit& left, const Unit& right, std::int64_t i) {
    const auto same = [](const std::byte* a, const std::byte* b, std::int64_t bytes) {
      return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
    };
    const std::int64_t param_bytes = optimizer().param_element_bytes();
    if (!same(left.param.data() + i * param_bytes,
              right.param.data() + i * param_bytes,
              param_bytes)) {
      return false;
    }
    for (std::size_t p = 0; p < left.planes.size(); ++p) {
      const StatePlane& plane = optimizer().planes[p];
      if (plane.name == "scales") {
        continue;
      }
      const bool grouped = plane.record_elements > 1;
      const std::int64_t at = grouped ? q8_byte(i) : i * plane.record_bytes;
      if (!same(left.planes[p].data() + at,
                right.planes[p].data() + at,
                grouped ? 1 : plane.record_bytes)) {
        return false;
      }
    }
    return true;
  }

  template <class Copy>
  void copy_planes(Unit& unit, TileCase tile, const Copy& copy) const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < unit.planes.size(); ++i) {
      const StatePlane& plane = optimizer().planes[i];
      const auto bytes = static_cast<std::size_t>(plane.bytes(tile.end - tile.begin));
      copy(unit.planes[i].data() + plane.bytes(tile.begin), at, bytes);
      at += bytes;
    }
  }

  static void expect_same(const Unit& left, const Unit& right, const std::string& context) {
    EXPECT_TRUE(left.param == right.param) << context;  // without printing the bytes
    EXPECT_TRUE(left.planes == right.planes) << context;
    ASSERT_EQ(left.stats.size(), right.stats.size()) << context;
    for (std::size_t i = 0; i < left.stats.size(); ++i) {
      EXPECT_TRUE(same_bits(left.stats[i].sum_squares, right.stats[i].sum_squares)) << context;
    }
  }

  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<std::uint16_t>> bf16_gradients_;
  std::vector<std::byte> param_;
};

const std::vector<TileCase> kWhole = {{0, kUnitElements}};

TEST_P(TileTest, EveryInstructionSetAndThreadCountGivesTheReferencesBits) {
  Unit expected = fresh_unit();
  update(expected, kWhole, nullptr);
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    for (const int count : {1, 2, 3, 5}) {
      const auto threads = Threads::create(count).value();
      Unit actual = fresh_unit();
      update(actual, kWhole, threads.get());
      expect_same(actual, expected, target + ", threads: " + std::to_string(count));
    }
  }
}

TEST_P(TileTest, TilesCutAnywhereGiveTheBitsOfTheWhole) {
  const auto threads = Threads::create(2).value();
  Unit expected = fresh_unit();
  update(expected, kWhole, threads.get());
  const std::vector<std::vector<TileCase>> cuts = {
      {{0, kBlockElements}, {kBlockElements, kUnitElements}},
      {{0, 2 * kBlockElements},
       {2 * kBlockElements, 3 * kBlockElements},
       {3 * kBlockElements, 198'656},
       {198'656, 198'656 + kBlockElements},
       {198'656 + kBlockElements, 272'384},
       {272'384, kUnitElements}},
      {{0, 198'656}, {198'656, kUnitElements}},
  };
  for (const std::vector<TileCase>& tiles : cuts) {
    Unit actual = fresh_unit();
    update(actual, tiles, threads.get());
    expect_same(actual, expected, std::to_string(tiles.size()) + " tiles");
  }
}

// Parameters and state do not even depend on block boundaries; only the statistics do.
TEST_P(TileTest, TilesCutWithinBlocksGiveTheSameParametersAndState) {
  std::mt19937_64 random(test_seed());
  const auto threads = Threads::create(2).value();
  Unit expected = fresh_unit();
  update(expected, kWhole, threads.get());
  for (int round = 0; round < 5; ++round) {
    std::vector<TileCase> tiles;
    const std::int64_t group = optimizer().group_elements;
    std::uniform_int_distribution<std::int64_t> groups(1, 120'000 / group);
    for (std::int64_t begin = 0; begin < kUnitElements;) {
      const std::int64_t end = std::min(kUnitElements, begin + groups(random) * group);
      tiles.push_back({begin, end});
      begin = end;
    }
    Unit actual = fresh_unit();
    update(actual, tiles, threads.get());
    EXPECT_TRUE(actual.param == expected.param);  // without printing the bytes
    EXPECT_TRUE(actual.planes == expected.planes);
  }
}

TEST_P(TileTest, PaddingBetweenTensorsIsNeverWritten) {
  const auto threads = Threads::create(2).value();
  Unit unit = fresh_unit();
  for (std::vector<std::byte>& plane : unit.planes) {
    std::fill(plane.begin(), plane.end(), std::byte{0x5a});
  }
  Unit before = unit;
  update(unit, kWhole, threads.get());
  std::int64_t gap_begin = 0;
  const auto expect_untouched = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      ASSERT_TRUE(same_element(unit, before, i)) << i;
    }
  };
  for (const TensorCase& tensor : kTensors) {
    expect_untouched(gap_begin, tensor.offset);
    gap_begin = tensor.offset + tensor.elements;
  }
  expect_untouched(gap_begin, kUnitElements);
}

TEST_P(TileTest, ThousandsOfSmallTensorsAreOneUpdateEach) {
  constexpr std::int64_t kCount = 3000;
  constexpr std::int64_t kEach = 61;
  constexpr std::int64_t kStride = 64;
  std::mt19937_64 random(test_seed());
  const std::vector<float> gradient = mixed_floats(random, kCount * kEach, -9, 2);
  std::vector<TileSegment> small;
  for (std::int64_t i = 0; i < kCount; ++i) {
    small.push_back({.offset_elements = i * kStride,
                     .elements = kEach,
                     .gradient = gradient.data() + i * kEach,
                     .scalars = {.lr = 1e-3 * static_cast<double>(1 + i % 2)},
                     .tensor = static_cast<std::uint32_t>(i)});
  }
  const auto run = [&](Threads* threads) {
    std::vector<std::byte> param(
        param_.begin(), param_.begin() + kCount * kStride * optimizer().param_element_bytes());
    std::vector<std::byte> state(
        static_cast<std::size_t>(optimizer().state_bytes(kCount * kStride)));
    std::vector<UpdateStats> stats(kCount);
    const TileUpdate update{.param = param.data(),
                            .state = state.data(),
                            .tile_elements = kCount * kStride,
                            .segments = small};
    if (threads != nullptr) {
      update_tile(optimizer(), update, stats, *threads);
    } else {
      const FlushToZeroScope flush_to_zero;
      optimizer().reference_blocks(update, {.begin = 0, .end = kCount}, stats);
    }
    param.insert(param.end(), state.begin(), state.end());
    return param;
  };
  const auto threads = Threads::create(3).value();
  EXPECT_TRUE(run(threads.get()) == run(nullptr));
}

#if !defined(__SANITIZE_THREAD__)  // whose shadow of a sparse mapping is not sparse

// A sparse mapping, unmapped at the end. Null where the system does not give one.
class SparseBytes {
 public:
  explicit SparseBytes(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr,
                   bytes,
                   PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1,
                   0)) {}

  ~SparseBytes() {
    if (data_ != MAP_FAILED) {
      munmap(data_, bytes_);
    }
  }

  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;

  [[nodiscard]] std::byte* data() const {
    return data_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

// One tensor of 2^31 + 17 elements, of which the last two blocks are updated.
TEST_P(TileTest, FarEndOfATensorBeyondTwoToThe31Elements) {
  constexpr std::int64_t kElements = (std::int64_t{1} << 31) + 17;
  const SparseBytes param(static_cast<std::size_t>(kElements * optimizer().param_element_bytes()));
  const SparseBytes state(static_cast<std::size_t>(optimizer().state_bytes(kElements)));
  const SparseBytes gradient(static_cast<std::size_t>(kElements) * sizeof(float));
  if (param.data() == nullptr || state.data() == nullptr || gradient.data() == nullptr) {
    GTEST_SKIP() << "no sparse mappings of this size here";
  }
  constexpr std::int64_t kFar = kBlockElements + 17;  // elements of the last two blocks
  const std::int64_t begin = kElements - kFar;
  std::mt19937_64 random(test_seed());
  const std::vector<float> values = mixed_floats(random, kFar, -9, 2);
  std::memcpy(gradient.data() + static_cast<std::size_t>(begin) * sizeof(float),
              values.data(),
              values.size() * sizeof(float));
  const std::array far_segments = {
      TileSegment{.elements = kElements, .gradient = gradient.data(), .scalars = {.lr = 1e-3}}};
  const std::int64_t blocks = count_blocks(kElements);
  std::vector<UpdateStats> stats(2);
  const FlushToZeroScope flush_to_zero;
  optimizer().update_blocks({.param = param.data(),
                             .state = state.data(),
                             .tile_elements = kElements,
                             .segments = far_segments},
                            {.begin = blocks - 2, .end = blocks},
                            stats);
  // The same two blocks as a tensor of their own.
  std::vector<std::byte> near_param(
      static_cast<std::size_t>(kFar * optimizer().param_element_bytes()));
  std::vector<std::byte> near_state(static_cast<std::size_t>(optimizer().state_bytes(kFar)));
  const std::array near_segments = {TileSegment{
      .elements = kFar, .gradient = values.data(), .scalars = {.lr = 1e-3}, .tensor_begin = begin}};
  std::vector<UpdateStats> near_stats(2);
  optimizer().reference_blocks({.param = near_param.data(),
                                .state = near_state.data(),
                                .tile_elements = kFar,
                                .segments = near_segments},
                               {.begin = 0, .end = 2},
                               near_stats);
  EXPECT_EQ(stats, near_stats);
  EXPECT_EQ(std::memcmp(param.data() + begin * optimizer().param_element_bytes(),
                        near_param.data(),
                        near_param.size()),
            0);
  std::int64_t far_plane = 0;
  std::int64_t near_plane = 0;
  for (const StatePlane& plane : optimizer().planes) {
    EXPECT_EQ(std::memcmp(state.data() + far_plane + plane.bytes(begin),
                          near_state.data() + near_plane,
                          static_cast<std::size_t>(plane.bytes(kFar))),
              0)
        << plane.name;
    far_plane += plane.bytes(kElements);
    near_plane += plane.bytes(kFar);
  }
}

#endif

std::vector<const Optimizer*> all_optimizers() {
  std::vector<const Optimizer*> result;
  for (const Optimizer& optimizer : optimizers()) {
    result.push_back(&optimizer);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Tile, TileTest, testing::ValuesIn(all_optimizers()), [](const auto& test) {
  return std::string(test.param->name) + "_" + std::string(test.param->state) + "_param_" +
         std::string(dtype_name(test.param->param_dtype));
});

TEST(Optimizers, TheTableIsSearchedByNameAndState) {
  const Optimizer* adamw = find_optimizer("adamw", "fp32");
  ASSERT_NE(adamw, nullptr);
  EXPECT_EQ(adamw->state_bytes(1), 8);
  EXPECT_EQ(adamw->state_bytes(std::int64_t{1} << 31), std::int64_t{1} << 34);
  EXPECT_EQ(adamw->param_element_bytes(), 4);
  const std::int64_t million = 1 << 20;
  EXPECT_EQ(find_optimizer("adamw", "fp32", Dtype::kBf16)->state_bytes(million), 10 * million);
  EXPECT_EQ(find_optimizer("adamw", "bf16", Dtype::kF32)->state_bytes(million), 4 * million);
  EXPECT_EQ(find_optimizer("adamw", "bf16", Dtype::kBf16)->state_bytes(million), 6 * million);
  for (const Dtype compute : {Dtype::kF32, Dtype::kBf16}) {
    const Optimizer* q8 = find_optimizer("adamw", "q8", compute);
    EXPECT_EQ(q8->param_dtype, Dtype::kBf16);
    EXPECT_EQ(q8->state_bytes(million), million / 64 * 208);
    EXPECT_EQ(q8->state_bytes(1), 208);
    EXPECT_EQ(q8->state_bytes(65), 2 * 208);
  }
  EXPECT_EQ(find_optimizer("adamw", "q4"), nullptr);
  EXPECT_EQ(find_optimizer("sgd", "fp32"), nullptr);
}

TEST(Optimizers, StatisticsOfBlocksAddUpWithTheFirstIndexOfAll) {
  const std::array blocks = {
      UpdateStats{.sum_squares = 1.0},
      UpdateStats{.sum_squares = 2.0, .non_finite_count = 2, .first_non_finite = 5},
      UpdateStats{.sum_squares = 4.0, .non_finite_count = 1, .first_non_finite = 0}};
  const UpdateStats sum = sum_stats(blocks);
  EXPECT_EQ(sum.sum_squares, 7.0);
  EXPECT_EQ(sum.non_finite_count, 3);
  EXPECT_EQ(sum.first_non_finite, kBlockElements + 5);
}

TEST(OptimizersDeathTest, SegmentsThatOverlapOrLeaveTheirTileAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto update = [](std::vector<TileSegment> segments) {
    const auto threads = Threads::create(1).value();
    std::vector<std::byte> param(400);
    std::vector<std::byte> state(800);
    std::vector<float> gradient(200);
    for (TileSegment& segment : segments) {
      segment.gradient = gradient.data();
    }
    std::vector<UpdateStats> stats(segments.size());
    update_tile(
        optimizers().front(),
        {.param = param.data(), .state = state.data(), .tile_elements = 100, .segments = segments},
        stats,
        *threads);
  };
  EXPECT_DEATH(
      update({{.offset_elements = 0, .elements = 50}, {.offset_elements = 49, .elements = 1}}),
      "overlap");
  EXPECT_DEATH(update({{.offset_elements = 50, .elements = 51}}), "within their tile");
}

}  // namespace
}  // namespace headrace::optim
