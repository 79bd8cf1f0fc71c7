// Json: a JSON value of ours; nlohmann-json does the lexing and the text of strings and numbers,
// in json.cpp alone.
//
// Invariant: objects keep their order; a parsed document has no duplicate keys and is no deeper
// than its limit; integers of 64 bits and doubles read back bit for bit from what dump() writes.
// NaN and infinities have no JSON form: dump() writes null for them, so who must tell them from
// "absent" writes a word beside them (metrics.jsonl: "skipped" names the cause).
// Thread: as a plain value. Failure: parse_json and the require_* functions return errors that name
// the place or the key; the as_* functions return an empty optional or a null pointer.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"

namespace headrace {

class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json();  // null

  // Implicit, so that values can be written where a Json is due.
  // NOLINTBEGIN(google-explicit-constructor,hicpp-explicit-conversions)
  Json(std::nullptr_t);
  Json(std::same_as<bool> auto value);
  Json(std::signed_integral auto value);
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Json(T value);
  Json(double value);
  Json(std::string value);
  Json(std::string_view value);
  Json(const char* value);
  Json(Array value);
  Json(Object value);
  template <class T>
  Json(const std::optional<T>& value);
  // NOLINTEND(google-explicit-constructor,hicpp-explicit-conversions)

  [[nodiscard]] static Json array();

  [[nodiscard]] static Json object();

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

  [[nodiscard]] bool is_number() const { return as_double().has_value(); }

  [[nodiscard]] std::optional<bool> as_bool() const;
  // Integers that fit; 1.0 is a double and no integer.
  [[nodiscard]] std::optional<std::int64_t> as_int() const;
  [[nodiscard]] std::optional<std::uint64_t> as_uint() const;
  // Any number.
  [[nodiscard]] std::optional<double> as_double() const;

  [[nodiscard]] const std::string* as_string() const { return std::get_if<std::string>(&value_); }

  [[nodiscard]] const Array* as_array() const { return std::get_if<Array>(&value_); }

  [[nodiscard]] const Object* as_object() const { return std::get_if<Object>(&value_); }

  // The member's value; null when this is no object or has no such key. Linear in the members.
  [[nodiscard]] const Json* find(std::string_view key) const;

  // The member's value in the type asked for, or a corrupt-data error that names the key.
  [[nodiscard]] Result<bool> require_bool(std::string_view key) const;
  [[nodiscard]] Result<std::int64_t> require_int(std::string_view key) const;
  [[nodiscard]] Result<std::uint64_t> require_uint(std::string_view key) const;
  [[nodiscard]] Result<double> require_double(std::string_view key) const;
  [[nodiscard]] Result<std::string> require_string(std::string_view key) const;
  [[nodiscard]] Result<const Array*> require_array(std::string_view key) const;
  [[nodiscard]] Result<const Json*> require_object(std::string_view key) const;

  // Adds a member, or replaces its value in its place; makes a null an object. Returns *this.
  Json& set(std::string_view key, Json value);
  // Adds a member whose key is known to be new: constant time.
  Json& add(std::string key, Json value);
  // Adds an element; makes a null an array. Returns *this.
  Json& push_back(Json value);

  // Text on one line, or over lines with indent_spaces > 0. Bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string dump(int indent_spaces = 0) const;

  // Equal in kind, order and value; 1 and 1.0 differ, int64 1 and uint64 1 do not.
  friend bool operator==(const Json& a, const Json& b);

 private:
  std::
      variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object>
          value_;
};

struct Json::Member {
  std::string key;
  Json value;

  friend bool operator==(const Member& a, const Member& b) = default;
};

// Here, where Member is complete.
inline Json::Json(std::nullptr_t) {}

inline Json::Json(std::same_as<bool> auto value) : value_(value) {}

inline Json::Json(std::signed_integral auto value) : value_(static_cast<std::int64_t>(value)) {}

template <std::unsigned_integral T>

requires(!std::same_as<T, bool>) inline Json::Json(T value)
    : value_(static_cast<std::uint64_t>(value)) {}

template <class T>
inline Json::Json(const std::optional<T>& value) : Json(value ? Json(*value) : Json()) {}

struct JsonLimits {
  std::size_t bytes_max = std::size_t{256} << 20U;
  std::size_t depth_max = 64;
};

// One JSON document; a syntax error, a duplicate key, a number beyond double, and a document past
// the limits are corrupt-data errors that say where.
[[nodiscard]] Result<Json> parse_json(std::string_view text, JsonLimits limits = {});

}  // namespace headrace
