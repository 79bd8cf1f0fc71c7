// Opening and writing Hugging Face directories (huggingface.hpp).
#include "model/huggingface.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "model/config_json.hpp"
#include "model/problems.hpp"
#include "model/spec.hpp"
#include "model/tokenizer.hpp"

namespace headrace::model {

namespace {

constexpr std::uint64_t kConfigBytesMax = std::uint64_t{16} << 20;
constexpr std::string_view kHeadName = "lm_head.weight";
constexpr std::size_t kCompareElements = std::size_t{1} << 16;

// Buffers that older files carry: causal masks, and angles that follow from rope_theta.
bool is_known_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// "transformer.wte.weight" -> "wte.weight": files saved from the bare model have no prefix.
std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (name.starts_with(prefix)) {
      return name.substr(prefix.size());
    }
  }
  return name;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// An export leaves it in config.json.
constexpr std::string_view kOwnField = "headrace";

// Weights that are in more files than one, in an export's names.
bool is_sharded_weights(std::string_view name) {
  return is_shard_name(name) || name == kWeightsIndexName;
}

// Of which a directory must not hold any beside an export's: which of them is read depends on who
// reads.
bool is_other_weights(std::string_view name) {
  return (name.ends_with(".index.json") && name != kWeightsIndexName) ||
         (name.ends_with(".safetensors") && name != kWeightsName && !is_shard_name(name)) ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

constexpr std::string_view kPartial = ".partial";  // of weights that are being written

bool is_unfinished_weights(std::string_view name) {
  return name.starts_with("model") && name.ends_with(kPartial);
}

// What an export that was killed leaves: in whole, or before it had written config.json.
bool is_left_over(std::string_view name) {
  return is_unfinished_weights(name) ||
         (name.ends_with(".tmp") &&
          (name.starts_with("config.json.") || name.starts_with("generation_config.json.") ||
           name.starts_with("tokenizer.json.")));
}

bool config_is_own(const std::string& dir) {
  const Result<std::string> text = read_file(dir + "/config.json", kConfigBytesMax);
  const Result<Json> json = text ? parse_json(*text) : Result<Json>(text.error());
  return json && json->find(kOwnField) != nullptr;
}

// Whether all shards in `dir` are those that its index names.
bool shards_are_whole(const std::string& dir, const std::vector<std::string>& names) {
  const Result<std::vector<std::string>> indexed = weight_file_names(dir);
  return indexed && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
           return !is_shard_name(name) ||
                  std::find(indexed->begin(), indexed->end(), name) != indexed->end();
         });
}

