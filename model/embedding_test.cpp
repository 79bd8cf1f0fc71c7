// The embedding against a plain reference, with tiles cut at every awkward place.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/assert.hpp"
#include "model/test_support.hpp"
#include "model/units.hpp"

namespace headrace::model {
namespace {

constexpr std::int64_t kVocab = 97;
constexpr std::int64_t kColumns = 20;
constexpr std::int64_t kSeqLen = 9;
constexpr std::int64_t kMicroBatch = 3;
constexpr std::int64_t kRows = kMicroBatch * kSeqLen;
constexpr std::int64_t kAccumulate = 2;

Architecture architecture(Family family) {
  Architecture a;
  a.family = family;
  a.layers = 1;
  a.hidden = kColumns;
  a.heads = 2;
  a.kv_heads = 2;
  a.head_dim = 10;
  a.ffn = 16;
  a.vocab = kVocab;
  a.max_seq_len = 12;
  a.tied = true;
  return a;
}

// One embedding with weights, tokens of two micro-batches, and the slots of the rows they touch.
class EmbeddingCase {
 public:
  EmbeddingCase(Family family, int threads) : random(test_seed()) {
    const Architecture a = architecture(family);
    const BatchShape batch{.micro_batch = kMicroBatch,
                           .seq_len = kSeqLen,
                           .accumulate = kAccumulate,
                           .compute_threads = threads};
    Result<plan::ModelSpec> made = make_model_spec(a, batch, {});
    HEADRACE_ASSERT(made, "the test's model is valid");
    spec = std::move(*made);
    embedding = make_embedding(spec, batch);
    weights.assign(static_cast<std::size_t>(unit().elements), 0.0F);
    for (const plan::TensorSpec& tensor : unit().tensors) {
      const std::vector<float> values = random_floats(random, tensor.elements);
      std::copy(values.begin(), values.end(), weights.begin() + tensor.offset);
    }
    for (std::int64_t i = 0; i < kAccumulate * kRows; ++i) {
      tokens_.push_back(
          static_cast<std::int32_t>(random() % 30 * 3));  // repeats; some rows untouched
    }
    tokens_[0] = 0;
    tokens_[1] = kVocab - 1;
    make_slots();
  }

  [[nodiscard]] const plan::UnitSpec& unit() const { return spec.units.front(); }

  [[nodiscard]] const std::int32_t* tokens(std::int64_t micro_batch) const {
    return tokens_.data() + micro_batch * kRows;
  }

  [[nodiscard]] std::int32_t index(std::size_t table,
                                   std::int64_t micro_batch,
                                   std::int64_t n) const {
    return table == 0 ? tokens(micro_batch)[n] : static_cast<std::int32_t>(n % kSeqLen);
  }

  [[nodiscard]] std::int64_t slot_count() const {
    std::size_t count = 0;
    for (const std::vector<std::int32_t>& rows : row_of) {
      count += rows.size();
    }
    return static_cast<std::int64_t>(count);
  }

  // Row sums of all micro-batches, as the contract says: a micro-batch's sum first, then added.
  [[nodiscard]] std::vector<float> reference_sums(const std::vector<float>& dx) const {
    std::vector<float> sums(static_cast<std::size_t>(slot_count() * kColumns), 0.0F);
    for (std::size_t t = 0; t < slot_of.size(); ++t) {
      for (std::int64_t k = 0; k < kAccumulate; ++k) {
        for (std::size_t slot = 0; slot < row_of[t].size(); ++slot) {
          for (std::int64_t c = 0; c < kColumns; ++c) {
            float sum = 0.0F;
            bool touched = false;
            for (std::int64_t n = 0; n < kRows; ++n) {
              if (index(t, k, n) == row_of[t][slot]) {
                sum += dx[static_cast<std::size_t>((k * kRows + n) * kColumns + c)];
                touched = true;
              }
            }
            float& place = sums[static_cast<std::size_t>(
                (slots.first_slot[t] + static_cast<std::int64_t>(slot)) * kColumns + c)];
            place = k == 0 ? sum : (touched ? place + sum : place);
          }
        }
      }
    }
    return sums;
  }

  std::mt19937_64 random;
  plan::ModelSpec spec;
  std::unique_ptr<exec::Embedding> embedding;
  std::vector<float> weights;
  exec::RowSlots slots;
  std::vector<std::vector<std::int32_t>> slot_of, row_of;

 private:
  void make_slots() {
    std::int64_t first = 0;
    for (std::size_t t = 0; t < spec.tables.size(); ++t) {
      std::set<std::int32_t> touched;
      for (std::int64_t k = 0; k < kAccumulate; ++k) {
        for (std::int64_t n = 0; n < kRows; ++n) {
          touched.insert(index(t, k, n));
        }
      }
      row_of.emplace_back(touched.begin(), touched.end());
      slot_of.emplace_back(static_cast<std::size_t>(spec.tables[t].rows), -1);
      for (std::size_t slot = 0; slot < row_of[t].size(); ++slot) {
        slot_of[t][static_cast<std::size_t>(row_of[t][slot])] = static_cast<std::int32_t>(slot);
      }
      slots.first_slot.push_back(first);
      first += static_cast<std::int64_t>(row_of[t].size());
    }
    for (std::size_t t = 0; t < row_of.size(); ++t) {
      slots.slot_of.emplace_back(slot_of[t]);
      slots.row_of.emplace_back(row_of[t]);
    }
  }

