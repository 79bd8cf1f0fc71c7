// Blocks against PyTorch's autograd in float64 (testdata/make_fixtures.py), accumulation, frozen
// tensors; the head against a plain reference in float64, for any cut in pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"
#include "model/safetensors.hpp"
#include "model/test_support.hpp"
#include "model/units.hpp"

namespace headrace::model {
namespace {

constexpr double kTolerance = 1e-5;

// A fixture, and a model of one layer that its tensors fit.
struct Fixture {
  explicit Fixture(const std::string& name)
      : file(*SafetensorsFile::open(std::string(HEADRACE_MODEL_TESTDATA) + "/" + name)) {
    const auto number = [&](const char* key, std::int64_t otherwise) {
      const auto found = file.metadata().find(key);
      return found == file.metadata().end() ? otherwise : std::stoll(found->second);
    };
    a.family = name.starts_with("gpt2") ? Family::kGpt2 : Family::kLlama;
    a.layers = 1;
    a.hidden = number("hidden", 0);
    a.heads = number("heads", 0);
    a.kv_heads = number("kv_heads", a.heads);
    a.head_dim = number("head_dim", a.hidden / a.heads);
    a.ffn = number("ffn", 0);
    a.vocab = 64;
    a.max_seq_len = 64;
    const auto has = [&](const char* tensor) { return file.find(tensor) != nullptr; };
    a.qkv_bias = has("weight.self_attn.q_proj.bias");
    a.output_bias = has("weight.self_attn.o_proj.bias");
    a.mlp_bias = has("weight.mlp.up_proj.bias");
    a.qk_norm = has("weight.self_attn.q_norm.weight");
    a.dialect = name.starts_with("qwen2")   ? Dialect::kQwen2
                : name.starts_with("qwen3") ? Dialect::kQwen3
                                            : Dialect::kLlama;
    a.norm_eps = has("weight.mlp.up_proj.bias") ? 1e-6 : 1e-5;
    a.rope_theta = static_cast<double>(number("theta", 10000));
    batch.micro_batch = number("batch", 0);
    batch.seq_len = number("seq", 0);
  }

  [[nodiscard]] std::vector<float> values(const std::string& name) const {
    const SafetensorsTensor* tensor = file.find(name);
    HEADRACE_ASSERT(tensor != nullptr, "the fixture lacks a tensor");
    std::vector<float> result(static_cast<std::size_t>(tensor->elements));
    HEADRACE_ASSERT(file.read(*tensor, 0, result), "the fixture is readable");
    return result;
  }

  SafetensorsFile file;
  Architecture a;
  BatchShape batch;
};

// "transformer.h.0.ln_1.weight" -> "ln_1.weight"
std::string short_name(const std::string& name) {
  return name.substr(name.find(".0.") + 3);
}

// A block with its fixture's weights and all memory that its calls need.
class BlockBench {
 public:
  BlockBench(const Fixture& fixture, int threads, const OptimSection& optim = {})
      : fixture_(fixture), batch_(fixture.batch) {
    batch_.compute_threads = threads;
    Result<plan::ModelSpec> made_spec = make_model_spec(fixture.a, batch_, optim);
    HEADRACE_ASSERT(made_spec, "the fixture's model is valid");
    spec_ = std::move(*made_spec);
    Result<exec::Model> model = make_model(fixture.a, spec_, batch_);
    HEADRACE_ASSERT(model, "the fixture's model can be made");
    model_ = std::move(*model);
    weights_.assign(static_cast<std::size_t>(unit().elements), NAN);
    for (const plan::TensorSpec& tensor : unit().tensors) {
      const std::vector<float> values = fixture.values("weight." + short_name(tensor.name));
      HEADRACE_ASSERT(static_cast<std::int64_t>(values.size()) == tensor.elements, "shapes agree");
      std::copy(values.begin(), values.end(), weights_.begin() + tensor.offset);
    }
    input_ = fixture.values("input");
    output.assign(input_.size(), NAN);
    gradients.assign(weights_.size(), NAN);
  }

  [[nodiscard]] const plan::UnitSpec& unit() const { return spec_.units[1]; }

  void forward() {
    Memory workspace(unit().cost.forward_workspace_bytes);
    QueueBench bench;
    model_.blocks[0]->forward(bench.call(workspace.bytes()),
                              weights_.data(),
                              input_.data(),
                              output.data(),
                              saved().bytes());
    bench.finish();
  }