// Every tensor of a model, in its order.
std::vector<plan::TensorSpec> all_tensors(const Architecture& architecture) {
  std::vector<plan::TensorSpec> tensors;
  for (plan::UnitSpec& unit : name_units(architecture)) {
    for (plan::TensorSpec& tensor : unit.tensors) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

}  // namespace

Status HuggingFaceModel::match_tensors() {
  Problems problems;
  std::set<std::string, std::less<>> claimed;
  const auto complain = [&](const std::string& path, std::string_view name, std::string_view text) {
    problems.add(usage_error(fmt::format("'{}': tensor '{}' {}", path, name, text))
                     .with_hint("config.json and the weights must be of one model; copy both from "
                                "the same directory"));
  };
  for (const plan::TensorSpec& wanted : all_tensors(architecture_)) {
    const StoredWeight* found = files_.find(wanted.name);
    if (found == nullptr) {
      found = files_.find(without_prefix(wanted.name));
    }
    if (found == nullptr) {
      complain(files_.path(), wanted.name, "is missing");
      continue;
    }
    const SafetensorsTensor& tensor = *found->tensor;
    claimed.insert(tensor.name);
    if (tensor.shape != wanted.shape) {
      complain(files_.path_of(*found),
               tensor.name,
               fmt::format("has shape {}; config.json makes it {}",
                           shape_text(tensor.shape),
                           shape_text(wanted.shape)));
    } else if (!tensor.float_dtype()) {
      complain(files_.path_of(*found),
               tensor.name,
               fmt::format("is {}; F32, F16 and BF16 are read", tensor.dtype));
    }
    stored_.emplace(wanted.name, *found);
  }
  for (const auto& [name, weight] : files_.weights()) {
    const bool tied_head = architecture_.tied && name == kHeadName;
    if (!claimed.contains(name) && !tied_head && !is_known_buffer(name)) {
      complain(
          files_.path_of(weight), name, "is not a part of the model that config.json describes");
    }
  }
  return std::move(problems).status();
}

Status HuggingFaceModel::compare_tied_head() {
  const StoredWeight* head = files_.find(kHeadName);
  if (!architecture_.tied || head == nullptr) {
    return {};
  }
  const std::string table_name = name_units(architecture_).front().tensors.front().name;
  const StoredWeight& table = stored_.at(table_name);
  const auto differ = [&](const std::string& text) {
    return usage_error(fmt::format("'{}': '{}' {} the token table '{}'",
                                   files_.path_of(*head),
                                   kHeadName,
                                   text,
                                   table.tensor->name))
        .with_why("config.json says tie_word_embeddings, so that they are one matrix")
        .with_hint("set \"tie_word_embeddings\": false in config.json to train both");
  };
  if (head->tensor->shape != table.tensor->shape || !head->tensor->float_dtype()) {
    return differ("has another shape or type than");
  }
  std::vector<float> of_head(kCompareElements);
  std::vector<float> of_table(kCompareElements);
  for (std::int64_t begin = 0; begin < head->tensor->elements;
       begin += static_cast<std::int64_t>(kCompareElements)) {
    const auto count = static_cast<std::size_t>(
        std::min(static_cast<std::int64_t>(kCompareElements), head->tensor->elements - begin));
    HEADRACE_TRY(files_.read(*head, begin, std::span(of_head).first(count)));
    HEADRACE_TRY(files_.read(table, begin, std::span(of_table).first(count)));
    if (std::memcmp(of_head.data(), of_table.data(), count * sizeof(float)) != 0) {
      return differ("differs from");
    }
  }
  notes_.push_back(fmt::format(
      "'{}': '{}' equals the token table that it is tied to", files_.path_of(*head), kHeadName));
  return {};
}

Status HuggingFaceModel::read(const plan::ModelSpec& spec,
                              int unit,
                              std::int64_t begin,
                              std::span<float> out) const {
  const plan::UnitSpec& layout = spec.units.at(static_cast<std::size_t>(unit));
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  HEADRACE_ASSERT(begin >= 0 && end <= layout.elements, "the range is not inside the unit");
  std::int64_t done = begin;
  const auto zero_until = [&](std::int64_t to) {
    std::fill(out.begin() + (done - begin), out.begin() + (to - begin), 0.0F);
    done = to;
  };
  for (const plan::TensorSpec& tensor : layout.tensors) {
    const std::int64_t from = std::max(begin, tensor.offset);
    const std::int64_t to = std::min(end, tensor.offset + tensor.elements);
    if (from >= to) {
      continue;
    }
    zero_until(from);
    const auto stored = stored_.find(tensor.name);
    HEADRACE_ASSERT(stored != stored_.end(), "the spec is of another architecture");
    HEADRACE_TRY(files_.read(
        stored->second,
        from - tensor.offset,
        out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from))));
    done = to;
  }
  zero_until(end);
  return {};
}

Result<HuggingFaceModel> open_huggingface(const std::string& dir,
                                          const std::vector<std::string>& ignore) {
  if (!is_directory(dir)) {
    return operating_error(fmt::format("'{}' is not a directory", dir))
        .with_hint("give a Hugging Face model directory (config.json, model.safetensors)");
  }
  const std::string config_path = dir + "/config.json";
  HEADRACE_ASSIGN(const std::string text, read_file(config_path, kConfigBytesMax));
  HEADRACE_ASSIGN(ParsedConfigJson config,
                  parse_config_json(text, {.path = config_path, .ignore = ignore}));
  HEADRACE_ASSIGN(WeightFiles files, WeightFiles::open(dir));
  HuggingFaceModel model(std::move(config.architecture), std::move(files));
  model.notes_ = std::move(config.notes);
  HEADRACE_TRY(model.match_tensors());
  HEADRACE_TRY(model.compare_tied_head());
  return model;
}

