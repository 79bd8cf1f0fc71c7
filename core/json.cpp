// The only file that includes nlohmann-json: its SAX parser fills our values; its serializer writes
// the text of strings and doubles (shortest form that reads back).
#include "core/json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/assert.hpp"

namespace headrace {

namespace {

// Builds a Json from parse events. Containers under construction are a stack, so that neither
// parsing nor a depth bomb recurses.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(JsonLimits limits) : limits_(limits) {}

  bool null() override { return place(Json()); }

  bool boolean(bool value) override { return place(Json(value)); }

  bool number_integer(number_integer_t value) override { return place(Json(value)); }

  bool number_unsigned(number_unsigned_t value) override { return place(Json(value)); }

  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return place(Json(value));
  }

  bool string(string_t& value) override { return place(Json(std::move(value))); }

  bool binary(binary_t& /*value*/) override { return fail("a binary value"); }

  bool start_object(std::size_t /*size*/) override {
    return open({.value = Json::object(), .is_object = true, .key = {}, .keys = {}});
  }

  bool start_array(std::size_t /*size*/) override {
    return open({.value = Json::array(), .is_object = false, .key = {}, .keys = {}});
  }

  bool end_object() override { return close(); }

  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Level& level = levels_.back();
    if (!level.keys.insert(value).second) {
      return fail(fmt::format("the key \"{}\" stands twice in one object", value));
    }
    level.key = std::move(value);
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string_view text = error.what();
    const std::size_t bracket = text.find("] ");
    return fail(fmt::format(
        "{} (byte {})", bracket == text.npos ? text : text.substr(bracket + 2), position));
  }

  Json take_root() { return std::move(root_); }

  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  struct Level {
    Json value;
    bool is_object;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool fail(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool open(Level level) {
    if (levels_.size() >= limits_.depth_max) {
      return fail(fmt::format("it is nested deeper than {} levels", limits_.depth_max));
    }
    levels_.push_back(std::move(level));
    return true;
  }

  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return place(std::move(value));
  }

  bool place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
    } else if (Level& level = levels_.back(); level.is_object) {
      level.value.add(std::move(level.key), std::move(value));
    } else {
      level.value.push_back(std::move(value));
    }
    return true;
  }

  JsonLimits limits_;
  std::vector<Level> levels_;
  Json root_;
  std::string why_;
};

std::string scalar_text(const nlohmann::json& value) {
  constexpr auto kReplaceBadUtf8 = nlohmann::json::error_handler_t::replace;
  return value.dump(-1, ' ', false, kReplaceBadUtf8);
}

class Writer {
 public:
  explicit Writer(int indent_spaces) : indent_(static_cast<std::size_t>(indent_spaces)) {}

  void write(const Json& value) {
    if (const Json::Array* array = value.as_array()) {
      write_list('[', ']', *array, [&](const Json& element) { write(element); });
    } else if (const Json::Object* object = value.as_object()) {
      write_list('{', '}', *object, [&](const Json::Member& member) {
        text_ += scalar_text(member.key);
        text_ += indent_ > 0 ? ": " : ":";
        write(member.value);
      });
    } else if (const std::string* string = value.as_string()) {
      text_ += scalar_text(*string);
    } else if (const auto boolean = value.as_bool()) {
      text_ += *boolean ? "true" : "false";
    } else if (const auto integer = value.as_int()) {
      text_ += std::to_string(*integer);
    } else if (const auto natural = value.as_uint()) {
      text_ += std::to_string(*natural);
    } else if (const auto number = value.as_double()) {
      text_ += scalar_text(*number);  // null for NaN and infinities
    } else {
      text_ += "null";
    }
  }

  std::string take() { return std::move(text_); }

 private:
  template <class List, class WriteItem>
  void write_list(char open, char close, const List& list, WriteItem write_item) {
    text_ += open;
    ++depth_;
    bool first = true;
    for (const auto& item : list) {
      if (!first) {
        text_ += ',';
      }
      first = false;
      new_line();
      write_item(item);
    }
    --depth_;
    if (!first) {
      new_line();
    }
    text_ += close;
  }

  void new_line() {
    if (indent_ > 0) {
      text_ += '\n';
      text_.append(depth_ * indent_, ' ');
    }
  }

  std::size_t indent_;
  std::size_t depth_ = 0;
  std::string text_;
};

Error member_error(const Json* found, std::string_view key, std::string_view noun) {
  return corrupt_error(found == nullptr ? fmt::format("\"{}\" is missing", key)
                                        : fmt::format("\"{}\" is not {}", key, noun));
}

template <class T>
Result<T> require(const Json* found,
                  std::optional<T> value,
                  std::string_view key,
                  std::string_view noun) {
  if (!value) {
    return member_error(found, key, noun);
  }
  return *std::move(value);
}

}  // namespace

Json::Json() = default;

