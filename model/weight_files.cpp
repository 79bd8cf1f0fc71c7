// Opening one file or an index and its shards (weight_files.hpp).
#include "model/weight_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/files.hpp"
#include "core/json.hpp"
#include "model/problems.hpp"

namespace headrace::model {

namespace {

constexpr std::uint64_t kIndexBytesMax = std::uint64_t{256} << 20;

// What a directory without safetensors holds instead.
Error no_weights(const std::string& dir) {
  Error error = operating_error(
      fmt::format("'{}': it has no {} and no {}", dir, kWeightsName, kWeightsIndexName));
  if (path_exists(dir + "/pytorch_model.bin") ||
      path_exists(dir + "/pytorch_model.bin.index.json")) {
    return std::move(error)
        .with_why("its weights are Python pickles, which can run code")
        .with_hint("load it with transformers and save it as safetensors");
  }
  return std::move(error).with_hint("give a Hugging Face model directory");
}

Error bad_index(const std::string& path, std::string why) {
  return corrupt_error(fmt::format("'{}' is not an index of weights", path))
      .with_why(std::move(why))
      .with_hint("copy it again from where the model came from");
}

// Tensor -> file, as the index says.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  HEADRACE_ASSIGN(const std::string text, read_file(path, kIndexBytesMax));
  const Result<Json> index = parse_json(text);
  if (!index) {
    return bad_index(path, index.error().why.empty() ? index.error().what : index.error().why);
  }
  const Json* map = index->find("weight_map");
  if (map == nullptr || map->as_object() == nullptr) {
    return bad_index(path, "there is no object weight_map in it");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : *map->as_object()) {
    const std::string* name = file.as_string();
    if (name == nullptr || !name->ends_with(".safetensors") ||
        name->find('/') != std::string::npos) {
      return bad_index(path,
                       fmt::format("tensor '{}' lies in {}, which is not the name of a "
                                   "safetensors file beside it",
                                   tensor,
                                   file.dump()));
    }
    files.emplace(tensor, *name);
  }
  return files;
}

}  // namespace

std::string shard_name(std::size_t index, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

bool is_shard_name(std::string_view name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return std::equal(
      name.begin(), name.end(), kPattern.begin(), kPattern.end(), [](char found, char wanted) {
        return wanted == '#' ? found >= '0' && found <= '9' : found == wanted;
      });
}

Result<std::vector<std::string>> weight_file_names(const std::string& dir) {
  if (path_exists(fmt::format("{}/{}", dir, kWeightsName))) {
    return std::vector<std::string>{std::string(kWeightsName)};
  }
  using Index = std::map<std::string, std::string>;
  HEADRACE_ASSIGN(const Index index, read_index(fmt::format("{}/{}", dir, kWeightsIndexName)));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) {
    names.insert(file);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<WeightFiles> WeightFiles::open(const std::string& dir) {
  WeightFiles weights;
  weights.path_ = fmt::format("{}/{}", dir, kWeightsName);
  if (path_exists(weights.path_)) {
    HEADRACE_ASSIGN(SafetensorsFile file, SafetensorsFile::open(weights.path_));
    HEADRACE_TRY(weights.add(std::move(file)));
    return weights;
  }
  weights.path_ = fmt::format("{}/{}", dir, kWeightsIndexName);
  if (!path_exists(weights.path_)) {
    return no_weights(dir);
  }
  HEADRACE_TRY(weights.open_shards(dir));
  return weights;
}

Status WeightFiles::open_shards(const std::string& dir) {
  using Index = std::map<std::string, std::string>;
  HEADRACE_ASSIGN(const Index index, read_index(path_));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) {
    names.insert(file);
  }
  Problems problems;
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (!path_exists(path)) {
      problems.add(operating_error(fmt::format("'{}': there is no such file", path))
                       .with_why(fmt::format("'{}' names it", path_))
                       .with_hint("copy all shards of the model"));
      continue;
    }
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file) {
      problems.add(std::move(file).error());
      continue;
    }
    HEADRACE_TRY(add(*std::move(file)));
  }
  HEADRACE_TRY(std::move(problems).status());
  for (const auto& [tensor, file] : index) {
    const StoredWeight* found = find(tensor);
    if (found == nullptr || path_of(*found) != fmt::format("{}/{}", dir, file)) {
      return bad_index(path_, fmt::format("tensor '{}' is not in '{}'", tensor, file));
    }
  }
  for (const auto& [tensor, weight] : weights_) {
    if (!index.contains(tensor)) {
      return bad_index(
          path_, fmt::format("it does not name tensor '{}' of '{}'", tensor, path_of(weight)));
    }
  }
  return {};
}

Status WeightFiles::add(SafetensorsFile file) {
  files_.push_back(std::move(file));
  for (const SafetensorsTensor& tensor : files_.back().tensors()) {
    const auto [other, is_new] =
        weights_.try_emplace(tensor.name, StoredWeight{files_.size() - 1, &tensor});
    if (!is_new) {
      return bad_index(path_,
                       fmt::format("'{}' and '{}' both hold tensor '{}'",
                                   path_of(other->second),
                                   files_.back().path(),
                                   tensor.name));
    }
  }
  return {};
}

const StoredWeight* WeightFiles::find(std::string_view name) const {
  const auto found = weights_.find(name);
  return found == weights_.end() ? nullptr : &found->second;
}

}  // namespace headrace::model
