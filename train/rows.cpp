#include "train/rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "train/interrupt.hpp"

namespace headrace::train {
namespace {

// Tokens looked at together while rows without targets are sought.
constexpr std::int64_t kLookTokens = 16384;
constexpr std::int64_t kLookExamples = 4096;  // whose ends are read together

Error too_little(const DataRange& range, const Rows::Settings& settings) {
  return usage_error(fmt::format("data: {} tokens are too few", range.count))
      .with_why(fmt::format("one window needs {} tokens and the one after", settings.length))
      .with_hint("add data, or lower batch.seq_len");
}

Error nothing_to_learn(std::int64_t examples, const Rows::Settings& settings) {
  return usage_error(fmt::format("data: {} examples, and none to train on", examples))
      .with_why(examples == 0
                    ? "the range of examples is empty"
                    : fmt::format("in their first {} tokens is none to learn", settings.length + 1))
      .with_hint(examples == 0 ? "add data, or change eval.fraction" : "raise batch.seq_len");
}

Error no_target(const std::string& name) {
  return corrupt_error(fmt::format("data: {} has no token to learn", name))
      .with_why("every example of a chat file has one, which is not its first")
      .with_hint("make the file again with headrace tokenize --chat");
}

}  // namespace

// Looks at tokens from the first to the last, and reads many of them together.
class Rows::Look {
 public:
  explicit Look(TokenSource& source) : source_(source) {}

  // The first token is nobody's target.
  Result<bool> has_target(DataRange tokens) {
    const std::int64_t end = tokens.first + tokens.count;
    for (std::int64_t at = tokens.first + 1; at < end;) {
      if (at < first_ || at >= first_ + static_cast<std::int64_t>(words_.size())) {
        HEADRACE_TRY(read(at));
      }
      const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(at - first_);
      const auto count = std::min<std::int64_t>(end - at, words_.end() - begin);
      if (std::any_of(begin, begin + static_cast<std::ptrdiff_t>(count), is_learned)) {
        return true;
      }
      at += count;
    }
    return false;
  }

 private:
  Status read(std::int64_t at) {
    if (interrupt_requested()) {
      return make_error(ExitCode::kInterrupted, "interrupted")
          .with_why("SIGINT or SIGTERM came while the rows of the data were sought");
    }
    first_ = at;
    words_.resize(static_cast<std::size_t>(std::min(kLookTokens, source_.tokens() - at)));
    return source_.read(at, words_);
  }