  // The input's gradient; weights' gradients go to gradients unless `frozen`.
  std::vector<float> backward(exec::GradientMode mode, bool frozen = false) {
    Memory workspace(unit().cost.backward_workspace_bytes);
    std::vector<float> gradient = fixture_.values("output_gradient");
    QueueBench bench;
    model_.blocks[0]->backward(bench.call(workspace.bytes()),
                               weights_.data(),
                               input_.data(),
                               saved().bytes(),
                               gradient.data(),
                               frozen ? nullptr : gradients.data(),
                               mode);
    bench.finish();
    return gradient;
  }

  [[nodiscard]] std::span<const float> gradient_of(const plan::TensorSpec& tensor) const {
    return std::span(gradients).subspan(static_cast<std::size_t>(tensor.offset),
                                        static_cast<std::size_t>(tensor.elements));
  }

  Memory& saved() {
    if (!saved_) {
      saved_ = std::make_unique<Memory>(unit().cost.saved_bytes);
    }
    return *saved_;
  }

  void forget_saved() { saved_.reset(); }

  std::vector<float> output, gradients;

 private:
  const Fixture& fixture_;
  BatchShape batch_;
  plan::ModelSpec spec_;
  exec::Model model_;
  std::vector<float> weights_, input_;
  std::unique_ptr<Memory> saved_;
};

class Blocks : public testing::TestWithParam<const char*> {
 protected:
  Blocks() : fixture_(std::string(GetParam()) + ".safetensors") {}

  Fixture fixture_;
};

TEST_P(Blocks, ForwardAndBackwardAgreeWithPyTorchInFloat64) {
  for (const int threads : {1, 2}) {
    BlockBench bench(fixture_, threads);
    bench.forward();
    EXPECT_LT(relative_error(bench.output, fixture_.values("output")), kTolerance);
    const std::vector<float> dx = bench.backward(exec::GradientMode::kStore);
    EXPECT_LT(relative_error(dx, fixture_.values("input_gradient")), kTolerance);
    for (const plan::TensorSpec& tensor : bench.unit().tensors) {
      const std::vector<float> expected = fixture_.values("gradient." + short_name(tensor.name));
      // A bias of keys has no effect on softmax: its gradient is rounding noise, here and there.
      const bool is_noise = tensor.name.ends_with("k_proj.bias") &&
                            relative_error(expected, std::vector<float>(expected.size())) < 1e-9;
      EXPECT_LT(relative_error(bench.gradient_of(tensor), expected), is_noise ? 1e-4 : kTolerance)
          << tensor.name;
    }
  }
}

TEST_P(Blocks, ASecondMicroBatchIsAddedInFull) {
  BlockBench bench(fixture_, 1);
  bench.forward();
  const std::vector<float> dx = bench.backward(exec::GradientMode::kStore);
  const std::vector<float> once = bench.gradients;
  EXPECT_TRUE(same_bits(bench.backward(exec::GradientMode::kAdd), dx));
  for (const plan::TensorSpec& tensor : bench.unit().tensors) {
    for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(bench.gradients[at], once[at] + once[at]) << tensor.name;
    }
  }
}

TEST_P(Blocks, RecomputingGivesTheSameBits) {
  BlockBench bench(fixture_, 2);
  bench.forward();
  const std::vector<float> output = bench.output;
  const std::vector<float> dx = bench.backward(exec::GradientMode::kStore);
  const std::vector<float> gradients = bench.gradients;
  bench.forget_saved();
  bench.forward();
  EXPECT_TRUE(same_bits(bench.output, output));
  EXPECT_TRUE(same_bits(bench.backward(exec::GradientMode::kStore), dx));
  EXPECT_TRUE(same_bits(bench.gradients, gradients));
}

TEST_P(Blocks, FrozenTensorsGetNoGradientAndChangeNoOther) {
  BlockBench plain(fixture_, 1);
  plain.forward();
  const std::vector<float> dx = plain.backward(exec::GradientMode::kStore);
  const std::vector<plan::TensorSpec> tensors = plain.unit().tensors;
  for (const plan::TensorSpec& frozen : tensors) {
    OptimSection optim;
    optim.group.resize(1);
    optim.group[0].match = {frozen.name};
    optim.group[0].frozen = true;
    BlockBench bench(fixture_, 1, optim);
    bench.forward();
    EXPECT_TRUE(same_bits(bench.backward(exec::GradientMode::kStore), dx));
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::span<const float> gradient = bench.gradient_of(bench.unit().tensors[t]);
      if (tensors[t].name == frozen.name) {
        EXPECT_TRUE(
            std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isnan(x); }));
      } else {
        EXPECT_TRUE(same_bits(gradient, plain.gradient_of(tensors[t]))) << tensors[t].name;
      }
    }
  }
  EXPECT_TRUE(same_bits(plain.backward(exec::GradientMode::kStore, true), dx));
}