Status check_export_target(const std::string& dir, ExportOver over) {
  if (!is_directory(dir)) {
    return {};  // to be made, or an error then
  }
  HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(dir));
  const bool has_config = std::find(names.begin(), names.end(), "config.json") != names.end();
  const bool own = has_config && config_is_own(dir);
  const bool own_shards =
      own ? shards_are_whole(dir, names) : over == ExportOver::kUnfinished && !has_config;
  const Error error = usage_error(fmt::format("'{}' is not written over", dir));
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (is_export_file(name) && !is_regular_file(path)) {
      return Error(error)
          .with_why(fmt::format("'{}' in it is not a regular file", name))
          .with_hint("remove it, or name another folder");
    }
    if (is_other_weights(name) || (is_sharded_weights(name) && !own_shards)) {
      return Error(error)
          .with_why(fmt::format("'{}' in it belongs to other weights, which would stay", name))
          .with_hint("remove it, or name another folder");
    }
    const bool unfinished = over == ExportOver::kUnfinished && !has_config && is_export_file(name);
    if (own || unfinished || is_left_over(name) || over == ExportOver::kAnything) {
      continue;
    }
    return Error(error)
        .with_why(has_config ? "its config.json is not one that headrace has written"
                             : fmt::format("it holds '{}', and is no earlier export", name))
        .with_hint(over == ExportOver::kUnfinished ? "move it away, or choose another export.dir"
                                                   : "name another folder, or add --overwrite");
  }
  return {};
}

namespace {

// The tokenizer.json that the run names, if it is still there.
Status export_tokenizer(const Architecture& architecture, const std::string& dir) {
  const std::string& name = architecture.tokenizer;
  if (name.empty() || name == "bytes") {
    return {};
  }
  const std::string file = is_directory(name) ? tokenizer_file_in(name) : name;
  if (!is_regular_file(file)) {
    log_warning(fmt::format("'{}' is exported without tokenizer.json: '{}' is gone", dir, name));
    return {};
  }
  HEADRACE_ASSIGN(const std::string text, read_file(file, kTokenizerBytesMax));
  return write_file_atomically(dir + "/tokenizer.json", text);
}

}  // namespace

bool is_export_file(std::string_view name) {
  return name == "config.json" || name == "generation_config.json" || name == "tokenizer.json" ||
         name == kWeightsName || is_sharded_weights(name);
}

namespace {

// Where a tensor of the export comes from, and the file that it goes to.
struct Place {
  int unit = 0;
  std::int64_t offset = 0;
  std::size_t shard = 0;
};

// Writes the weights of an export: entries in the model's order, cut into shards.
class WeightsExport {
 public:
  WeightsExport(const plan::ModelSpec& spec, const HuggingFaceExport& request) : request_(request) {
    std::uint64_t filled = 0;
    for (std::size_t unit = 0; unit < spec.units.size(); ++unit) {
      for (const plan::TensorSpec& tensor : spec.units[unit].tensors) {
        const std::uint64_t bytes =
            static_cast<std::uint64_t>(tensor.elements) * dtype_bytes(request.dtype);
        if (filled > 0 && filled + bytes > request.shard_bytes_max) {
          ++shards_;
          filled = 0;
        }
        filled += bytes;
        total_bytes_ += bytes;
        entries_.push_back({.name = tensor.name, .dtype = request.dtype, .shape = tensor.shape});
        places_.push_back(
            {.unit = static_cast<int>(unit), .offset = tensor.offset, .shard = shards_ - 1});
      }
    }
  }

  [[nodiscard]] Status write() {
    if (shards_ == 1) {
      HEADRACE_TRY(write_file(0, path_of(std::string(kWeightsName))));
      return remove_stale();
    }
    Status status;
    for (std::size_t shard = 0; status && shard < shards_; ++shard) {
      status = write_file(shard, partial_of(shard));
    }
    if (!status) {
      for (std::size_t shard = 0; shard < shards_; ++shard) {
        // The error at hand says more than a failure to remove what it left.
        static_cast<void>(::unlink(partial_of(shard).c_str()));
      }
      return status;
    }
    return name_shards();
  }

