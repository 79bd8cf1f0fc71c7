// Causal attention against float64: any head_dim, grouped heads, packed and separate operands.

#include <cmath>
#include <limits>

#include "kernels/conformance.hpp"
#include "kernels/conformance_reference.hpp"

namespace headrace::kernels::conformance {

HEADRACE_CONFORMANCE(Attention);

namespace {

AttentionShape shape_of(const ReferenceAttention& s) {
  return {s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, s.window};
}

struct Operands {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> dout;
};

Operands operands_of(Random& random, const ReferenceAttention& s) {
  const std::int64_t rows = s.batch * s.sequence;
  return {random.normal(rows * s.heads * s.head_dim),
          random.normal(rows * s.kv_heads * s.head_dim),
          random.normal(rows * s.kv_heads * s.head_dim),
          random.normal(rows * s.heads * s.head_dim)};
}

struct Result {
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> dq;
  std::vector<float> dk;
  std::vector<float> dv;
};

// Forward and backward with separate operands.
Result run(Backend& backend, const ReferenceAttention& s, const Operands& in, int threads) {
  const AttentionShape shape = shape_of(s);
  const std::int64_t rows = s.batch * s.sequence;
  const std::int64_t width = s.heads * s.head_dim;
  const std::int64_t kv_width = s.kv_heads * s.head_dim;
  Result result;
  {
    Case test(backend);
    const auto q = test.input(in.q, 1);
    const auto k = test.input(in.k, 2);
    const auto v = test.input(in.v, 3);
    const auto out = test.output<float>(rows * width, 5);
    const auto lse = test.output<float>(rows * s.heads, 7);
    test.run(attention_workspace_bytes(shape, threads), threads, [&](const Context& context) {
      attention(context,
                {.shape = shape,
                 .scale = s.scale,
                 .q = {q.data(), width},
                 .k = {k.data(), kv_width},
                 .v = {v.data(), kv_width},
                 .out = {out.data(), width},
                 .lse = lse.data()});
    });
    result.out = out.get();
    result.lse = lse.get();
  }
  Case test(backend);
  const auto q = test.input(in.q, 1);
  const auto k = test.input(in.k, 2);
  const auto v = test.input(in.v, 3);
  const auto out = test.input(result.out, 5);
  const auto dout = test.input(in.dout, 6);
  const auto lse = test.input(result.lse, 7);
  const auto dq = test.output<float>(rows * width, 1);
  const auto dk = test.output<float>(rows * kv_width, 9);
  const auto dv = test.output<float>(rows * kv_width, 11);
  test.run(
      attention_backward_workspace_bytes(shape, threads), threads, [&](const Context& context) {
        attention_backward(context,
                           {.shape = shape,
                            .scale = s.scale,
                            .q = {q.data(), width},
                            .k = {k.data(), kv_width},
                            .v = {v.data(), kv_width},
                            .out = {out.data(), width},
                            .dout = {dout.data(), width},
                            .lse = lse.data(),
                            .dq = {dq.data(), width},
                            .dk = {dk.data(), kv_width},
                            .dv = {dv.data(), kv_width}});
      });
  result.dq = dq.get();
  result.dk = dk.get();
  result.dv = dv.get();
  return result;
}

std::string text_of(const ReferenceAttention& s) {
  return "batch " + std::to_string(s.batch) + ", sequence " + std::to_string(s.sequence) +
         ", heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", head_dim " +
         std::to_string(s.head_dim) + ", window " + std::to_string(s.window);
}

void expect_reference(Backend& backend, const ReferenceAttention& s, Random& random) {
  SCOPED_TRACE(text_of(s));
  const Operands in = operands_of(random, s);
  const Doubles q = widen(in.q);
  const Doubles k = widen(in.k);
  const Doubles v = widen(in.v);
  const ReferenceAttentionResult forward = reference_attention(s, q, k, v);
  const ReferenceAttentionGradient backward =
      reference_attention_backward(s, q, k, v, widen(in.dout));
  const Result got = run(backend, s, in, 2);
  expect_close(got.out, forward.out, 2e-6, "out");
  expect_close(got.lse, forward.lse, 2e-6, "lse");
  expect_close(got.dq, backward.dq, 4e-6, "dq", 1.0);
  expect_close(got.dk, backward.dk, 4e-6, "dk", 1.0);
  expect_close(got.dv, backward.dv, 4e-6, "dv", 1.0);
}

}  // namespace

TEST_P(Attention, EqualsTheReferenceForSequencesAroundTiles) {
  Random random(40);
  for (const std::int64_t sequence : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257}) {
    expect_reference(backend(),
                     {.batch = 1,
                      .sequence = sequence,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 8,
                      .scale = 1.0 / std::sqrt(8.0)},
                     random);
  }
}

