// The weights of a Hugging Face directory: one model.safetensors, or the shards that
// model.safetensors.index.json names.
//
// Invariant: a tensor is in one file; the index and its shards agree on every name. Where a
// directory has both, model.safetensors is read, as transformers does. Thread: read() from any,
// concurrently. Failure: what is missing or contradicts itself, by file and tensor.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "model/safetensors.hpp"

namespace headrace::model {

inline constexpr std::string_view kWeightsName = "model.safetensors";
inline constexpr std::string_view kWeightsIndexName = "model.safetensors.index.json";

// "model-00001-of-00003.safetensors"
[[nodiscard]] std::string shard_name(std::size_t index, std::size_t count);
[[nodiscard]] bool is_shard_name(std::string_view name);

// The names in `dir` that hold its weights: model.safetensors, or the shards that its index names.
[[nodiscard]] Result<std::vector<std::string>> weight_file_names(const std::string& dir);

struct StoredWeight {
  std::size_t file = 0;
  const SafetensorsTensor* tensor = nullptr;
};

class WeightFiles {
 public:
  [[nodiscard]] static Result<WeightFiles> open(const std::string& dir);

  // model.safetensors or the index, for messages about the weights as a whole.
  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] const std::string& path_of(const StoredWeight& weight) const {
    return files_[weight.file].path();
  }

  // By name.
  [[nodiscard]] const std::map<std::string, StoredWeight, std::less<>>& weights() const {
    return weights_;
  }

  // Null when there is none of that name.
  [[nodiscard]] const StoredWeight* find(std::string_view name) const;

  // As SafetensorsFile::read.
  [[nodiscard]] Status read(const StoredWeight& weight,
                            std::int64_t begin,
                            std::span<float> out) const {
    return files_[weight.file].read(*weight.tensor, begin, out);
  }

 private:
  WeightFiles() = default;

  [[nodiscard]] Status open_shards(const std::string& dir);
  // Takes a file's tensors in; a name that another file has is an error.
  [[nodiscard]] Status add(SafetensorsFile file);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, StoredWeight, std::less<>> weights_;
};

}  // namespace headrace::model
