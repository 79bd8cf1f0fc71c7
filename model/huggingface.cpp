// Opening and writing Hugging Face directories (huggingface.hpp).
#include "model/huggingface.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

// Of which a directory must not hold any beside an export's: which of them is read depends on who
// reads.
bool is_other_weights(std::string_view name) {
  return name.ends_with(".index.json") ||
         (name.ends_with(".safetensors") && name != "model.safetensors") ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

// What an export that was killed leaves: in whole, or before it had written config.json.
bool is_left_over(std::string_view name) {
  return name == "model.safetensors.partial" ||
         (name.ends_with(".tmp") &&
          (name.starts_with("config.json.") || name.starts_with("generation_config.json.") ||
           name.starts_with("tokenizer.json.")));
}

bool is_own_file(std::string_view name) {
  return std::find(kExportFiles.begin(), kExportFiles.end(), name) != kExportFiles.end();
}

bool config_is_own(const std::string& dir) {
  const Result<std::string> text = read_file(dir + "/config.json", kConfigBytesMax);
  const Result<Json> json = text ? parse_json(*text) : Result<Json>(text.error());
  return json && json->find(kOwnField) != nullptr;
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
  const Error error = usage_error(fmt::format("'{}' is not written over", dir));
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (is_own_file(name) && !is_regular_file(path)) {
      return Error(error)
          .with_why(fmt::format("'{}' in it is not a regular file", name))
          .with_hint("remove it, or name another folder");
    }
    if (is_other_weights(name)) {
      return Error(error)
          .with_why(fmt::format("'{}' in it belongs to other weights, which would stay", name))
          .with_hint("remove it, or name another folder");
    }
    const bool unfinished = over == ExportOver::kUnfinished && !has_config && is_own_file(name);
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

Status export_huggingface(const Architecture& architecture,
                          const plan::ModelSpec& spec,
                          const HuggingFaceExport& request) {
  HEADRACE_TRY(make_directory(request.dir, Parents::kMustExist));

  struct Place {
    int unit;
    std::int64_t offset;
  };

  std::vector<Place> places;
  SafetensorsWrite write;
  write.path = request.dir + "/model.safetensors";
  write.buffer = request.buffer;
  for (std::size_t unit = 0; unit < spec.units.size(); ++unit) {
    for (const plan::TensorSpec& tensor : spec.units[unit].tensors) {
      write.entries.push_back({.name = tensor.name, .dtype = request.dtype, .shape = tensor.shape});
      places.push_back({.unit = static_cast<int>(unit), .offset = tensor.offset});
    }
  }
  write.source = [&](std::size_t index, std::int64_t begin, std::span<float> out) {
    return request.read(places[index].unit, places[index].offset + begin, out);
  };
  HEADRACE_TRY(write_safetensors(write));
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
