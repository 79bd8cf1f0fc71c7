// Conversions by kind, then range and choices (core/config_convert.hpp).
#include "core/config_convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "core/config.hpp"
#include "core/files.hpp"
#include "core/interval.hpp"
#include "core/quantity.hpp"

namespace headrace::config {

namespace {

std::string shown(const ConfigValue& value) {
  if (const auto* text = value.get<std::string>()) {
    return toml_quoted(*text);
  }
  if (const auto* integer = value.get<std::int64_t>()) {
    return fmt::format("{}", *integer);
  }
  if (const auto* number = value.get<double>()) {
    return fmt::format("{:#}", *number);  // 64.0, so that it is seen to be no integer
  }
  if (const auto* boolean = value.get<bool>()) {
    return *boolean ? "true" : "false";
  }
  return std::string(value.noun());
}

}  // namespace

Error wrong_type(const Context& context,
                 std::string_view due,
                 const ConfigValue& value,
                 std::string hint) {
  const std::string given = shown(value);
  const std::string is =
      given == value.noun() ? given + " was given" : fmt::format("{} is {}", given, value.noun());
  return usage_error(fmt::format("{}: {} is due, and {}", context.name, due, is))
      .with_hint(hint.empty() ? "docs/config.md has every key with its type" : std::move(hint))
      .with_where(context.place);
}

namespace {

Result<std::int64_t> to_integer(const Context& context, const ConfigValue& value) {
  if (const auto* integer = value.get<std::int64_t>()) {
    return *integer;
  }
  const auto* number = value.get<double>();
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  if (number != nullptr && std::abs(*number) < kExactMax && *number == std::trunc(*number)) {
    return wrong_type(
        context, "an integer", value, fmt::format("write {}", static_cast<std::int64_t>(*number)));
  }
  return wrong_type(context, "an integer", value, "");
}

Result<double> to_number(const Context& context, const ConfigValue& value) {
  if (const auto* number = value.get<double>()) {
    return *number;
  }
  if (const auto* integer = value.get<std::int64_t>()) {
    return static_cast<double>(*integer);
  }
  return wrong_type(context, "a number", value, "");
}

Result<std::string> to_text(const Context& context,
                            const ConfigValue& value,
                            std::string_view due,
                            std::string_view hint) {
  const auto* text = value.get<std::string>();
  if (text == nullptr) {
    return wrong_type(context, due, value, std::string(hint));
  }
  if (text->empty()) {
    return usage_error(fmt::format("{}: the text is empty", context.name))
        .with_hint("leave the key out for its default")
        .with_where(context.place);
  }
  if (text->find('\0') != std::string::npos) {
    return usage_error(fmt::format("{}: the text holds a NUL, which no name can", context.name))
        .with_hint("leave it out")
        .with_where(context.place);
  }
  return *text;
}

Result<std::vector<std::string>> to_texts(const Context& context,
                                          const ConfigValue& value,
                                          bool are_paths) {
  const auto* array = value.get<ConfigValue::Array>();
  if (array == nullptr) {
    const auto* text = value.get<std::string>();
    return wrong_type(context,
                      "a list",
                      value,
                      text != nullptr ? fmt::format("write [{}]", toml_quoted(*text)) : "");
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < array->size(); ++i) {
    const Context element = {.name = fmt::format("{}[{}]", context.name, i),
                             .place = context.place,
                             .base_folder = context.base_folder};
    HEADRACE_ASSIGN(std::string text, to_text(element, (*array)[i], "text", ""));
    texts.push_back(are_paths ? absolute_path(context.base_folder, text) : std::move(text));
  }
  return texts;
}

Result<std::array<double, 2>> to_pair(const Context& context, const ConfigValue& value) {
  const auto* array = value.get<ConfigValue::Array>();
  if (array == nullptr || array->size() != 2) {
    return wrong_type(context, "a list of two numbers", value, "as in [0.9, 0.95]");
  }
  std::array<double, 2> pair = {};
  for (std::size_t i = 0; i < pair.size(); ++i) {
    HEADRACE_ASSIGN(pair[i], to_number(context, (*array)[i]));
  }
  return pair;
}

// Sizes, rates and endurance: text with a unit, read by core/quantity.
template <class Parse>
auto to_quantity(const Context& context,
                 const ConfigValue& value,
                 std::string_view hint,
                 Parse parse) -> decltype(parse(std::string_view())) {
  HEADRACE_ASSIGN(const std::string text, to_text(context, value, "text with a unit", hint));
  auto result = parse(text);
  if (!result) {
    Error error = std::move(result).error();
    error.what = fmt::format("{}: {}", context.name, error.what);
    error.where = context.place;
    return error;
  }
  return result;
}

Error out_of_range(const Traits& traits, const Context& context, std::string_view text) {
  return usage_error(fmt::format("{} = {} is out of range", context.name, text))
      .with_hint(fmt::format("it must be {}", allowed_text(traits)))
      .with_where(context.place);
}

bool in_range(const Range& range, double number) {
  const bool above = range.min_open ? number > range.min : number >= range.min;
  const bool below = range.max_open ? number < range.max : number <= range.max;
  return std::isfinite(number) && above && below;
}

Status check_range(const Traits& traits, const Context& context, const Value& value) {
  std::vector<double> numbers;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    numbers = {static_cast<double>(*integer)};
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value)) {
    const std::uint64_t unit = traits.kind == Kind::kBlocks ? kBlockElements : 1;
    const std::uint64_t count = *natural / unit;
    numbers = {static_cast<double>(count)};
  } else if (const auto* number = std::get_if<double>(&value)) {
    numbers = {*number};
  } else if (const auto* pair = std::get_if<std::array<double, 2>>(&value)) {
    numbers = {(*pair)[0], (*pair)[1]};
  }
  for (const double number : numbers) {
    if (!in_range(traits.range, number)) {
      return out_of_range(traits, context, value_text(traits, value));
    }
  }
  return {};
}

