// safetensors files: a checked reader of ranges and a streaming writer.
//
// Invariant: a file is accepted only if its tensors tile the data exactly, as the reference reader
// insists; nothing is allocated in the size of a claim that the file's own size does not bear out.
// Neither side holds a tensor: the reader reads ranges into the caller's memory (pread, nothing is
// mapped), the writer works through a buffer that the caller gives.
// Thread: a file may be read by any number of threads at a time. Failure: exit code 4 for a file
// that breaks the format, 1 for what the system refuses; the text names file and tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/unique.hpp"

namespace headrace::model {

// Headers longer than this are refused, by the reference implementation too.
inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  // as written: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0;
  std::uint64_t offset_bytes = 0;  // from the file's start
  std::uint64_t bytes = 0;

  // Set for the dtypes that this engine computes with: F32, BF16, F16.
  [[nodiscard]] std::optional<Dtype> float_dtype() const;
};

class SafetensorsFile {
 public:
  [[nodiscard]] static Result<SafetensorsFile> open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }

  // In the order of their data.
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  // Null when there is none of that name.
  [[nodiscard]] const SafetensorsTensor* find(const std::string& name) const;

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Elements [begin, begin + out.size()) of a tensor of this file whose float_dtype() is set, as
  // fp32 (exact: each of the three dtypes is a subset).
  [[nodiscard]] Status read(const SafetensorsTensor& tensor,
                            std::int64_t begin,
                            std::span<float> out) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  UniqueFd file_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
};

struct SafetensorsWrite {
  std::string path;
  std::vector<SafetensorsEntry> entries = {};  // any order; names differ
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  // Fills `out` with elements [begin, begin + out.size()) of entries[index]. Called in the order of
  // the file, ascending within a tensor.
  std::function<Status(std::size_t index, std::int64_t begin, std::span<float> out)> source;
  std::span<float> buffer;  // scratch, at least one element; a MiB or more is quick
};

// Tensors by descending size of dtype, then by name. bf16 and f16 are rounded to nearest, ties to
// even. Written as `path`.partial, flushed, renamed: `path` is the old file or the new one.
[[nodiscard]] Status write_safetensors(const SafetensorsWrite& request);

}  // namespace headrace::model
