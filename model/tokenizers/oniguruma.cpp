// Oniguruma's pattern in PCRE2's words (regex.hpp).
#include <fmt/format.h>

#include <cctype>
#include <string>
#include <string_view>

#include "model/tokenizers/regex.hpp"

namespace headrace::model {
namespace {

// Oniguruma's \w, as members of a class.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (at_ < pattern_.size()) {
      HEADRACE_TRY(pattern_[at_] == '\\' ? escape() : in_class_ ? class_member() : plain());
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  void copy(std::size_t count) { replace(count, pattern_.substr(at_, count)); }

  void replace(std::size_t count, std::string_view with) {
    out_ += with;
    at_ += count;
    branch_begins_ = false;
  }

  [[nodiscard]] Error refusal(std::string_view what) const {
    return usage_error(fmt::format("the pattern '{}' has {} at byte {}", pattern_, what, at_))
        .with_why("this version has no match for it in PCRE2 that is sure to agree with Oniguruma");
  }

  Status class_member() {
    const char character = pattern_[at_];
    if (character == '[' || (character == '&' && peek(1) == '&')) {
      return refusal("a class inside a class");
    }
    in_class_ = character != ']';
    copy(1);
    return {};
  }

  Status plain() {
    switch (pattern_[at_]) {
      case '[':
        in_class_ = true;
        copy(peek(1) == '^' ? 2 : 1);
        return peek(0) == ']' ? Status(refusal("an empty class")) : Status();
      case '(':
        return group();
      case '{':
        return interval();
      case '^':
      case '$':
        return refusal("an anchor");
      default:
        break;
    }
    const bool alternative = pattern_[at_] == '|';
    copy(1);
    branch_begins_ = alternative;
    return {};
  }

  Status group() {
    if (peek(1) == '*') {
      return refusal("'(*'");
    }
    if (peek(1) != '?') {
      copy(1);
      branch_begins_ = true;
      return {};
    }
    // a(?i)b|c is a(?i:b|c) to Oniguruma, and a(?i:b)|(?i:c) to PCRE2.
    if (pattern_.substr(at_).starts_with("(?i)") && !branch_begins_) {
      return refusal("'(?i)' inside a branch");
    }
    for (const std::string_view known :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)", "(?-i:"}) {
      if (pattern_.substr(at_).starts_with(known)) {
        copy(known.size());
        branch_begins_ = true;
        return {};
      }
    }
    return refusal("a group of an unknown kind");
  }

  // Oniguruma reads {,n} as {0,n}, PCRE2 as text; a + after it repeats in one and is possessive in
  // the other; a ? after {n} makes all of it optional in one, and nothing in the other.
  Status interval() {
    const std::size_t end = pattern_.find('}', at_);
    const bool counts = end != std::string_view::npos && end > at_ + 1 &&
                        pattern_.substr(at_ + 1, end - at_ - 1).find_first_not_of("0123456789,") ==
                            std::string_view::npos;
    const char behind = counts && end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    const bool exact =
        counts && pattern_.substr(at_, end - at_).find(',') == std::string_view::npos;
    if (!counts || peek(1) == ',' || behind == '+' || (exact && behind == '?')) {
      return refusal("'{'");
    }
    copy(end - at_ + 1);
    return {};
  }

  Status property() {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) {
      return refusal("a property without braces");
    }
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    name.remove_prefix(negated ? 1 : 0);
    for (const char character : name) {
      if (std::isalnum(static_cast<unsigned char>(character)) == 0 && character != '_') {
        return refusal("a property");
      }
    }
    // Categories have one letter or two; PCRE2 takes a bare script for its extensions.
    replace(end - at_ + 1,
            fmt::format(
                "\\{}{{{}{}{}}}", peek(1), negated ? "^" : "", name.size() > 2 ? "sc:" : "", name));
    return {};
  }

  Status code_point() {
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    const std::size_t begin = at_ + (braces ? 3 : 2);
    const std::size_t wanted = peek(1) == 'u' ? 4 : 2;
    const std::size_t end = braces ? pattern_.find('}', begin) : begin + wanted;
    if (end == std::string_view::npos || end > pattern_.size() || end == begin) {
      return refusal("a character by number");
    }
    const std::string_view digits = pattern_.substr(begin, end - begin);
    for (const char digit : digits) {
      if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) {
        return refusal("a character by number");
      }
    }
    // \x80 and above is a byte to Oniguruma.
    if (!braces && peek(1) == 'x' && digits.front() > '7') {
      return refusal("a byte by number");
    }
    replace(end + (braces ? 1 : 0) - at_, fmt::format("\\x{{{}}}", digits));
    return {};
  }

  Status escape() {
    const char letter = peek(1);
    switch (letter) {
      case 's':
        replace(2, "\\p{White_Space}");
        return {};
      case 'S':
        replace(2, "\\P{White_Space}");
        return {};
      case 'd':
        replace(2, "\\p{Nd}");
        return {};
      case 'D':
        replace(2, "\\P{Nd}");
        return {};
      case 'w':
        replace(2, in_class_ ? std::string(kWord) : fmt::format("[{}]", kWord));
        return {};
      case 'v':
        replace(2, "\\x{0B}");
        return {};
      case 'p':
      case 'P':
        return property();
      case 'x':
      case 'u':
        return code_point();
      case 'n':
      case 'r':
      case 't':
      case 'f':
        copy(2);
        return {};
      default:
        break;
    }
    if (std::ispunct(static_cast<unsigned char>(letter)) == 0 && letter != ' ') {
      return refusal(fmt::format("'\\{}'", letter == '\0' ? ' ' : letter));
    }
    copy(2);
    return {};
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  bool branch_begins_ = true;  // of an alternation, here
  std::string out_;
};

}  // namespace

Result<std::string> pcre2_pattern_of(std::string_view oniguruma) {
  return Translator(oniguruma).run();
}

}  // namespace headrace::model