bool is_choice(std::string_view choices, std::string_view text) {
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == text) {
      return true;
    }
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

Status check_choice(const Traits& traits, const Context& context, const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto* boolean = std::get_if<bool>(&value);
  if (traits.choices.empty() || (text == nullptr && boolean == nullptr)) {
    return {};
  }
  const std::string given = text != nullptr ? *text : *boolean ? "true" : "false";
  if (is_choice(traits.choices, given)) {
    return {};
  }
  const std::string what = fmt::format("{} = {}", context.name, value_text(traits, value));
  for (const Refusal& refusal : traits.refusals) {
    if (refusal.value == given || refusal.value == "*") {
      return usage_error(what + " is refused")
          .with_why(std::string(refusal.why))
          .with_hint(std::string(refusal.hint))
          .with_where(context.place);
    }
  }
  return usage_error(what + " is not a choice")
      .with_hint(fmt::format("choose from {}", allowed_text(traits)))
      .with_where(context.place);
}

template <class T>
Result<Value> as_value(Result<T> result) {
  if (!result) {
    return std::move(result).error();
  }
  return Value(*std::move(result));
}

Result<Value> to_blocks(const Context& context, const ConfigValue& value) {
  HEADRACE_ASSIGN(const std::int64_t blocks, to_integer(context, value));
  constexpr std::int64_t kBlocksMax = std::int64_t{1} << 40U;  // so that elements do not overflow
  if (blocks < 0 || blocks > kBlocksMax) {
    return Value(std::uint64_t{0});  // below every range: refused there
  }
  return Value(static_cast<std::uint64_t>(blocks) * kBlockElements);
}

// Kept as text, in the form that interval_text() writes.
Result<Value> to_interval(const Context& context, const ConfigValue& value) {
  HEADRACE_ASSIGN(const Interval interval,
                  to_quantity(context, value, "as in \"100 steps\" or \"10min\"", parse_interval));
  return Value(interval_text(interval));
}

Result<Value> to_duration(const Context& context, const ConfigValue& value) {
  HEADRACE_ASSIGN(const Interval interval,
                  to_quantity(context, value, "as in \"1min\"", parse_time_interval));
  return Value(interval_text(interval));
}