TEST_P(Attention, EqualsTheReferenceForAnyHeadDim) {
  Random random(41);
  for (const std::int64_t head_dim : {1, 3, 16, 20, 31, 64, 80, 128, 255, 256}) {
    expect_reference(backend(),
                     {.batch = 1,
                      .sequence = 70,
                      .heads = 1,
                      .kv_heads = 1,
                      .head_dim = head_dim,
                      .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))},
                     random);
  }
}

TEST_P(Attention, EqualsTheReferenceForGroupedHeadsAndBatches) {
  Random random(42);
  const std::int64_t heads[][2] = {{1, 1}, {4, 4}, {4, 2}, {6, 2}, {6, 1}};
  for (const auto& [query_heads, kv_heads] : heads) {
    expect_reference(backend(),
                     {.batch = 3,
                      .sequence = 37,
                      .heads = query_heads,
                      .kv_heads = kv_heads,
                      .head_dim = 12,
                      .scale = 0.3},
                     random);
  }
}

// Windows and sequences around tiles of queries (64) and keys (128).
TEST_P(Attention, EqualsTheReferenceForWindows) {
  Random random(47);
  for (const std::int64_t sequence : {1, 40, 129, 257, 330}) {
    for (const std::int64_t window : {1, 2, 17, 63, 64, 65, 127, 128, 129, 200}) {
      expect_reference(backend(),
                       {.batch = 1,
                        .sequence = sequence,
                        .heads = 2,
                        .kv_heads = 1,
                        .head_dim = 6,
                        .scale = 0.4,
                        .window = window},
                       random);
    }
  }
}

void expect_same_bits(const Result& found, const Result& expected) {
  EXPECT_TRUE(same_bits(found.out, expected.out));
  EXPECT_TRUE(same_bits(found.lse, expected.lse));
  EXPECT_TRUE(same_bits(found.dq, expected.dq));
  EXPECT_TRUE(same_bits(found.dk, expected.dk));
  EXPECT_TRUE(same_bits(found.dv, expected.dv));
}

TEST_P(Attention, AWindowOfTheWholeSequenceIsNone) {
  Random random(48);
  ReferenceAttention s = {
      .batch = 2, .sequence = 150, .heads = 2, .kv_heads = 1, .head_dim = 8, .scale = 0.3};
  const Operands in = operands_of(random, s);
  const Result whole = run(backend(), s, in, 2);
  for (const std::int64_t window : {150, 151, 100000}) {
    s.window = window;
    expect_same_bits(run(backend(), s, in, 2), whole);
  }
}

TEST_P(Attention, TheTeamDoesNotShowInTheBits) {
  Random random(43);
  ReferenceAttention s = {
      .batch = 2, .sequence = 150, .heads = 4, .kv_heads = 2, .head_dim = 24, .scale = 0.2};
  const Operands in = operands_of(random, s);
  for (const std::int64_t window : {0, 20}) {
    s.window = window;
    const Result one = run(backend(), s, in, 1);
    for (const int threads : {2, 3}) {
      expect_same_bits(run(backend(), s, in, threads), one);
    }
  }
}