TEST_P(Blocks, NothingIsPreparedAfterTheModelWasMade) {
  BlockBench bench(fixture_, 1);
  const std::uint64_t prepared = kernels::gemms_prepared();
  bench.forward();
  static_cast<void>(bench.backward(exec::GradientMode::kStore));
  static_cast<void>(bench.backward(exec::GradientMode::kAdd));
  EXPECT_EQ(kernels::gemms_prepared(), prepared);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures,
    Blocks,
    testing::Values("gpt2_block", "llama_block", "llama_bias_block", "qwen2_block", "qwen3_block"),
    [](const auto& test) { return std::string(test.param); });

// ---- the head ----------------------------------------------------------------------------------

constexpr std::int64_t kVocab = 300;
constexpr std::int64_t kColumns = 24;
constexpr std::int64_t kChunk = 64;

// A head with chunks of 64 rows, its input, and what float64 makes of it.
class HeadBench {
 public:
  HeadBench(Family family, int threads) : random_(test_seed()) {
    a_.family = family;
    a_.layers = 1;
    a_.hidden = kColumns;
    a_.heads = a_.kv_heads = 2;
    a_.head_dim = 12;
    a_.ffn = 16;
    a_.vocab = kVocab;
    a_.max_seq_len = 16;
    batch_ = {.micro_batch = 2, .seq_len = 5, .accumulate = 1, .compute_threads = threads};
    spec = *make_model_spec(a_, batch_, {});
    spec.head.rows_per_chunk = kChunk;
    set_head_costs(a_, batch_, spec.units.back(), spec.head);
    head_ = make_head(a_, spec, batch_);
    norm_ = random_floats(random_, spec.units.back().pieces[0].elements);
    matrix_ = random_floats(random_, kVocab * kColumns);
    input = random_floats(random_, rows() * kColumns);
    for (std::int64_t n = 0; n < rows(); ++n) {
      targets_.push_back(static_cast<std::int32_t>(n * 31 % kVocab));
    }
    targets_[3] = kernels::kIgnoreTarget;
    workspace_bytes_ = std::max({spec.units.back().cost.backward_workspace_bytes,
                                 spec.head.score.forward_workspace_bytes,
                                 spec.head.gradient.backward_workspace_bytes});
  }

  [[nodiscard]] std::int64_t rows() const { return spec.rows(); }

  struct Outcome {
    double loss = 0;
    std::vector<float> gradient, weight_gradients, norm_gradients, logits;
  };

  // Pieces end at `ends`: multiples of kChunk, then kVocab.
  Outcome run(const std::vector<std::int64_t>& ends) {
    Outcome out;
    out.gradient.assign(input.size(), NAN);
    out.weight_gradients.assign(matrix_.size(), NAN);
    out.norm_gradients.assign(norm_.size(), NAN);
    const std::vector<std::int64_t> positions{rows() - 1, 2};
    out.logits.assign(positions.size() * kVocab, NAN);
    Memory workspace(workspace_bytes_);
    Memory state(spec.head.state_bytes);
    QueueBench bench;
    const exec::Call call = bench.call(workspace.bytes());
    head_->begin(call, norm_.data(), input.data(), state.bytes());
    const auto each_piece = [&](auto&& body) {
      std::int64_t first = 0;
      for (const std::int64_t end : ends) {
        body(exec::Head::Rows{matrix_.data() + first * kColumns, first, end - first});
        first = end;
      }
    };
    each_piece([&](const exec::Head::Rows& piece) {
      head_->score(call, piece, targets_.data(), state.bytes());
    });
    head_->loss(call, targets_.data(), state.bytes(), &out.loss);
    each_piece([&](const exec::Head::Rows& piece) {
      head_->gradient(call,
                      piece,
                      targets_.data(),
                      kScale,
                      state.bytes(),
                      piece.first_row == 0,
                      out.gradient.data(),
                      out.weight_gradients.data() + piece.first_row * kColumns,
                      exec::GradientMode::kStore);
      head_->logits(call, piece, positions, state.bytes(), out.logits.data());
    });
    head_->end(call,
               norm_.data(),
               input.data(),
               state.bytes(),
               out.gradient.data(),
               out.norm_gradients.data(),
               exec::GradientMode::kStore);
    bench.finish();
    return out;
  }

  // Loss (a sum over targets, unscaled) in float64 for a given input.
  [[nodiscard]] double reference_loss(const std::vector<double>& x_all) const {
    double total = 0;
    for (std::int64_t n = 0; n < rows(); ++n) {
      const std::vector<double> logits = reference_logits(x_all, n);
      const std::int32_t target = targets_[static_cast<std::size_t>(n)];
      if (target == kernels::kIgnoreTarget) {
        continue;
      }
      double sum = 0;
      for (const double logit : logits) {
        sum += std::exp(logit);
      }
      total += std::log(sum) - logits[static_cast<std::size_t>(target)];
    }
    return total;
  }