  TokenSource& source_;
  std::int64_t first_ = 0;
  std::vector<std::int32_t> words_;
};

Rows::Rows(TokenSource& source, DataRange range, Settings settings)
    : source_(&source), range_(range), settings_(settings) {}

Result<Rows> Rows::make(TokenSource& source, DataRange range, Settings settings) {
  Rows rows(source, range, settings);
  if (!source.is_chat()) {
    rows.count_ = range.count > 0 ? (range.count - 1) / settings.length : 0;
    rows.filled_ = rows.count_ * settings.length;
    if (rows.count_ == 0) {
      return too_little(range, settings);
    }
    return rows;
  }
  if (range.count > 0) {
    HEADRACE_TRY(settings.packed ? rows.look_at_windows() : rows.look_at_examples());
  }
  if (rows.count_ == 0) {
    return nothing_to_learn(range.count, settings);
  }
  return rows;
}

Status Rows::look_at_examples() {
  examples_ = true;
  std::int64_t cut = 0;
  std::vector<DataRange> together;
  Look look(*source_);
  for (std::int64_t first = 0; first < range_.count; first += kLookExamples) {
    together.resize(static_cast<std::size_t>(std::min(kLookExamples, range_.count - first)));
    HEADRACE_TRY(source_->examples(range_.first + first, together));
    for (std::size_t i = 0; i < together.size(); ++i) {
      HEADRACE_TRY(look_at_example(first + static_cast<std::int64_t>(i), together[i], look, cut));
    }
  }
  count_ = range_.count - static_cast<std::int64_t>(left_out_.size());
  if (cut > 0) {
    log_warning(fmt::format(
        "data: of {} examples {} are longer than batch.seq_len + 1 = {} tokens and cut there{}",
        range_.count,
        cut,
        settings_.length + 1,
        left_out_.empty() ? ""
                          : fmt::format("; {} are left out, since no token to learn is before the "
                                        "cut",
                                        left_out_.size())));
  }
  return {};
}

Status Rows::look_at_example(std::int64_t index, DataRange tokens, Look& look, std::int64_t& cut) {
  const bool is_long = tokens.count - 1 > settings_.length;
  cut += is_long ? 1 : 0;
  tokens.count = std::min(tokens.count, settings_.length + 1);
  HEADRACE_ASSIGN(const bool learned, look.has_target(tokens));
  if (learned) {
    filled_ += tokens.count - 1;
    return {};
  }
  if (!is_long) {
    return no_target(source_->example_name(range_.first + index));
  }
  left_out_.push_back(index);  // what is to learn is in what is cut off
  return {};
}

Status Rows::look_at_windows() {
  HEADRACE_ASSIGN(const DataRange first, source_->example(range_.first));
  HEADRACE_ASSIGN(const DataRange last, source_->example(range_.first + range_.count - 1));
  range_ = {.first = first.first, .count = last.first + last.count - first.first};
  const std::int64_t windows = (range_.count - 2) / settings_.length + 1;
  count_ = windows;
  Look look(*source_);
  for (std::int64_t window = 0; window < windows; ++window) {
    HEADRACE_ASSIGN(const DataRange tokens, tokens_of(window));
    HEADRACE_ASSIGN(const bool learned, look.has_target(tokens));
    if (learned) {
      filled_ += tokens.count - 1;
    } else {
      left_out_.push_back(window);
    }
  }
  count_ = windows - static_cast<std::int64_t>(left_out_.size());
  return {};
}

double Rows::filled_share() const {
  return static_cast<double>(filled_) /
         (static_cast<double>(count_) * static_cast<double>(settings_.length));
}

// The row of this number when none is left out: left_out_[i] - i rows come before left_out_[i].
std::int64_t Rows::with_left_out(std::int64_t row) const {
  std::int64_t low = 0;
  auto high = static_cast<std::int64_t>(left_out_.size());
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (left_out_[static_cast<std::size_t>(middle)] - middle <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return row + low;
}

// Inputs, and the token after them.
Result<DataRange> Rows::tokens_of(std::int64_t row) const {
  const std::int64_t needed = settings_.length + 1;
  if (examples_) {
    HEADRACE_ASSIGN(const DataRange example, source_->example(range_.first + row));
    return DataRange{.first = example.first, .count = std::min(example.count, needed)};
  }
  const std::int64_t at = row * settings_.length;
  return DataRange{.first = range_.first + at, .count = std::min(range_.count - at, needed)};
}

Result<std::int64_t> Rows::read(std::int64_t row,
                                std::span<std::int32_t> tokens,
                                std::span<std::int32_t> targets) const {
  HEADRACE_ASSERT(row >= 0 && row < count_, "a row is one of the data's");
  const std::int64_t number = with_left_out(row);
  HEADRACE_ASSIGN(const DataRange range, tokens_of(number));
  // All but the last token are inputs, all but the first are targets.
  const auto inputs = static_cast<std::size_t>(range.count - 1);
  std::vector<std::int32_t> words(inputs + 1);
  HEADRACE_TRY(source_->read(range.first, words));
  const bool is_chat = source_->is_chat();
  std::int64_t learned = 0;
  for (std::size_t i = 0; i < inputs; ++i) {
    const std::int32_t next = words[i + 1];
    const bool counts = !is_chat || is_learned(next);
    tokens[i] = token_of(words[i]);
    targets[i] = counts ? token_of(next) : kMaskedTarget;
    learned += counts ? 1 : 0;
  }
  std::fill(tokens.begin() + static_cast<std::ptrdiff_t>(inputs), tokens.end(), 0);
  std::fill(targets.begin() + static_cast<std::ptrdiff_t>(inputs), targets.end(), kMaskedTarget);
  if (learned == 0) {
    return no_target(examples_ ? source_->example_name(range_.first + number)
                               : fmt::format("window {}", number));
  }
  return learned;
}

}  // namespace headrace::train
