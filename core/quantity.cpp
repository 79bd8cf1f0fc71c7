// Parsing is in integers (a decimal is digits and a power of ten), so that "24.1GiB" means one
// number of bytes everywhere; formatting is for people, or exact by trying units and reading back.
#include "core/quantity.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace headrace {

namespace {

__extension__ using Uint128 = unsigned __int128;

struct Unit {
  std::string_view name;
  std::uint64_t scale;
};

constexpr std::uint64_t kKilo = 1000;
constexpr std::uint64_t kKibi = 1024;

constexpr std::array kByteUnits = {
    Unit{"B", 1},
    Unit{"kB", kKilo},
    Unit{"KB", kKilo},
    Unit{"MB", kKilo* kKilo},
    Unit{"GB", kKilo* kKilo* kKilo},
    Unit{"TB", kKilo* kKilo* kKilo* kKilo},
    Unit{"PB", kKilo* kKilo* kKilo* kKilo* kKilo},
    Unit{"KiB", kKibi},
    Unit{"MiB", kKibi* kKibi},
    Unit{"GiB", kKibi* kKibi* kKibi},
    Unit{"TiB", kKibi* kKibi* kKibi* kKibi},
    Unit{"PiB", kKibi* kKibi* kKibi* kKibi* kKibi},
};
// In microseconds.
constexpr std::array kTimeUnits = {
    Unit{"us", 1},
    Unit{"ms", kKilo},
    Unit{"s", kKilo* kKilo},
    Unit{"min", 60 * kKilo* kKilo},
    Unit{"h", 3600 * kKilo* kKilo},
    Unit{"d", 86400 * kKilo* kKilo},
};
constexpr std::array kCountUnits = {
    Unit{"", 1},
    Unit{"K", kKilo},
    Unit{"M", kKilo* kKilo},
    Unit{"B", kKilo* kKilo* kKilo},
    Unit{"T", kKilo* kKilo* kKilo* kKilo},
};
constexpr std::array kFlopUnits = {
    Unit{"FLOP", 1},
    Unit{"MFLOP", kKilo* kKilo},
    Unit{"GFLOP", kKilo* kKilo* kKilo},
    Unit{"TFLOP", kKilo* kKilo* kKilo* kKilo},
    Unit{"PFLOP", kKilo* kKilo* kKilo* kKilo* kKilo},
};
constexpr std::string_view kByteHint =
    "give a unit: B, KB, MB, GB, TB, PB (powers of 1000) or KiB, MiB, GiB, TiB, PiB (powers of "
    "1024), as in \"24GiB\"";
constexpr std::string_view kRateHint = "give bytes per second, as in \"1.5GB/s\"";
constexpr std::string_view kTimeHint = "give a unit: us, ms, s, min, h or d, as in \"10min\"";
constexpr std::string_view kEnduranceHint =
    "give terabytes written, as a drive's data sheet does: \"1200TBW\"";

struct Kind {
  std::string_view noun;  // "a size"
  std::string_view hint;
  std::span<const Unit> units;
};

constexpr Kind kSize = {.noun = "a size", .hint = kByteHint, .units = kByteUnits};
constexpr Kind kRate = {.noun = "a rate", .hint = kRateHint, .units = kByteUnits};
constexpr Kind kTime = {.noun = "a duration", .hint = kTimeHint, .units = kTimeUnits};
constexpr Kind kCount = {.noun = "a count",
                         .hint = "K, M, B and T are powers of 1000, as in \"10B\"",
                         .units = kCountUnits};
constexpr Kind kCountRate = {
    .noun = "a rate", .hint = "give a count per second, as in \"800M/s\"", .units = kCountUnits};
constexpr Kind kFlops = {.noun = "a rate of operations",
                         .hint = "give a unit, as in \"2TFLOPS\" or \"300GFLOP/s\"",
                         .units = kFlopUnits};
constexpr Kind kEndurance = {
    .noun = "a drive's endurance", .hint = kEnduranceHint, .units = kByteUnits};

Error quantity_error(const Kind& kind, std::string_view text, std::string why) {
  return usage_error(fmt::format("'{}' is not {}", text, kind.noun))
      .with_why(std::move(why))
      .with_hint(std::string(kind.hint));
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

// digits / ten_power, exactly as written.
struct Decimal {
  std::uint64_t digits = 0;
  std::uint64_t ten_power = 1;
};

// Takes a decimal number off the front of text; empty when there is none or it has > 18 digits.
std::optional<Decimal> take_decimal(std::string_view& text) {
  constexpr int kDigitsMax = 18;
  Decimal decimal;
  int digit_count = 0;
  bool has_digit = false;
  bool after_point = false;
  while (!text.empty() && (is_digit(text.front()) || (text.front() == '.' && !after_point))) {
    if (text.front() == '.') {
      after_point = true;
    } else {
      has_digit = true;
      decimal.digits = decimal.digits * 10 + static_cast<std::uint64_t>(text.front() - '0');
      decimal.ten_power *= after_point ? 10 : 1;
      if (decimal.digits > 0 || after_point) {
        ++digit_count;
      }
      if (digit_count > kDigitsMax) {
        return std::nullopt;
      }
    }
    text.remove_prefix(1);
  }
  return has_digit ? std::optional(decimal) : std::nullopt;
}

const Unit* find_unit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) {
      return &unit;
    }
  }
  return nullptr;
}

