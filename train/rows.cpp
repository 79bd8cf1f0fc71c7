#include "train/rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/assert.hpp"
#include "core/log.hpp"

namespace headrace::train {
namespace {

// Tokens looked at together while rows without targets are sought.
constexpr std::int64_t kLookTokens = 16384;

Error too_little(const DataRange& range, const Rows::Settings& settings) {
  return usage_error(fmt::format("data: {} tokens are too few", range.count))
      .with_why(fmt::format("one window needs {} tokens and the one after", settings.length))
      .with_hint("add data, or lower batch.seq_len");
}

Error nothing_to_learn(std::int64_t examples, const Rows::Settings& settings) {
  return usage_error(fmt::format("data: {} examples, and none to train on", examples))
      .with_why(examples == 0
                    ? "the range of examples is empty"
                    : fmt::format("in their first {} tokens is none to learn", settings.length))
      .with_hint(examples == 0 ? "add data, or change eval.fraction" : "raise batch.seq_len");
}

}  // namespace

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
  for (std::int64_t i = 0; i < range_.count; ++i) {
    HEADRACE_ASSIGN(DataRange tokens, source_->example(range_.first + i));
    // Short ones have a target; longer ones may have it in what is cut off.
    if (tokens.count - 1 > settings_.length) {
      cut += 1;
      tokens.count = settings_.length + 1;
      HEADRACE_ASSIGN(const bool learned, has_target(tokens));
      if (!learned) {
        left_out_.push_back(i);
        continue;
      }
    }
    filled_ += tokens.count - 1;
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

Status Rows::look_at_windows() {
  HEADRACE_ASSIGN(const DataRange first, source_->example(range_.first));
  HEADRACE_ASSIGN(const DataRange last, source_->example(range_.first + range_.count - 1));
  range_ = {.first = first.first, .count = last.first + last.count - first.first};
  const std::int64_t windows = (range_.count - 2) / settings_.length + 1;
  count_ = windows;
  for (std::int64_t window = 0; window < windows; ++window) {
    HEADRACE_ASSIGN(const DataRange tokens, tokens_of(window));
    HEADRACE_ASSIGN(const bool learned, has_target(tokens));
    if (learned) {
      filled_ += tokens.count - 1;
    } else {
      left_out_.push_back(window);
    }
  }
  count_ = windows - static_cast<std::int64_t>(left_out_.size());
  return {};
}

// The first token is nobody's target.
Result<bool> Rows::has_target(DataRange tokens) const {
  std::vector<std::int32_t> words;
  for (std::int64_t at = 1; at < tokens.count; at += kLookTokens) {
    words.resize(static_cast<std::size_t>(std::min(kLookTokens, tokens.count - at)));
    HEADRACE_TRY(source_->read(tokens.first + at, words));
    if (std::any_of(words.begin(), words.end(), is_learned)) {
      return true;
    }
  }
  return false;
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
    return corrupt_error(fmt::format("data: {} has no token to learn",
                                     examples_ ? source_->example_name(range_.first + number)
                                               : fmt::format("window {}", number)))
        .with_hint("make the file again with headrace tokenize --chat");
  }
  return learned;
}

}  // namespace headrace::train
