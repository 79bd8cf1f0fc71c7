// Frequencies of scaled rotary positions against those of transformers 5 (ROPE_INIT_FUNCTIONS with
// head_dim 16 and max_position_embeddings 64), which computes them in float32.
#include "model/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace headrace::model {
namespace {

struct Case {
  const char* name;
  double theta;
  RopeScaling scaling;
  std::int64_t seq_len;
  std::vector<double> radians;
  double amplitude;
};

RopeScaling of(RopeType type, double factor, std::int64_t original = 0) {
  RopeScaling scaling;
  scaling.type = type;
  scaling.factor = factor;
  scaling.original_max_position_embeddings = original;
  return scaling;
}

RopeScaling tuned_yarn() {
  RopeScaling scaling = of(RopeType::kYarn, 4.0, 512);
  scaling.beta_fast = 16.0;
  scaling.beta_slow = 2.0;
  scaling.mscale = 0.8;
  scaling.mscale_all_dim = 0.5;
  scaling.truncate = false;
  return scaling;
}

RopeScaling loud_yarn() {
  RopeScaling scaling = of(RopeType::kYarn, 2.0, 32);
  scaling.attention_factor = 1.5;
  return scaling;
}

const std::vector<double> kPlain = {
    1, 0.316227764, 0.100000001, 0.0316227786, 0.01, 0.00316227786, 0.00100000005, 0.000316227786};

std::vector<Case> theta_cases() {
  return {
      {"none", 1e4, {}, 200, kPlain, 1.0},
      {"linear",
       1e4,
       of(RopeType::kLinear, 2.5),
       10,
       {0.400000006,
        0.1264911,
        0.0399999991,
        0.0126491114,
        0.00399999972,
        0.00126491114,
        0.000400000019,
        0.000126491112},
       1.0},
      {"dynamic, short", 1e4, of(RopeType::kDynamic, 3.0), 10, kPlain, 1.0},
      {"dynamic, at the limit", 1e4, of(RopeType::kDynamic, 3.0), 64, kPlain, 1.0},
      {"dynamic, one more",
       1e4,
       of(RopeType::kDynamic, 3.0),
       65,
       {1,
        0.314165056,
        0.0986996889,
        0.031007994,
        0.00974162761,
        0.00306047895,
        0.000961495563,
        0.000302068307},
       1.0},
      {"dynamic, long",
       1e4,
       of(RopeType::kDynamic, 3.0),
       200,
       {1,
        0.237702638,
        0.0565025434,
        0.0134308031,
        0.00319253746,
        0.000758874579,
        0.000180386472,
        4.28783387e-05},
       1.0},
  };
}

std::vector<Case> cases_by_parts() {
  return {
      {"llama3",
       5e5,
       of(RopeType::kLlama3, 8.0, 256),
       10,
       {1,
        0.193922758,
        0.0105382307,
        0.000911583134,
        0.000176776681,
        3.42810235e-05,
        6.64786967e-06,
        1.28917316e-06},
       1.0},
      {"yarn",
       1e6,
       of(RopeType::kYarn, 4.0, 512),
       10,
       {1,
        0.133370951,
        0.0158113893,
        0.00140585331,
        0.000250000012,
        4.44569851e-05,
        7.90569356e-06,
        1.40585337e-06},
       1.13862943611},
      {"yarn, tuned",
       1e4,
       tuned_yarn(),
       10,
       {1,
        0.316227764,
        0.0756644011,
        0.0107961092,
        0.00249999994,
        0.000790569466,
        0.000250000012,
        7.90569466e-05},
       1.03889297522},
      {"yarn, with its own amplitude",
       1e4,
       loud_yarn(),
       10,
       {1,
        0.237170815,
        0.0500000007,
        0.0158113893,
        0.00499999989,
        0.00158113893,
        0.000500000024,
        0.000158113893},
       1.5},
  };
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  std::vector<Case> cases = theta_cases();
  for (const Case& entry : cases_by_parts()) {
    cases.push_back(entry);
  }
  for (const Case& entry : cases) {
    const RopeShape shape = {.head_dim = 16, .theta = entry.theta, .max_seq_len = 64};
    EXPECT_TRUE(check_rope(shape, entry.scaling).empty()) << entry.name;
    const RopeFrequencies found = rope_frequencies(shape, entry.scaling, entry.seq_len);
    ASSERT_EQ(found.radians.size(), entry.radians.size()) << entry.name;
    for (std::size_t j = 0; j < found.radians.size(); ++j) {
      EXPECT_NEAR(found.radians[j] / entry.radians[j], 1.0, 1e-6) << entry.name << ", pair " << j;
    }
    EXPECT_NEAR(found.amplitude, entry.amplitude, 1e-10) << entry.name;
  }
}

TEST(Rope, WhatHasNoMeaningIsNamed) {
  const RopeShape shape = {.head_dim = 16, .theta = 1e4, .max_seq_len = 64};
  const auto refused = [&](RopeScaling scaling, const char* says) {
    const std::vector<std::string> problems = check_rope(shape, scaling);
    ASSERT_FALSE(problems.empty()) << says;
    EXPECT_NE(problems.front().find(says), std::string::npos) << problems.front();
  };
  refused(of(RopeType::kLinear, 0.0), "factor = 0");
  refused(of(RopeType::kLinear, std::nan("")), "factor = nan");
  refused(of(RopeType::kYarn, 2.0), "original_max_position_embeddings = 0");
  RopeScaling swapped = of(RopeType::kLlama3, 2.0, 64);
  std::swap(swapped.low_freq_factor, swapped.high_freq_factor);
  refused(swapped, "low_freq_factor = 4 is not below high_freq_factor = 1");
  EXPECT_FALSE(check_rope({.head_dim = 2, .max_seq_len = 64}, of(RopeType::kDynamic, 2.0)).empty());
  EXPECT_FALSE(check_rope({.head_dim = 16, .theta = 1.0}, of(RopeType::kYarn, 2.0, 64)).empty());
}

}  // namespace
}  // namespace headrace::model