struct Parsed {
  Decimal decimal;
  std::uint64_t scale = 1;
};

// NUMBER UNIT SUFFIX, where suffix is "", "/s" or "W".
Result<Parsed> parse_quantity(const Kind& kind, std::string_view text, std::string_view suffix) {
  std::string_view rest = trimmed(text);
  if (!rest.empty() && rest.front() == '-') {
    return quantity_error(kind, text, "it is negative");
  }
  const std::optional<Decimal> decimal = take_decimal(rest);
  if (!decimal) {
    return quantity_error(kind, text, "it does not start with a decimal number of 1 to 18 digits");
  }
  rest = trimmed(rest);
  if (rest.empty() && (!suffix.empty() || find_unit(kind.units, "") == nullptr)) {
    return quantity_error(kind, text, "it has no unit");
  }
  if (!rest.ends_with(suffix)) {
    return quantity_error(kind, text, fmt::format("it does not end in '{}'", suffix));
  }
  const Unit* unit = find_unit(kind.units, rest.substr(0, rest.size() - suffix.size()));
  if (unit == nullptr) {
    return quantity_error(kind, text, fmt::format("'{}' is not a unit known here", rest));
  }
  return Parsed{.decimal = *decimal, .scale = unit->scale};
}

double value_of(const Parsed& parsed) {
  const Uint128 product = static_cast<Uint128>(parsed.decimal.digits) * parsed.scale;
  return static_cast<double>(product) / static_cast<double>(parsed.decimal.ten_power);
}

// "12.3", "1.23" or "123": about three significant digits, without a trailing ".0".
std::string three_digits(double value) {
  std::string text = fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text;
}

std::string one_decimal(double value, double step, std::span<const std::string_view> names) {
  std::size_t index = 0;
  // What would round to a whole step is shown in the next unit: "1024.0 MiB" never appears.
  while (index + 1 < names.size() && value >= step * 0.99995) {
    value /= step;
    ++index;
  }
  return index == 0 ? fmt::format("{:.0f} {}", value, names[0])
                    : fmt::format("{:.1f} {}", value, names[index]);
}

// The shortest text in the largest unit of at least one whole that reads back to the same double.
template <class Parse>
std::string exact_text(double value, std::string_view suffix, Parse parse) {
  constexpr std::array kNames = {"PB", "TB", "GB", "MB", "KB"};
  for (const std::string_view name : kNames) {
    const auto scale = static_cast<double>(find_unit(kByteUnits, name)->scale);
    if (value < scale) {
      continue;
    }
    std::string text = fmt::format("{}{}{}", value / scale, name, suffix);
    const auto back = parse(text);
    if (back && *back == value) {
      return text;
    }
  }
  return fmt::format("{:.0f}B{}", value, suffix);
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kSize, text, ""));
  const Uint128 product = static_cast<Uint128>(parsed.decimal.digits) * parsed.scale;
  const Uint128 bytes = (product + parsed.decimal.ten_power / 2) / parsed.decimal.ten_power;
  if (bytes > std::numeric_limits<std::uint64_t>::max()) {
    return quantity_error(kSize, text, "it is larger than 2^64 - 1 bytes");
  }
  return static_cast<std::uint64_t>(bytes);
}

