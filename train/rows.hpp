// The rows that data are cut into: inputs and targets of one sequence each.
//
//   tokens        row w is the length + 1 tokens at w * length; what is left at the end is not
//                 seen.
//   chat files    row e is an example from its start, padded with masked targets; of an example
//                 that is longer than length + 1 the rest is cut off.
//   packed chat   the examples' tokens one after the other as above, the last row padded; rows hold
//                 several examples, which see one another, and cut them.
//
// Of chat files a target is masked where the token is not one to learn. Rows that would have no
// target are left out, so that every row, and so every step, has one.
//
// Invariant: a row depends on data and settings only; memory is that of the rows left out, 8 bytes
// each. Thread: any, with buffers of its own. Failure: Result; too little data, and an example
// without a target, is found by `make`; an interrupt ends it with exit code 130.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "train/tokens.hpp"

namespace headrace::train {

inline constexpr std::int32_t kMaskedTarget = -1;

class Rows {
 public:
  struct Settings {
    std::int64_t length = 0;  // inputs of a row
    bool packed = false;      // chat files only
  };

  // `source` outlives the rows.
  [[nodiscard]] static Result<Rows> make(TokenSource& source, DataRange range, Settings settings);

  [[nodiscard]] std::int64_t count() const { return count_; }

  // Of all rows' positions, those that hold an input which has a target, masked or not.
  [[nodiscard]] double filled_share() const;

  // Both of `length`. Returns the number of targets that are not masked.
  [[nodiscard]] Result<std::int64_t> read(std::int64_t row,
                                          std::span<std::int32_t> tokens,
                                          std::span<std::int32_t> targets) const;

 private:
  Rows(TokenSource& source, DataRange range, Settings settings);
  class Look;
  [[nodiscard]] Status look_at_examples();
  [[nodiscard]] Status look_at_example(std::int64_t index,
                                       DataRange tokens,
                                       Look& look,
                                       std::int64_t& cut);
  [[nodiscard]] Status look_at_windows();
  [[nodiscard]] Result<DataRange> tokens_of(std::int64_t row) const;
  [[nodiscard]] std::int64_t with_left_out(std::int64_t row) const;

  TokenSource* source_;
  DataRange range_;  // tokens; examples where there is one a row
  Settings settings_;
  bool examples_ = false;  // one a row
  std::int64_t count_ = 0;
  std::int64_t filled_ = 0;
  std::vector<std::int64_t> left_out_;  // ascending
};

}  // namespace headrace::train
