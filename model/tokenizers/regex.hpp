// Regular expressions of a tokenizer.json, searched by PCRE2 (in regex.cpp alone), compiled to
// machine code.
//
// tokenizer.json is written for Oniguruma. Both dialects read the patterns in use alike, save for
// what \s, \d, \w and names of scripts stand for: those are rewritten as the Unicode properties
// that Oniguruma means. What the dialects read differently, or only one of them knows, is refused.
// Thread: a Regex is const and for any; a RegexMatcher for one at a time. Failure: compile returns
// a Result; a search that runs out of its limits says so.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.hpp"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace headrace::model {

class Regex {
 public:
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern);

 private:
  friend class RegexMatcher;

  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

// Oniguruma's pattern in PCRE2's words.
[[nodiscard]] Result<std::string> pcre2_pattern_of(std::string_view oniguruma);

// Where searches keep their state; as long-lived as possible.
class RegexMatcher {
 public:
  enum class Outcome { kFound, kNothing, kLimit };

  // `regex` must outlive this.
  explicit RegexMatcher(const Regex& regex);

  // The first match at or after `from`, in well-formed UTF-8. What lies before is seen by
  // lookbehinds.
  [[nodiscard]] Outcome search(std::string_view text, std::size_t from);

  // Of the match that was found.
  [[nodiscard]] std::size_t begin() const { return ovector_[0]; }

  [[nodiscard]] std::size_t end() const { return ovector_[1]; }

 private:
  struct FreeData {
    void operator()(pcre2_real_match_data_8* data) const noexcept;
  };

  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const noexcept;
  };

  struct FreeStack {
    void operator()(pcre2_real_jit_stack_8* stack) const noexcept;
  };

  const pcre2_real_code_8* code_ = nullptr;
  bool jit_ = false;
  std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
  std::unique_ptr<pcre2_real_jit_stack_8, FreeStack> stack_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> context_;
  const std::size_t* ovector_ = nullptr;
};

}  // namespace headrace::model