TEST_P(Attention, PackedOperandsGiveTheBitsOfSeparateOnes) {
  Random random(44);
  const ReferenceAttention s = {
      .batch = 2, .sequence = 67, .heads = 3, .kv_heads = 3, .head_dim = 10, .scale = 0.5};
  const AttentionShape shape = shape_of(s);
  const Operands in = operands_of(random, s);
  const Result separate = run(backend(), s, in, 2);
  const std::int64_t rows = s.batch * s.sequence;
  const std::int64_t width = s.heads * s.head_dim;
  const auto row_at = [&](std::int64_t row) { return static_cast<std::ptrdiff_t>(row * width); };
  std::vector<float> packed;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const auto* part : {&in.q, &in.k, &in.v}) {
      packed.insert(packed.end(), part->begin() + row_at(row), part->begin() + row_at(row + 1));
    }
  }
  Case forward(backend());
  forward.spans_lie_inside_arrays();
  const auto qkv = forward.input(packed, 1);
  const auto out = forward.output<float>(rows * width);
  const auto lse = forward.output<float>(rows * s.heads);
  const auto part = [&](float* data, std::int64_t index) {
    return Rows{data + index * width, 3 * width};
  };
  forward.run(attention_workspace_bytes(shape, 2), 2, [&](const Context& context) {
    attention(context,
              {.shape = shape,
               .scale = s.scale,
               .q = part(qkv.data(), 0),
               .k = part(qkv.data(), 1),
               .v = part(qkv.data(), 2),
               .out = {out.data(), width},
               .lse = lse.data()});
  });
  EXPECT_TRUE(same_bits(out.get(), separate.out));
  EXPECT_TRUE(same_bits(lse.get(), separate.lse));

  Case backward(backend());
  backward.spans_lie_inside_arrays();
  const auto qkv_again = backward.input(packed, 1);
  const auto out_again = backward.input(separate.out);
  const auto dout = backward.input(in.dout);
  const auto lse_again = backward.input(separate.lse);
  const auto dqkv = backward.output<float>(rows * 3 * width, 2);
  backward.run(attention_backward_workspace_bytes(shape, 2), 2, [&](const Context& context) {
    attention_backward(context,
                       {.shape = shape,
                        .scale = s.scale,
                        .q = part(qkv_again.data(), 0),
                        .k = part(qkv_again.data(), 1),
                        .v = part(qkv_again.data(), 2),
                        .out = {out_again.data(), width},
                        .dout = {dout.data(), width},
                        .lse = lse_again.data(),
                        .dq = part(dqkv.data(), 0),
                        .dk = part(dqkv.data(), 1),
                        .dv = part(dqkv.data(), 2)});
  });
  const std::vector<float> got = dqkv.get();
  std::vector<float> expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const auto* gradient : {&separate.dq, &separate.dk, &separate.dv}) {
      expected.insert(
          expected.end(), gradient->begin() + row_at(row), gradient->begin() + row_at(row + 1));
    }
  }
  EXPECT_TRUE(same_bits(got, expected));
}

TEST_P(Attention, ScoresFarApartDoNotOverflow) {
  Random random(45);
  const ReferenceAttention s = {
      .batch = 1, .sequence = 140, .heads = 1, .kv_heads = 1, .head_dim = 4, .scale = 30.0};
  const Operands in = operands_of(random, s);
  const Result got = run(backend(), s, in, 1);
  const ReferenceAttentionResult expected =
      reference_attention(s, widen(in.q), widen(in.k), widen(in.v));
  expect_close(got.out, expected.out, 1e-4, "out");
}

TEST_P(Attention, NanShowsFromItsRowOnAndNotBefore) {
  Random random(46);
  const ReferenceAttention s = {
      .batch = 1, .sequence = 200, .heads = 1, .kv_heads = 1, .head_dim = 8, .scale = 0.35};
  Operands in = operands_of(random, s);
  in.k[150 * 8 + 3] = std::numeric_limits<float>::quiet_NaN();
  const Result got = run(backend(), s, in, 1);
  for (std::size_t row = 0; row < 200; ++row) {
    EXPECT_EQ(std::isnan(got.out[row * 8]), row >= 150) << "row " << row;
    EXPECT_EQ(std::isnan(got.lse[row]), row >= 150) << "row " << row;
  }
}

TEST_P(Attention, NanShowsOnlyWhereTheWindowHoldsIt) {
  Random random(49);
  const ReferenceAttention s = {.batch = 1,
                                .sequence = 300,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 8,
                                .scale = 0.35,
                                .window = 20};
  Operands in = operands_of(random, s);
  in.k[150 * 8 + 3] = std::numeric_limits<float>::quiet_NaN();
  const Result got = run(backend(), s, in, 1);
  for (std::size_t row = 0; row < 300; ++row) {
    EXPECT_EQ(std::isnan(got.out[row * 8]), row >= 150 && row < 170) << "row " << row;
  }
}

TEST_P(Attention, WorkspaceDoesNotGrowWithTheSequence) {
  EXPECT_EQ(attention_workspace_bytes({1, 128, 4, 4, 64}, 2),
            attention_workspace_bytes({1, 8192, 4, 4, 64}, 2));
  EXPECT_EQ(attention_backward_workspace_bytes({1, 128, 4, 4, 64}, 2),
            attention_backward_workspace_bytes({1, 8192, 4, 4, 64}, 2));
}

}  // namespace headrace::kernels::conformance