  [[nodiscard]] std::vector<double> reference_logits(const std::vector<double>& x_all,
                                                     std::int64_t n) const {
    const double* x = x_all.data() + n * kColumns;
    const plan::UnitSpec& unit = spec.units.back();
    const bool centred = a_.family == Family::kGpt2;
    double mean = 0;
    double square = 0;
    for (std::int64_t c = 0; c < kColumns; ++c) {
      mean += centred ? x[c] / kColumns : 0.0;
    }
    for (std::int64_t c = 0; c < kColumns; ++c) {
      square += (x[c] - mean) * (x[c] - mean) / kColumns;
    }
    std::vector<double> logits(kVocab, 0.0);
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const double gain = norm_[static_cast<std::size_t>(unit.tensors[0].offset + c)];
      const double bias =
          centred ? norm_[static_cast<std::size_t>(unit.tensors[1].offset + c)] : 0.0;
      const double normed = (x[c] - mean) / std::sqrt(square + a_.norm_eps) * gain + bias;
      for (std::int64_t v = 0; v < kVocab; ++v) {
        logits[static_cast<std::size_t>(v)] +=
            normed * static_cast<double>(matrix_[static_cast<std::size_t>(v * kColumns + c)]);
      }
    }
    return logits;
  }

  static constexpr float kScale = 0.125F;
  plan::ModelSpec spec;
  std::vector<float> input;

 private:
  std::mt19937_64 random_;
  Architecture a_;
  BatchShape batch_;
  std::unique_ptr<exec::Head> head_;
  std::vector<float> norm_, matrix_;
  std::vector<std::int32_t> targets_;
  std::size_t workspace_bytes_ = 0;
};

class Head : public testing::TestWithParam<Family> {};

TEST_P(Head, LossLogitsAndInputGradientAgreeWithFloat64) {
  HeadBench bench(GetParam(), 1);
  const HeadBench::Outcome out = bench.run({kVocab});
  std::vector<double> input(bench.input.begin(), bench.input.end());
  const double loss = bench.reference_loss(input);
  EXPECT_NEAR(out.loss, loss, 1e-5 * loss);
  for (const std::size_t p : {0U, 1U}) {
    const std::vector<double> logits =
        bench.reference_logits(input, p == 0 ? bench.rows() - 1 : std::int64_t{2});
    const std::vector<float> expected(logits.begin(), logits.end());
    EXPECT_LT(relative_error(std::span(out.logits).subspan(p * kVocab, kVocab), expected),
              kTolerance);
  }
  // Central differences of the float64 loss.
  std::vector<float> expected(input.size());
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double step = 1e-5;
    const double before = input[i];
    input[i] = before + step;
    const double above = bench.reference_loss(input);
    input[i] = before - step;
    const double below = bench.reference_loss(input);
    input[i] = before;
    expected[i] = static_cast<float>((above - below) / (2 * step) * HeadBench::kScale);
  }
  EXPECT_LT(relative_error(out.gradient, expected), kTolerance);
}

TEST_P(Head, PiecesDoNotShowInTheNumbers) {
  HeadBench bench(GetParam(), 2);
  const HeadBench::Outcome whole = bench.run({kVocab});
  for (const std::vector<std::int64_t>& ends :
       {std::vector<std::int64_t>{64, 128, 192, 256, kVocab},
        std::vector<std::int64_t>{256, kVocab},
        std::vector<std::int64_t>{64, 192, kVocab}}) {
    const HeadBench::Outcome cut = bench.run(ends);
    EXPECT_EQ(cut.loss, whole.loss);
    EXPECT_TRUE(same_bits(cut.gradient, whole.gradient));
    EXPECT_TRUE(same_bits(cut.weight_gradients, whole.weight_gradients));
    EXPECT_TRUE(same_bits(cut.logits, whole.logits));
    const plan::TensorSpec& gain = bench.spec.units.back().tensors[0];
    EXPECT_TRUE(
        same_bits(std::span(cut.norm_gradients).first(static_cast<std::size_t>(gain.elements)),
                  std::span(whole.norm_gradients).first(static_cast<std::size_t>(gain.elements))));
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         Head,
                         testing::Values(Family::kGpt2, Family::kLlama),
                         [](const auto& test) { return std::string(family_name(test.param)); });

}  // namespace
}  // namespace headrace::model
