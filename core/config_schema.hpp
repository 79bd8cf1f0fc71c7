// The schema of RUN.toml as data: one row a key, with its type, range, help and where its value
// lives in RunConfig. Used by the parts of the config reader only (core/config*.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"

namespace headrace::config {

enum class Kind {
  kText,
  kDevice,  // "cpu" or "cuda:N"
  kPath,
  kTokenizer,  // "bytes" or a path
  kInteger,
  kNumber,
  kBool,
  kTexts,
  kPaths,
  kPair,       // two numbers
  kSize,       // bytes
  kRate,       // bytes per second
  kEndurance,  // bytes
  kInterval,   // text that core/interval.hpp reads
  kDuration,   // an interval without steps
  kBlocks,     // a count of 65,536-element blocks; the field holds elements
  kGroups,     // [[optim.group]]
  kFolders,    // tiers.nvme
};

inline constexpr std::uint64_t kBlockElements = 65536;

// A value on its way between text and field; monostate is "auto" or absent.
using Value = std::variant<std::monostate,
                           bool,
                           std::int64_t,
                           std::uint64_t,
                           double,
                           std::string,
                           std::vector<std::string>,
                           std::array<double, 2>,
                           std::vector<OptimGroup>,
                           std::vector<NvmeFolder>>;

// A number must lie within; the ends belong to the range unless open.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool max_open = false;
};

// A value that other versions or tools take and this version does not.
struct Refusal {
  std::string_view value;
  std::string_view why;
  std::string_view hint;
};

struct Traits {
  std::string_view name;  // "optim.lr"; "lr_scale" in a group
  Kind kind;
  std::string_view doc;
  bool may_be_auto = false;
  bool makes_numbers = false;
  Range range = {};
  std::string_view choices = {};  // "held|after-backward"; empty: any
  std::span<const Refusal> refusals = {};
  std::string_view default_words = {};  // where the default is no constant
};

template <class Owner>
struct Key : Traits {
  void (*set)(Owner&, const Value&);
  Value (*get)(const Owner&);
};

// The rows, in the order of the documentation.
[[nodiscard]] std::span<const Key<RunConfig>> run_keys();
[[nodiscard]] std::span<const Key<OptimGroup>> group_keys();
[[nodiscard]] std::span<const Key<NvmeFolder>> folder_keys();

template <class Owner>
[[nodiscard]] const Key<Owner>* find_key(std::span<const Key<Owner>> keys, std::string_view name) {
  for (const Key<Owner>& key : keys) {
    if (key.name == name) {
      return &key;
    }
  }
  return nullptr;
}

// "optim" and "tiers.links" are sections; so is "" .
[[nodiscard]] bool is_section(std::string_view name);

// The keys of a section, in words; the sections for "".
[[nodiscard]] std::string section_hint(std::string_view section);
// What a user may have meant by an unknown key, in words.
[[nodiscard]] std::string unknown_key_hint(std::string_view key);

// Names that other trainers use, with ours; for the test that each of ours exists.
struct ForeignName {
  std::string_view name;
  std::string_view key;  // ours; empty: there is none, the note says why
  std::string_view note;
};

[[nodiscard]] std::span<const ForeignName> foreign_names();

// "lr", "betas": a value as TOML text; "" for one that is absent and may not be auto.
[[nodiscard]] std::string value_text(const Traits& traits, const Value& value);
// "number", "size", "list of texts".
[[nodiscard]] std::string_view kind_name(Kind kind);
// ">= 1", "\"held\" | \"after-backward\""; "" where anything of the type goes.
[[nodiscard]] std::string allowed_text(const Traits& traits);

// Everything that needs more than one key to see; appends to errors. Sections in which a value
// could not be read are passed over.
void check_combinations(const RunConfig& config,
                        const std::set<std::string, std::less<>>& failed_sections,
                        std::vector<Error>& errors);

}  // namespace headrace::config
