// Hugging Face directories: a model's weights by ranges of its units, and back.
//
// Invariant: a model that opens has every tensor that its architecture needs, of the right shape,
// and no other that could matter; float32 weights that are imported and exported are the same
// bytes. Memory: a range is read into the caller's memory; an export works through the caller's
// buffer. Thread: read() from any, concurrently. Failure: everything that is wrong with a directory
// is reported at once, with file and tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "model/architecture.hpp"
#include "model/weight_files.hpp"
#include "scheduler/plan/model_spec.hpp"

namespace headrace::model {

class HuggingFaceModel {
 public:
  [[nodiscard]] const Architecture& architecture() const { return architecture_; }

  // For the log: what was ignored or found odd, one sentence each.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

  // Elements [begin, begin + out.size()) of a unit of `spec` (made for this architecture), as fp32;
  // padding is 0.
  [[nodiscard]] Status read(const plan::ModelSpec& spec,
                            int unit,
                            std::int64_t begin,
                            std::span<float> out) const;

 private:
  friend Result<HuggingFaceModel> open_huggingface(const std::string& dir,
                                                   const std::vector<std::string>& ignore);

  HuggingFaceModel(Architecture architecture, WeightFiles files)
      : architecture_(std::move(architecture)), files_(std::move(files)) {}

  // Pairs the architecture's tensors with the files'; the rest must be known not to matter.
  [[nodiscard]] Status match_tensors();
  // A head stored beside the table that it is tied to must hold the same numbers.
  [[nodiscard]] Status compare_tied_head();

  Architecture architecture_;
  WeightFiles files_;
  std::unordered_map<std::string, StoredWeight> stored_;  // by our name
  std::vector<std::string> notes_;
};

// config.json and the weights of `dir`. `ignore` is model.ignore.
[[nodiscard]] Result<HuggingFaceModel> open_huggingface(const std::string& dir,
                                                        const std::vector<std::string>& ignore);

// Weights beyond this are written as shards, each of which is smaller unless it is one tensor.
inline constexpr std::uint64_t kShardBytesMax = 5'000'000'000;

// Whether export_huggingface may write a file of this name. config.json is written last.
[[nodiscard]] bool is_export_file(std::string_view name);

enum class ExportOver : std::uint8_t {
  kExport,      // an earlier export
  kUnfinished,  // and one that was killed before it had its config.json
  kAnything     // other files and models too, with --overwrite
};

// Whether an export may go to `dir`: one that does not exist, is empty, or holds what `over` says.
// Errors (kUsage): anything else; in any case weights under other names, and folders and the like
// under the names that an export writes.
[[nodiscard]] Status check_export_target(const std::string& dir, ExportOver over);

struct HuggingFaceExport {
  std::string dir;  // made if its parent exists
  Dtype dtype = Dtype::kF32;
  // Fills `out` with elements [begin, begin + out.size()) of a unit.
  std::function<Status(int unit, std::int64_t begin, std::span<float> out)> read;
  std::span<float> buffer;  // scratch, at least one element; a MiB or more is quick
  std::uint64_t shard_bytes_max = kShardBytesMax;
};

// model.safetensors (or shards, then model.safetensors.index.json), generation_config.json, then
// config.json, each replaced whole. Shards get their names when all are whole; until then an
// earlier export stays as it is, and weights of it that are not replaced are removed. config.json
// has a field "headrace", by which an export is known, with the name of the architecture's
// tokenizer if it has one ({"tokenizer": "bytes"}).
[[nodiscard]] Status export_huggingface(const Architecture& architecture,
                                        const plan::ModelSpec& spec,
                                        const HuggingFaceExport& request);

}  // namespace headrace::model