Result<double> parse_rate(std::string_view text) {
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kRate, text, "/s"));
  if (parsed.decimal.digits == 0) {
    return quantity_error(kRate, text, "nothing would ever move");
  }
  return value_of(parsed);
}

Result<double> parse_duration(std::string_view text) {
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kTime, text, ""));
  constexpr double kMicrosecondsPerSecond = 1e6;
  return value_of(parsed) / kMicrosecondsPerSecond;
}

Result<double> parse_count(std::string_view text) {
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kCount, text, ""));
  return value_of(parsed);
}

Result<double> parse_count_rate(std::string_view text) {
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kCountRate, text, "/s"));
  if (parsed.decimal.digits == 0) {
    return quantity_error(kCountRate, text, "nothing would ever be done");
  }
  return value_of(parsed);
}

Result<double> parse_flop_rate(std::string_view text) {
  const bool per_second = trimmed(text).ends_with("/s");
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kFlops, text, per_second ? "/s" : "S"));
  if (parsed.decimal.digits == 0) {
    return quantity_error(kFlops, text, "nothing would ever be done");
  }
  return value_of(parsed);
}

Result<double> parse_endurance(std::string_view text) {
  HEADRACE_ASSIGN(const Parsed parsed, parse_quantity(kEndurance, text, "W"));
  if (parsed.decimal.digits == 0) {
    return quantity_error(kEndurance, text, "nothing could be written");
  }
  return value_of(parsed);
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kNames = {
      "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return one_decimal(static_cast<double>(bytes), 1024.0, kNames);
}

std::string format_rate(double bytes_per_s) {
  constexpr std::array<std::string_view, 6> kNames = {
      "B/s", "KB/s", "MB/s", "GB/s", "TB/s", "PB/s"};
  return one_decimal(bytes_per_s, 1000.0, kNames);
}

std::string format_count(double count) {
  constexpr std::array<std::string_view, 5> kNames = {"", "K", "M", "B", "T"};
  std::string text = one_decimal(count, 1000.0, kNames);
  if (text.back() == ' ') {
    text.pop_back();
  }
  return text;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) {
    return "unbounded";
  }
  if (seconds < 0) {
    return "-" + format_duration(-seconds);
  }
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  constexpr double kDay = 86400;
  if (seconds < 0.9995e-3) {
    return three_digits(seconds * 1e6) + " us";
  }
  if (seconds < 0.9995) {
    return three_digits(seconds * 1e3) + " ms";
  }
  if (seconds < kMinute - 0.05) {
    return three_digits(seconds) + " s";
  }
  if (seconds < kHour - 0.5) {
    const auto whole = static_cast<std::int64_t>(std::llround(seconds));
    return fmt::format("{} min {} s", whole / 60, whole % 60);
  }
  if (seconds < 2 * kDay) {
    const auto minutes = static_cast<std::int64_t>(std::llround(seconds / kMinute));
    return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  }
  constexpr double kYear = 365.25 * kDay;
  return seconds < kYear ? three_digits(seconds / kDay) + " days"
                         : three_digits(seconds / kYear) + " years";
}

std::string exact_bytes(std::uint64_t bytes) {
  constexpr std::array kNames = {"PiB", "PB", "TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"};
  for (const std::string_view name : kNames) {
    const std::uint64_t scale = find_unit(kByteUnits, name)->scale;
    if (bytes >= scale && bytes % scale == 0) {
      return fmt::format("{}{}", bytes / scale, name);
    }
  }
  return fmt::format("{}B", bytes);
}

std::string exact_rate(double bytes_per_s) {
  return exact_text(bytes_per_s, "/s", parse_rate);
}

std::string exact_endurance(double bytes) {
  return exact_text(bytes, "W", parse_endurance);
}

}  // namespace headrace
