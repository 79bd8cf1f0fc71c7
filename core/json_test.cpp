// Facts about JSON that metrics, headers and plans depend on.
#include "core/json.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/random.hpp"

namespace headrace {
namespace {

TEST(Json, WritesOneLineInTheOrderOfSetting) {
  Json json;
  json.set("step", 12).set("loss", 2.5).set("skipped", nullptr).set("ok", true);
  json.set("list", Json::array().push_back(1).push_back("two"));
  EXPECT_EQ(json.dump(), R"({"step":12,"loss":2.5,"skipped":null,"ok":true,"list":[1,"two"]})");
  json.set("step", 13);
  EXPECT_EQ(json.find("step")->as_int(), 13);
  EXPECT_EQ(json.as_object()->front().key, "step");
}

TEST(Json, IndentsWhenAsked) {
  Json json;
  json.set("a", Json::array().push_back(1)).set("b", Json::object()).set("c", Json::array());
  EXPECT_EQ(json.dump(2), "{\n  \"a\": [\n    1\n  ],\n  \"b\": {},\n  \"c\": []\n}");
}

TEST(Json, DoublesReadBackBitForBit) {
  const RandomSource source(5, RandomStream::kTest);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::uint64_t high = source.bits({.update = 0, .tensor = 0, .element = 2 * i});
    const std::uint64_t low = source.bits({.update = 0, .tensor = 0, .element = 2 * i + 1});
    const auto value = std::bit_cast<double>((high << 32U) | low);
    if (!std::isfinite(value)) {
      continue;
    }
    const auto back = parse_json(Json(value).dump());
    ASSERT_TRUE(back);
    ASSERT_TRUE(back->as_double());
    EXPECT_EQ(std::bit_cast<std::uint64_t>(*back->as_double()),
              std::bit_cast<std::uint64_t>(value));
  }
  for (const double value : {0.0, -0.0, 1.0, 1e300, 5e-324, 0.1}) {
    const double back = parse_json(Json(value).dump()).value().as_double().value();
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value));
  }
}

TEST(Json, IntegersOfSixtyFourBitsReadBack) {
  for (const std::int64_t value : {std::numeric_limits<std::int64_t>::min(),
                                   std::int64_t{-1},
                                   std::int64_t{0},
                                   std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(parse_json(Json(value).dump()).value().as_int(), value);
  }
  const std::uint64_t large = std::numeric_limits<std::uint64_t>::max();
  const Json back = parse_json(Json(large).dump()).value();
  EXPECT_EQ(back.as_uint(), large);
  EXPECT_FALSE(back.as_int());
  EXPECT_EQ(Json(7U), Json(7));
  EXPECT_FALSE(Json(7) == Json(7.0));
}

TEST(Json, NanAndInfinityAreWrittenAsNull) {
  EXPECT_EQ(Json(std::numeric_limits<double>::quiet_NaN()).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, KindsAreNotConverted) {
  const Json json = parse_json(R"({"s":"1","d":1.0,"i":1,"n":null,"b":true,"m":-1})").value();
  EXPECT_FALSE(json.find("s")->as_int());
  EXPECT_FALSE(json.find("d")->as_int());
  EXPECT_EQ(json.find("i")->as_double(), 1.0);
  EXPECT_FALSE(json.find("b")->as_int());
  EXPECT_FALSE(json.find("m")->as_uint());
  EXPECT_TRUE(json.find("n")->is_null());
  EXPECT_EQ(json.find("absent"), nullptr);
  EXPECT_EQ(Json(1).find("x"), nullptr);
}

TEST(Json, RequireNamesTheKeyAndTheKind) {
  const Json json = parse_json(R"({"step":"twelve","list":[]})").value();
  EXPECT_EQ(json.require_int("step").error().what, "\"step\" is not an integer of 64 bits");
  EXPECT_EQ(json.require_int("loss").error().what, "\"loss\" is missing");
  EXPECT_EQ(json.require_string("step").value(), "twelve");
  EXPECT_TRUE(json.require_array("list"));
  EXPECT_FALSE(json.require_object("list"));
  EXPECT_EQ(json.require_bool("x").error().code, ExitCode::kCorrupt);
}

TEST(Json, DuplicateKeysAreRefusedAtEveryDepth) {
  EXPECT_FALSE(parse_json(R"({"a":1,"a":2})"));
  EXPECT_FALSE(parse_json(R"([{"b":{"a":1,"c":2,"a":1}}])"));
  EXPECT_TRUE(parse_json(R"({"a":{"a":1},"b":{"a":1}})"));
}

TEST(Json, DepthBombsAndLongTextsAreRefused) {
  const std::string bomb(1'000'000, '[');
  const auto result = parse_json(bomb);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().why.find("64 levels"), std::string::npos);
  EXPECT_TRUE(parse_json("[[1]]", {.bytes_max = 5, .depth_max = 2}));
  EXPECT_FALSE(parse_json("[[1]]", {.bytes_max = 5, .depth_max = 1}));
  EXPECT_FALSE(parse_json("[[1]]", {.bytes_max = 4, .depth_max = 2}));
}

TEST(Json, MalformedTextsAreErrorsWithAPlace) {
  for (const char* text : {"",
                           "{",
                           "[1,]",
                           "{\"a\":}",
                           "nul",
                           "1 2",
                           "NaN",
                           "1e999",
                           "'a'",
                           "{\"a\":1}}",
                           "\"\xff\"",
                           "// c\n1"}) {
    const auto result = parse_json(text);
    EXPECT_FALSE(result) << text;
  }
  const auto result = parse_json("{\n  \"a\": tru, 1\n}");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().why.find("line 2"), std::string::npos) << result.error().why;
}

TEST(Json, StringsAreEscapedAndBadUtf8IsReplaced) {
  const std::string text = "quote \" slash \\ line \n nul ";
  EXPECT_EQ(*parse_json(Json(text).dump()).value().as_string(), text);
  EXPECT_EQ(Json("\xff").dump(), "\"\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace headrace
