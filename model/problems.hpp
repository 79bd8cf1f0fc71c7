// Collects errors, so that all problems of one input are reported at once.
//
// Invariant: the first one added is the Error that the user sees first; the others travel in
// Error::others. Thread: a plain value.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace headrace::model {

class Problems {
 public:
  void add(Error error) {
    std::vector<Error> others = std::exchange(error.others, {});
    if (first_) {
      first_->others.push_back(std::move(error));
    } else {
      first_ = std::move(error);
    }
    for (Error& other : others) {
      first_->others.push_back(std::move(other));
    }
  }

  void add(Status status) {
    if (!status) {
      add(std::move(status).error());
    }
  }

  [[nodiscard]] bool empty() const { return !first_.has_value(); }

  // The collected error; ok when there is none.
  [[nodiscard]] Status status() && {
    if (first_) {
      return std::move(*first_);
    }
    return {};
  }

 private:
  std::optional<Error> first_;
};

}  // namespace headrace::model
