// Finds the end of a text that comes in pieces: before the one of some texts that is whole first.
// Of those that are whole at the same place the longest counts.
//
// Invariant: what is shown does not depend on the pieces. What may be the beginning of one is held
// back until it is known. Thread: one. Failure: none.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::train {

class StopText {
 public:
  // None of them is empty.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // What may be shown now. Once `stopped`, nothing more comes.
  [[nodiscard]] std::string push(std::string_view text);

  [[nodiscard]] bool stopped() const { return stopped_; }

  // What was held back, at the end of a text that was not stopped.
  [[nodiscard]] std::string rest() { return std::exchange(held_, ""); }

 private:
  [[nodiscard]] std::size_t begins_at() const;

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace headrace::train
