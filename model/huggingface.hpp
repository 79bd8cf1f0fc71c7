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
#include <unordered_map>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "model/architecture.hpp"
#include "model/safetensors.hpp"
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

  HuggingFaceModel(Architecture architecture, SafetensorsFile file)
      : architecture_(std::move(architecture)), file_(std::move(file)) {}

  // Pairs the architecture's tensors with the file's; the rest must be known not to matter.
  [[nodiscard]] Status match_tensors();
  // A head stored beside the table that it is tied to must hold the same numbers.
  [[nodiscard]] Status compare_tied_head();

  Architecture architecture_;
  SafetensorsFile file_;
  std::unordered_map<std::string, std::string> stored_names_;  // ours -> the file's
  std::vector<std::string> notes_;
};

// config.json and model.safetensors of `dir`. `ignore` is model.ignore.
[[nodiscard]] Result<HuggingFaceModel> open_huggingface(const std::string& dir,
                                                        const std::vector<std::string>& ignore);

struct HuggingFaceExport {
  std::string dir;  // made if its parent exists
  Dtype dtype = Dtype::kF32;
  // Fills `out` with elements [begin, begin + out.size()) of a unit.
  std::function<Status(int unit, std::int64_t begin, std::span<float> out)> read;
  std::span<float> buffer;  // scratch, at least one element; a MiB or more is quick
};

// model.safetensors, generation_config.json, then config.json, each replaced whole. An
// architecture with a tokenizer leaves its name in config.json ("headrace": {"tokenizer":
// "bytes"}).
[[nodiscard]] Status export_huggingface(const Architecture& architecture,
                                        const plan::ModelSpec& spec,
                                        const HuggingFaceExport& request);

}  // namespace headrace::model
