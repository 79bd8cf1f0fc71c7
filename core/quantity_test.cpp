// Facts about quantities that a user of a config file depends on.
#include "core/quantity.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(Quantity, DecimalAndBinaryUnitsDiffer) {
  EXPECT_EQ(parse_bytes("24GiB").value(), 24ULL << 30U);
  EXPECT_EQ(parse_bytes("24GB").value(), 24'000'000'000ULL);
  EXPECT_EQ(parse_bytes("1 KiB").value(), 1024U);
  EXPECT_EQ(parse_bytes("1KB").value(), 1000U);
  EXPECT_EQ(parse_bytes("0B").value(), 0U);
  EXPECT_EQ(parse_bytes("2PiB").value(), 2ULL << 50U);
}

TEST(Quantity, CountsAndRatesOfOperations) {
  EXPECT_EQ(parse_count("10B").value(), 10e9);
  EXPECT_EQ(parse_count("1.5 T").value(), 1.5e12);
  EXPECT_EQ(parse_count("2048").value(), 2048);
  EXPECT_EQ(parse_count_rate("800M/s").value(), 800e6);
  EXPECT_EQ(parse_count_rate("5/s").value(), 5);
  EXPECT_EQ(parse_flop_rate("2TFLOPS").value(), 2e12);
  EXPECT_EQ(parse_flop_rate("300 GFLOP/s").value(), 300e9);
  for (const char* text : {"", "B", "-1B", "10b", "10GB", "10B/s", "1e9"}) {
    EXPECT_FALSE(parse_count(text)) << text;
  }
  for (const char* text : {"800M", "0M/s", "/s", "2GB/s"}) {
    EXPECT_FALSE(parse_count_rate(text)) << text;
  }
  for (const char* text : {"2T", "2TFLOP", "0TFLOPS", "TFLOPS", "2TB/s", "2"}) {
    EXPECT_FALSE(parse_flop_rate(text)) << text;
  }
}

TEST(Quantity, DecimalsAreExact) {
  EXPECT_EQ(parse_bytes("1.5GiB").value(), 3ULL << 29U);
  EXPECT_EQ(parse_bytes("0.1GB").value(), 100'000'000ULL);
  EXPECT_EQ(parse_bytes(".5KiB").value(), 512U);
  EXPECT_EQ(parse_bytes("0.0004KB").value(), 0U);
  EXPECT_EQ(parse_bytes("0.0005KB").value(), 1U);
}

TEST(Quantity, NumberWithoutUnitIsAnErrorWithAHint) {
  const auto result = parse_bytes("1000000000");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ExitCode::kUsage);
  EXPECT_NE(result.error().hint.find("GiB"), std::string::npos);
}

TEST(Quantity, MalformedSizesAreErrors) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1GiB",
                           "1.2.3GiB",
                           "1GiBs",
                           "1gib",
                           "1G",
                           "1Gb",
                           "1e3B",
                           "0x10B",
                           "nanGB",
                           "infGB",
                           "1GB/s",
                           "1,5GB",
                           ".GB",
                           "1234567890123456789B"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
}

TEST(Quantity, OverflowIsAnErrorAndTheLargestSizesPass) {
  EXPECT_EQ(parse_bytes("16383PiB").value(), 16383ULL << 50U);
  EXPECT_FALSE(parse_bytes("16384PiB"));
  EXPECT_FALSE(parse_bytes("999999999999999999PiB"));
}

TEST(Quantity, RatesAreBytesPerSecond) {
  EXPECT_DOUBLE_EQ(parse_rate("1.5GB/s").value(), 1.5e9);
  EXPECT_DOUBLE_EQ(parse_rate("1MiB/s").value(), 1048576.0);
  EXPECT_FALSE(parse_rate("1.5GB"));
  EXPECT_FALSE(parse_rate("0B/s"));
  EXPECT_FALSE(parse_rate("5"));
}

TEST(Quantity, DurationsAndEnduranceNeedTheirUnits) {
  EXPECT_DOUBLE_EQ(parse_duration("10min").value(), 600.0);
  EXPECT_DOUBLE_EQ(parse_duration("2s").value(), 2.0);
  EXPECT_DOUBLE_EQ(parse_duration("250ms").value(), 0.25);
  EXPECT_FALSE(parse_duration("10"));
  EXPECT_FALSE(parse_duration("10m"));
  EXPECT_DOUBLE_EQ(parse_endurance("1200TBW").value(), 1.2e15);
  EXPECT_DOUBLE_EQ(parse_endurance("1.2PBW").value(), 1.2e15);
  EXPECT_FALSE(parse_endurance("1200TB"));
}

TEST(Quantity, FormsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(3435973837ULL), "3.2 GiB");
  EXPECT_EQ(format_bytes((1ULL << 30U) - 1U), "1.0 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
  EXPECT_EQ(format_rate(1.5e9), "1.5 GB/s");
  EXPECT_EQ(format_count(124.4e6), "124.4 M");
  EXPECT_EQ(format_count(17), "17");
  EXPECT_EQ(format_duration(0.0000123), "12.3 us");
  EXPECT_EQ(format_duration(0.25), "250 ms");
  EXPECT_EQ(format_duration(2), "2 s");
  EXPECT_EQ(format_duration(125), "2 min 5 s");
  EXPECT_EQ(format_duration(59.99), "1 min 0 s");
  EXPECT_EQ(format_duration(3600 * 1.5), "1 h 30 min");
  EXPECT_EQ(format_duration(86400.0 * 30), "30 days");
  EXPECT_EQ(format_duration(86400.0 * 365.25 * 5), "5 years");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "unbounded");
}

TEST(Quantity, ExactFormsReadBack) {
  for (const std::uint64_t bytes : {0ULL,
                                    1ULL,
                                    1000ULL,
                                    1024ULL,
                                    24ULL << 30U,
                                    24'000'000'000ULL,
                                    25769803777ULL,
                                    1ULL << 59U,
                                    999'999'999'999'999'999ULL}) {
    EXPECT_EQ(parse_bytes(exact_bytes(bytes)).value(), bytes) << exact_bytes(bytes);
  }
  EXPECT_EQ(exact_bytes(24ULL << 30U), "24GiB");
  for (const double rate : {1.0, 999.0, 1.5e9, 25e9, 123456789.0, 1048576.0}) {
    EXPECT_EQ(parse_rate(exact_rate(rate)).value(), rate) << exact_rate(rate);
  }
  EXPECT_EQ(exact_rate(25e9), "25GB/s");
  EXPECT_EQ(exact_endurance(1.2e15), "1.2PBW");
  EXPECT_EQ(parse_endurance(exact_endurance(1.2e15)).value(), 1.2e15);
}

}  // namespace
}  // namespace headrace
