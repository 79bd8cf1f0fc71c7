// The bytes of a text file, plain or compressed with gzip or zstd, in order and in pieces.
//
// The kind is told by the first bytes; a name that says otherwise is an error. Members of gzip and
// frames of zstd that follow one another are one text. Invariant: memory does not grow with the
// file. Thread: one at a time. Failure: Result; a stream that is cut short or damaged is a
// corrupt-data error.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace headrace::train {

class TextInput {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TextInput>> open(const std::string& path);
  virtual ~TextInput() = default;

  // Fills `out` from its start; fewer bytes than asked for only at the end, then 0.
  [[nodiscard]] virtual Result<std::size_t> read(std::span<char> out) = 0;
};

// Without the .gz, .zst or .zstd that it ends with.
[[nodiscard]] std::string_view without_packed_suffix(std::string_view path);

}  // namespace headrace::train