Result<Value> to_path(const Context& context, const ConfigValue& value) {
  HEADRACE_ASSIGN(const std::string text, to_text(context, value, "a path", ""));
  return Value(absolute_path(context.base_folder, text));
}

Result<Value> to_tokenizer(const Context& context, const ConfigValue& value) {
  HEADRACE_ASSIGN(const std::string text, to_text(context, value, "text", ""));
  return Value(text.empty() || text == "bytes" ? text : absolute_path(context.base_folder, text));
}

// Kept as "cpu" or "cuda:N".
Result<Value> to_device(const Context& context, const ConfigValue& value) {
  HEADRACE_ASSIGN(const std::string text, to_text(context, value, "text", ""));
  if (text == "cpu" || cuda_ordinal(text)) {
    return Value(text);
  }
  if (text == "cuda") {
    return Value("cuda:0");
  }
  return usage_error(fmt::format("{} = {} is no device", context.name, toml_quoted(text)))
      .with_hint(text == "gpu" ? "a GPU is \"cuda:0\", the next one \"cuda:1\""
                               : "\"cpu\", or a GPU: \"cuda:0\" to \"cuda:99\"")
      .with_where(context.place);
}

Result<Value> to_bool(const Context& context, const ConfigValue& value) {
  if (const auto* boolean = value.get<bool>()) {
    return Value(*boolean);
  }
  return wrong_type(context, "true or false", value, "without quotes");
}

Result<Value> convert_kind(Kind kind, const Context& context, const ConfigValue& value) {
  switch (kind) {
    case Kind::kText:
      return as_value(to_text(context, value, "text", ""));
    case Kind::kDevice:
      return to_device(context, value);
    case Kind::kPath:
      return to_path(context, value);
    case Kind::kTokenizer:
      return to_tokenizer(context, value);
    case Kind::kInteger:
      return as_value(to_integer(context, value));
    case Kind::kNumber:
      return as_value(to_number(context, value));
    case Kind::kBool:
      return to_bool(context, value);
    case Kind::kTexts:
      return as_value(to_texts(context, value, false));
    case Kind::kPaths:
      return as_value(to_texts(context, value, true));
    case Kind::kPair:
      return as_value(to_pair(context, value));
    case Kind::kSize:
      return as_value(to_quantity(context, value, "as in \"24GiB\"", parse_bytes));
    case Kind::kRate:
      return as_value(to_quantity(context, value, "as in \"1.5GB/s\"", parse_rate));
    case Kind::kEndurance:
      return as_value(to_quantity(context, value, "as in \"1200TBW\"", parse_endurance));
    case Kind::kInterval:
      return to_interval(context, value);
    case Kind::kDuration:
      return to_duration(context, value);
    case Kind::kBlocks:
      return to_blocks(context, value);
    case Kind::kGroups:
    case Kind::kFolders:
      break;
  }
  HEADRACE_ASSERT(false, "tables of tables are converted by their own functions");
}

}  // namespace

Result<Value> convert(const Traits& traits, const Context& context, const ConfigValue& value) {
  const auto* text = value.get<std::string>();
  if (text != nullptr && *text == "auto" && traits.may_be_auto) {
    return Value();
  }
  HEADRACE_ASSIGN(Value result, convert_kind(traits.kind, context, value));
  HEADRACE_TRY(check_range(traits, context, result));
  HEADRACE_TRY(check_choice(traits, context, result));
  return result;
}

}  // namespace headrace::config

namespace headrace {

std::optional<int> cuda_ordinal(std::string_view device) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr std::size_t kDigitsMax = 2;
  if (!device.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = device.substr(kPrefix.size());
  const bool padded = digits.size() > 1 && digits.front() == '0';
  if (digits.empty() || digits.size() > kDigitsMax || padded ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  int ordinal = 0;
  for (const char digit : digits) {
    ordinal = 10 * ordinal + (digit - '0');
  }
  return ordinal;
}

}  // namespace headrace
