// Cuts text into the pieces that byte pairs are merged in: `pre_tokenizer` of a tokenizer.json.
//
// Stages (Split, Digits, ByteLevel) cut one another's pieces, as Hugging Face's do. Invariant: a
// piece is never empty; pieces in order are the text, save for what Split removes and the space
// that add_prefix_space adds. Thread: a PreTokenizer is const and for any; a PieceCutter for one at
// a time. Failure: make returns a Result; cut a Status (a pattern that runs out of its limits).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "model/tokenizers/regex.hpp"

namespace headrace::model {

enum class SplitBehavior : std::uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

struct PreTokenizerStage {
  std::optional<Regex> regex = {};  // none: numbers (Digits), or nothing is cut
  bool digits = false;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false;
  std::string pattern = {};  // of the regex, as the file has it
};

// Where a text may be cut in two without changing a token, whatever lies on both sides.
enum class CutRule : std::uint8_t {
  kNowhere,
  kBeforeSpace,   // between a character that is no white space and a line feed or a space
  kAfterNewline,  // between a line feed and a character that is no white space
};

class PreTokenizer {
 public:
  // Of the member "pre_tokenizer". Errors name the field.
  [[nodiscard]] static Result<PreTokenizer> make(const Json& json);

  [[nodiscard]] const std::vector<PreTokenizerStage>& stages() const { return stages_; }

  [[nodiscard]] CutRule cut_rule() const;

 private:
  std::vector<PreTokenizerStage> stages_;
};

using PieceSink = std::function<Status(std::string_view piece)>;

class PieceCutter {
 public:
  // `pre_tokenizer` must outlive this.
  explicit PieceCutter(const PreTokenizer& pre_tokenizer);

  // Well-formed UTF-8 in; `sink` gets the pieces in order, each valid during its call.
  [[nodiscard]] Status cut(std::string_view text, const PieceSink& sink);

 private:
  struct Part {
    std::size_t begin;
    std::size_t end;
    bool matched;
  };

  [[nodiscard]] Status cut_from(std::size_t stage, std::string_view text, const PieceSink& sink);
  [[nodiscard]] Status isolate(std::size_t stage, std::string_view text, const PieceSink& sink);
  [[nodiscard]] Status split(std::size_t stage, std::string_view text, const PieceSink& sink);
  // Calls visit(Part) for matches and what lies between them.
  template <class Visit>
  [[nodiscard]] Status match(std::size_t stage, std::string_view text, const Visit& visit);
  template <class Visit>
  [[nodiscard]] static Status match_digits(std::string_view text, const Visit& visit);

  const PreTokenizer& pre_tokenizer_;
  std::vector<std::unique_ptr<RegexMatcher>> matchers_;  // of the stages; null: no regex
};

}  // namespace headrace::model