  std::vector<std::int32_t> tokens_;
};

// Ends of tiles: whole; every element of a row's width; across tables and padding; random.
std::vector<std::vector<std::int64_t>> cuttings(const plan::UnitSpec& unit,
                                                std::mt19937_64& random) {
  std::vector<std::vector<std::int64_t>> all{{unit.elements}};
  for (const std::int64_t step :
       {std::int64_t{1}, kColumns - 1, kColumns, kColumns + 7, std::int64_t{513}}) {
    std::vector<std::int64_t> ends;
    for (std::int64_t end = step; end < unit.elements; end += step) {
      ends.push_back(end);
    }
    ends.push_back(unit.elements);
    all.push_back(ends);
  }
  std::set<std::int64_t> edges{unit.elements};
  for (const plan::TensorSpec& tensor : unit.tensors) {
    for (const std::int64_t edge : {tensor.offset, tensor.offset + tensor.elements}) {
      for (const std::int64_t near : {edge - 1, edge, edge + 1}) {
        if (near > 0 && near < unit.elements) {
          edges.insert(near);
        }
      }
    }
  }
  all.emplace_back(edges.begin(), edges.end());
  std::set<std::int64_t> ends{unit.elements};
  for (int i = 0; i < 40; ++i) {
    ends.insert(1 +
                static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(unit.elements)));
  }
  all.emplace_back(ends.begin(), ends.end());
  return all;
}

class Embedding : public testing::TestWithParam<std::tuple<Family, int>> {
 protected:
  Embedding() : case_(std::get<0>(GetParam()), std::get<1>(GetParam())) {}

  EmbeddingCase case_;
};

TEST_P(Embedding, GatherSumsTheTablesRowsWhereverTilesAreCut) {
  std::vector<float> expected(static_cast<std::size_t>(kRows * kColumns), 0.0F);
  for (std::size_t t = 0; t < case_.spec.tables.size(); ++t) {
    const std::int64_t offset = case_.unit().tensors[t].offset;
    for (std::int64_t n = 0; n < kRows; ++n) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        expected[static_cast<std::size_t>(n * kColumns + c)] +=
            case_.weights[static_cast<std::size_t>(offset + case_.index(t, 1, n) * kColumns + c)];
      }
    }
  }
  for (const std::vector<std::int64_t>& ends : cuttings(case_.unit(), case_.random)) {
    QueueBench bench;
    std::vector<float> x(expected.size(), NAN);
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      case_.embedding->gather(bench.call(),
                              case_.weights.data() + begin,
                              begin,
                              end - begin,
                              case_.tokens(1),
                              x.data(),
                              begin == 0);
      begin = end;
    }
    bench.finish();
    EXPECT_TRUE(same_bits(x, expected)) << ends.size() << " tiles";
  }
}

TEST_P(Embedding, ScatterAndSpreadGiveTheTablesGradientWhereverTilesAreCut) {
  const std::vector<float> dx = random_floats(case_.random, kAccumulate * kRows * kColumns);
  const std::vector<float> sums = case_.reference_sums(dx);
  std::vector<float> accumulators(sums.size(), NAN);
  QueueBench bench;
  for (std::int64_t k = 0; k < kAccumulate; ++k) {
    case_.embedding->scatter(bench.call(),
                             dx.data() + k * kRows * kColumns,
                             case_.tokens(k),
                             case_.slots,
                             accumulators.data(),
                             k == 0);
  }
  bench.finish();
  ASSERT_TRUE(same_bits(accumulators, sums));

  const std::vector<float> head = random_floats(case_.random, case_.unit().elements);
  for (const bool has_head : {false, true}) {
    std::vector<float> expected(head.size(), 0.0F);
    for (std::size_t t = 0; t < case_.spec.tables.size(); ++t) {
      const plan::TensorSpec& tensor = case_.unit().tensors[t];
      for (std::int64_t i = 0; i < tensor.elements; ++i) {
        const auto at = static_cast<std::size_t>(tensor.offset + i);
        const std::int32_t slot = case_.slot_of[t][static_cast<std::size_t>(i / kColumns)];
        const float of_head = has_head ? head[at] : 0.0F;
        expected[at] = slot < 0
                           ? of_head
                           : sums[static_cast<std::size_t>(
                                 (case_.slots.first_slot[t] + slot) * kColumns + i % kColumns)] +
                                 of_head;
      }
    }
    for (const std::vector<std::int64_t>& ends : cuttings(case_.unit(), case_.random)) {
      QueueBench spread_bench;
      std::vector<float> gradient = has_head ? head : std::vector<float>(head.size(), NAN);
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) {
        float* part = gradient.data() + begin;
        case_.embedding->spread(spread_bench.call(),
                                accumulators.data(),
                                case_.slots,
                                begin,
                                end - begin,
                                has_head ? part : nullptr,  // in place, as the executor does
                                part);
        begin = end;
      }
      spread_bench.finish();
      EXPECT_TRUE(same_bits(gradient, expected)) << ends.size() << " tiles, head " << has_head;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         Embedding,
                         testing::Combine(testing::Values(Family::kGpt2, Family::kLlama),
                                          testing::Values(1, 3)),
                         [](const auto& test) {
                           return std::string(family_name(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param)) + "_threads";
                         });

}  // namespace
}  // namespace headrace::model
