// Drawing tokens: against probabilities worked out by hand.
#include "train/generate.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "train/stop_text.hpp"

namespace headrace::train {
namespace {

// Shares of `draws` tokens.
std::vector<double> shares(std::span<const float> logits,
                           const SamplerSettings& settings,
                           int draws = 20000) {
  std::vector<double> counts(logits.size());
  for (int i = 0; i < draws; ++i) {
    counts[static_cast<std::size_t>(sample_token(logits, settings, i))] += 1.0 / draws;
  }
  return counts;
}

const std::array<float, 4> kLogits = {
    std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};

TEST(Sampler, GreedyTakesTheLargestAndTheFirstOfEquals) {
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, 0), 1);
  EXPECT_EQ(sample_token(std::array<float, 3>{1, 2, 2}, {.temperature = 0}, 5), 1);
}

// 20,000 draws: three standard deviations are about 0.011.
TEST(Sampler, SharesAreTheProbabilities) {
  const std::vector<double> found = shares(kLogits, {});
  EXPECT_NEAR(found[0], 0.1, 0.011);
  EXPECT_NEAR(found[1], 0.4, 0.011);
  EXPECT_NEAR(found[2], 0.2, 0.011);
  EXPECT_NEAR(found[3], 0.3, 0.011);
}

TEST(Sampler, TemperatureSharpens) {
  // p^2, normalised: 0.01, 0.16, 0.04, 0.09 over 0.30.
  const std::vector<double> found = shares(kLogits, {.temperature = 0.5});
  EXPECT_NEAR(found[1], 16.0 / 30, 0.011);
  EXPECT_NEAR(found[0], 1.0 / 30, 0.006);
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  const std::vector<double> found = shares(kLogits, {.top_k = 2});
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[2], 0);
  EXPECT_NEAR(found[1], 4.0 / 7, 0.011);
  const std::vector<double> all = shares(kLogits, {.top_k = 100});
  EXPECT_NEAR(all[0], 0.1, 0.011);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const std::vector<double> found = shares(kLogits, {.top_p = 0.6});
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[2], 0);  // 0.4 + 0.3 reach 0.6
  EXPECT_NEAR(found[3], 3.0 / 7, 0.011);
  EXPECT_NEAR(shares(kLogits, {.top_p = 0.01}, 100)[1], 1.0, 1e-9);
}

TEST(Sampler, ADrawDependsOnSeedAndNumberOnly) {
  std::vector<std::int32_t> first;
  std::vector<std::int32_t> again;
  std::vector<std::int32_t> other;
  for (std::int64_t i = 0; i < 50; ++i) {
    first.push_back(sample_token(kLogits, {.seed = 1}, i));
    again.push_back(sample_token(kLogits, {.seed = 1}, i));
    other.push_back(sample_token(kLogits, {.seed = 2}, i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

// What comes before the stop that is whole first, the longest of those.
std::string until_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      longest = text.substr(0, end).ends_with(stop) ? std::max(longest, stop.size()) : longest;
    }
    if (longest > 0) {
      return text.substr(0, end - longest) + "|";
    }
  }
  return text;
}

// What is shown, and "|" where it was stopped.
std::string shown(const std::string& text, std::vector<std::string> stops, std::size_t piece) {
  StopText stop(std::move(stops));
  std::string all;
  for (std::size_t at = 0; at < text.size() && !stop.stopped(); at += piece) {
    all += stop.push(text.substr(at, piece));
  }
  return all + (stop.stopped() ? "|" : stop.rest());
}

TEST(StopText, AnyTextAndAnyStopsGiveTheSameHoweverItIsCut) {
  std::mt19937 random(1);
  const auto text_of = [&](std::size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& character : text) {
      character = static_cast<char>('a' + random() % 2);
    }
    return text;
  };
  for (int i = 0; i < 4000; ++i) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) {
      stop = text_of(5);
    }
    const std::string text = text_of(12);
    for (std::size_t piece = 1; piece <= text.size(); ++piece) {
      ASSERT_EQ(shown(text, stops, piece), until_stop(text, stops)) << text << ' ' << piece;
    }
  }
}

TEST(StopText, TheFirstStopEndsTheTextHoweverItIsCut) {
  for (std::size_t piece = 1; piece < 12; ++piece) {
    EXPECT_EQ(shown("one two three", {}, piece), "one two three");
    EXPECT_EQ(shown("one two three", {"two"}, piece), "one |");
    EXPECT_EQ(shown("one two three", {"tree", "thx"}, piece), "one two three");
    EXPECT_EQ(shown("aaab", {"aab"}, piece), "a|");
    EXPECT_EQ(shown("abcabd", {"abd"}, piece), "abc|");
    EXPECT_EQ(shown("ab", {"abc", "b"}, piece), "a|");
    EXPECT_EQ(shown("xab", {"abc"}, piece), "xab");
    EXPECT_EQ(shown("\n\nx", {"\n\n"}, piece), "|");
  }
}

TEST(StopText, WhatBeginsNoStopIsShownAtOnce) {
  StopText stop({"end"});
  EXPECT_EQ(stop.push("the e"), "the ");
  EXPECT_EQ(stop.push("n"), "");
  EXPECT_EQ(stop.push("x"), "enx");
  EXPECT_EQ(stop.push("e"), "");
  EXPECT_EQ(stop.rest(), "e");
  EXPECT_FALSE(stop.stopped());
}

}  // namespace
}  // namespace headrace::train