Json::Json(double value) : value_(value) {}

Json::Json(std::string value) : value_(std::move(value)) {}

Json::Json(std::string_view value) : value_(std::string(value)) {}

Json::Json(const char* value) : value_(std::string(value)) {}

Json::Json(Array value) : value_(std::move(value)) {}

Json::Json(Object value) : value_(std::move(value)) {}

Json Json::array() {
  return Array();
}

Json Json::object() {
  return Json(Object());
}

std::optional<bool> Json::as_bool() const {
  const bool* value = std::get_if<bool>(&value_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<std::int64_t> Json::as_int() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_)) {
    return *value;
  }
  const auto* natural = std::get_if<std::uint64_t>(&value_);
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (natural != nullptr && *natural <= kMax) {
    return static_cast<std::int64_t>(*natural);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Json::as_uint() const {
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) {
    return *value;
  }
  const auto* integer = std::get_if<std::int64_t>(&value_);
  if (integer != nullptr && *integer >= 0) {
    return static_cast<std::uint64_t>(*integer);
  }
  return std::nullopt;
}

std::optional<double> Json::as_double() const {
  if (const auto* value = std::get_if<double>(&value_)) {
    return *value;
  }
  if (const auto integer = as_int()) {
    return static_cast<double>(*integer);
  }
  if (const auto natural = as_uint()) {
    return static_cast<double>(*natural);
  }
  return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  if (const Object* object = as_object()) {
    for (const Member& member : *object) {
      if (member.key == key) {
        return &member.value;
      }
    }
  }
  return nullptr;
}

Result<bool> Json::require_bool(std::string_view key) const {
  const Json* found = find(key);
  return require(found, found != nullptr ? found->as_bool() : std::nullopt, key, "true or false");
}

Result<std::int64_t> Json::require_int(std::string_view key) const {
  const Json* found = find(key);
  return require(
      found, found != nullptr ? found->as_int() : std::nullopt, key, "an integer of 64 bits");
}

Result<std::uint64_t> Json::require_uint(std::string_view key) const {
  const Json* found = find(key);
  return require(found,
                 found != nullptr ? found->as_uint() : std::nullopt,
                 key,
                 "an integer of zero or more, of 64 bits");
}

Result<double> Json::require_double(std::string_view key) const {
  const Json* found = find(key);
  return require(found, found != nullptr ? found->as_double() : std::nullopt, key, "a number");
}

Result<std::string> Json::require_string(std::string_view key) const {
  const Json* found = find(key);
  if (found == nullptr || found->as_string() == nullptr) {
    return member_error(found, key, "a string");
  }
  return *found->as_string();
}

Result<const Json::Array*> Json::require_array(std::string_view key) const {
  const Json* found = find(key);
  if (found == nullptr || found->as_array() == nullptr) {
    return member_error(found, key, "an array");
  }
  return found->as_array();
}

Result<const Json*> Json::require_object(std::string_view key) const {
  const Json* found = find(key);
  if (found == nullptr || found->as_object() == nullptr) {
    return member_error(found, key, "an object");
  }
  return found;
}

Json& Json::set(std::string_view key, Json value) {
  if (auto* object = std::get_if<Object>(&value_)) {
    for (Member& member : *object) {
      if (member.key == key) {
        member.value = std::move(value);
        return *this;
      }
    }
  }
  return add(std::string(key), std::move(value));
}

Json& Json::add(std::string key, Json value) {
  if (is_null()) {
    value_ = Object();
  }
  auto* object = std::get_if<Object>(&value_);
  HEADRACE_ASSERT(object != nullptr, "a member is added to a value that is no object");
  object->push_back({.key = std::move(key), .value = std::move(value)});
  return *this;
}

Json& Json::push_back(Json value) {
  if (is_null()) {
    value_ = Array();
  }
  auto* array = std::get_if<Array>(&value_);
  HEADRACE_ASSERT(array != nullptr, "an element is added to a value that is no array");
  array->push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent_spaces) const {
  Writer writer(indent_spaces);
  writer.write(*this);
  return writer.take();
}

bool operator==(const Json& a, const Json& b) {
  if (const auto integer = a.as_int()) {
    return b.as_int() == integer;
  }
  return a.value_ == b.value_;
}

Result<Json> parse_json(std::string_view text, JsonLimits limits) {
  if (text.size() > limits.bytes_max) {
    return corrupt_error(
        fmt::format("the JSON text has {} bytes, the limit is {}", text.size(), limits.bytes_max));
  }
  Builder builder(limits);
  try {
    if (!nlohmann::json::sax_parse(text, &builder)) {
      return corrupt_error("the text is not valid JSON here").with_why(builder.why());
    }
  } catch (const std::exception& error) {
    return corrupt_error("the text is not valid JSON here").with_why(error.what());
  }
  return builder.take_root();
}

}  // namespace headrace