 private:
  [[nodiscard]] std::string path_of(const std::string& name) const {
    return fmt::format("{}/{}", request_.dir, name);
  }

  [[nodiscard]] std::string partial_of(std::size_t shard) const {
    return path_of(shard_name(shard, shards_) + std::string(kPartial));
  }

  [[nodiscard]] Status write_file(std::size_t shard, const std::string& path) const {
    SafetensorsWrite write;
    write.path = path;
    write.buffer = request_.buffer;
    std::vector<Place> places;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (places_[i].shard == shard) {
        write.entries.push_back(entries_[i]);
        places.push_back(places_[i]);
      }
    }
    write.source = [&](std::size_t index, std::int64_t begin, std::span<float> out) {
      return request_.read(places[index].unit, places[index].offset + begin, out);
    };
    return write_safetensors(write);
  }

  // Without config.json the directory is known for unfinished while its files are exchanged.
  [[nodiscard]] Status name_shards() const {
    HEADRACE_TRY(remove("config.json"));
    HEADRACE_TRY(remove_stale());
    Json map = Json::object();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      map.add(entries_[i].name, shard_name(places_[i].shard, shards_));
    }
    for (std::size_t shard = 0; shard < shards_; ++shard) {
      const std::string path = path_of(shard_name(shard, shards_));
      if (std::rename(partial_of(shard).c_str(), path.c_str()) != 0) {
        return errno_error(fmt::format("cannot rename '{}' to '{}'", partial_of(shard), path),
                           errno);
      }
    }
    Json metadata = Json::object();
    metadata.set("total_size", total_bytes_);
    Json index = Json::object();
    index.set("metadata", std::move(metadata)).set("weight_map", std::move(map));
    return write_file_atomically(path_of(std::string(kWeightsIndexName)), index.dump(2) + "\n");
  }

  // Weights that an earlier export has and this one has not, and what one that was killed has left.
  [[nodiscard]] Status remove_stale() const {
    HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(request_.dir));
    for (const std::string& name : names) {
      const bool weights = name == kWeightsName || is_sharded_weights(name);
      const bool unfinished = is_unfinished_weights(name);
      const std::string_view whole =
          std::string_view(name).substr(0, name.size() - (unfinished ? kPartial.size() : 0));
      if ((weights || unfinished) && !is_new(whole)) {
        HEADRACE_TRY(remove(name));
      }
    }
    return {};
  }

  [[nodiscard]] bool is_new(std::string_view name) const {
    if (shards_ == 1) {
      return name == kWeightsName;
    }
    for (std::size_t shard = 0; shard < shards_; ++shard) {
      if (name == shard_name(shard, shards_)) {
        return true;
      }
    }
    return false;  // the index is written anew
  }

  [[nodiscard]] Status remove(const std::string& name) const {
    if (::unlink(path_of(name).c_str()) != 0 && errno != ENOENT) {
      return errno_error(fmt::format("cannot remove '{}'", path_of(name)), errno);
    }
    return {};
  }

  const HuggingFaceExport& request_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<Place> places_;
  std::size_t shards_ = 1;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

Status export_huggingface(const Architecture& architecture,
                          const plan::ModelSpec& spec,
                          const HuggingFaceExport& request) {
  HEADRACE_TRY(make_directory(request.dir, Parents::kMustExist));
  HEADRACE_TRY(WeightsExport(spec, request).write());
  constexpr int kIndentSpaces = 2;
  HEADRACE_TRY(
      write_file_atomically(request.dir + "/generation_config.json",
                            generation_config_to_json(architecture).dump(kIndentSpaces) + "\n"));
  HEADRACE_TRY(export_tokenizer(architecture, request.dir));
  Architecture described = architecture;
  // A tokenizer.json goes along, its place on this machine does not.
  if (described.tokenizer != "bytes") {
    described.tokenizer.clear();
  }
  Json config = config_to_json(described, request.dtype);
  if (config.find(kOwnField) == nullptr) {
    config.set(std::string(kOwnField), Json::object());
  }
  // Last: with it the export is whole.
  return write_file_atomically(request.dir + "/config.json", config.dump(kIndentSpaces) + "\n");
}

}  // namespace headrace::model
