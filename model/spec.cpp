// Units, groups, pieces and chunks of a model (spec.hpp).
#include "model/spec.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "model/problems.hpp"
#include "model/units.hpp"

namespace headrace::model {

namespace {

constexpr std::int64_t kChunkRowsMin = 64;
constexpr std::int64_t kBatchSizeMax = std::int64_t{1} << 30;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t power_of_two_below(std::int64_t value) {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1))));
}

Status check_batch(const Architecture& architecture, const BatchShape& batch) {
  Problems problems;
  const auto positive = [&](const char* key, std::int64_t value) {
    if (value < 1 || value > kBatchSizeMax) {
      problems.add(usage_error(
          fmt::format("batch.{} = {} is not within 1 .. {}", key, value, kBatchSizeMax)));
    }
  };
  positive("micro_batch", batch.micro_batch);
  positive("seq_len", batch.seq_len);
  positive("accumulate", batch.accumulate);
  if (problems.empty() && batch.micro_batch > kBatchSizeMax / batch.seq_len) {
    problems.add(usage_error("batch: micro_batch * seq_len is too large"));
  }
  if (architecture.family == Family::kGpt2 && batch.seq_len > architecture.max_seq_len) {
    problems.add(
        usage_error(fmt::format("batch.seq_len = {}: the model has positions for {}",
                                batch.seq_len,
                                architecture.max_seq_len))
            .with_why("GPT-2 learns a table of positions")
            .with_hint(fmt::format("--set batch.seq_len={}, or a larger model.max_seq_len for a "
                                   "model that is trained from scratch",
                                   architecture.max_seq_len)));
  }
  return std::move(problems).status();
}

// Assigns tensors to parameter groups. A GroupSpec is made the first time that it is needed.
class Groups {
 public:
  explicit Groups(const OptimSection& optim) : optim_(optim), matched_(optim.group.size(), false) {}

  void assign(plan::TensorSpec& tensor) {
    const bool is_matrix = tensor.shape.size() >= 2;
    for (std::size_t i = 0; i < optim_.group.size(); ++i) {
      const OptimGroup& group = optim_.group[i];
      const bool matches =
          std::any_of(group.match.begin(), group.match.end(), [&](const std::string& pattern) {
            return ::fnmatch(pattern.c_str(), tensor.name.c_str(), 0) == 0;
          });
      if (matches) {
        matched_[i] = true;
        tensor.frozen = group.frozen;
        tensor.group = index_of(static_cast<int>(i), is_matrix);
        return;
      }
    }
    tensor.group = index_of(kNoGroup, is_matrix);
  }

  void report_unmatched(const std::string& some_name, Problems& problems) const {
    for (std::size_t i = 0; i < matched_.size(); ++i) {
      if (!matched_[i]) {
        std::string patterns;
        for (const std::string& pattern : optim_.group[i].match) {
          patterns += patterns.empty() ? "'" : ", '";
          patterns += pattern + "'";
        }
        problems.add(
            usage_error(fmt::format("optim.group {}: no tensor is its own (match = {})",
                                    i + 1,
                                    patterns.empty() ? "[]" : patterns))
                .with_why("a tensor belongs to the first group that matches its whole name")
                .with_hint(fmt::format("names are Hugging Face's, such as '{}'", some_name)));
      }
    }
  }

  [[nodiscard]] std::vector<plan::GroupSpec> take() && { return std::move(specs_); }

 private:
  static constexpr int kNoGroup = -1;

  int index_of(int group, bool is_matrix) {
    const auto [found, is_new] =
        indices_.try_emplace({group, is_matrix}, static_cast<int>(specs_.size()));
    if (is_new) {
      specs_.push_back(resolve(group, is_matrix));
    }
    return found->second;
  }

  [[nodiscard]] plan::GroupSpec resolve(int group, bool is_matrix) const {
    plan::GroupSpec spec{.lr_scale = 1.0,
                         .beta1 = optim_.betas[0],
                         .beta2 = optim_.betas[1],
                         .eps = optim_.eps,
                         .weight_decay = is_matrix ? optim_.weight_decay : 0.0};
    if (group != kNoGroup) {
      const OptimGroup& own = optim_.group[static_cast<std::size_t>(group)];
      spec.lr_scale = own.lr_scale;
      spec.beta1 = own.betas ? (*own.betas)[0] : spec.beta1;
      spec.beta2 = own.betas ? (*own.betas)[1] : spec.beta2;
      spec.eps = own.eps.value_or(spec.eps);
      spec.weight_decay = own.weight_decay.value_or(spec.weight_decay);
    }
    return spec;
  }

  const OptimSection& optim_;
  std::vector<bool> matched_;
  std::map<std::pair<int, bool>, int> indices_;
  std::vector<plan::GroupSpec> specs_;
};

plan::TensorSpec tensor(std::string name, std::vector<std::int64_t> shape) {
  plan::TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  return spec;
}

plan::UnitSpec new_unit(std::string name, plan::UnitKind kind) {
  plan::UnitSpec unit;
  unit.name = std::move(name);
  unit.kind = kind;
  return unit;
}

plan::UnitSpec embedding_unit(const Architecture& a) {
  plan::UnitSpec unit = new_unit("embedding", plan::UnitKind::kEmbedding);
  const bool gpt2 = a.family == Family::kGpt2;
  unit.tensors.push_back(
      tensor(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", {a.vocab, a.hidden}));
  unit.tensors.front().own_pages = a.tied;  // it will be cut in row pieces
  if (gpt2) {
    unit.tensors.push_back(tensor("transformer.wpe.weight", {a.max_seq_len, a.hidden}));
  }
  return unit;
}

plan::UnitSpec block_unit(const Architecture& a, std::int64_t layer) {
  plan::UnitSpec unit = new_unit(fmt::format("block.{}", layer), plan::UnitKind::kBlock);
  unit.tensors =
      a.family == Family::kGpt2 ? gpt2_block_tensors(a, layer) : llama_block_tensors(a, layer);
  return unit;
}

plan::UnitSpec head_unit(const Architecture& a) {
  plan::UnitSpec unit = new_unit("head", plan::UnitKind::kHead);
  if (a.family == Family::kGpt2) {
    unit.tensors.push_back(tensor("transformer.ln_f.weight", {a.hidden}));
    unit.tensors.push_back(tensor("transformer.ln_f.bias", {a.hidden}));
  } else {
    unit.tensors.push_back(tensor("model.norm.weight", {a.hidden}));
  }
  if (!a.tied) {
    unit.tensors.push_back(tensor("lm_head.weight", {a.vocab, a.hidden}));
    unit.tensors.back().own_pages = true;
  }
  return unit;
}

// Rows of a piece: about kRowPieceBytes, whole chunks, and whole 65,536-element blocks.
std::int64_t rows_per_piece(const Architecture& a, std::int64_t chunk) {
  const std::int64_t granule = plan::kBlockElements / std::gcd(plan::kBlockElements, a.hidden);
  const std::int64_t whole = std::lcm(granule, chunk);
  const std::int64_t wanted = kRowPieceBytes / (4 * a.hidden);
  return std::max<std::int64_t>(wanted / whole, 1) * whole;
}

// One piece a block; the head's norm; row pieces of the vocabulary matrix, wherever it lives.
void cut_pieces(const Architecture& a, plan::ModelSpec& spec) {
  for (plan::UnitSpec& unit : spec.units) {
    if (unit.kind == plan::UnitKind::kBlock) {
      unit.pieces.push_back({.begin = 0, .elements = unit.elements});
    }
  }
  const int head_index = static_cast<int>(spec.units.size()) - 1;
  plan::UnitSpec& head = spec.units.back();
  const std::int64_t norm_elements = a.tied ? head.elements : head.tensors.back().offset;
  head.pieces.push_back({.begin = 0, .elements = norm_elements});
  spec.head.norm_piece = 0;
  const int matrix_unit = a.tied ? 0 : head_index;
  const int matrix = a.tied ? 0 : static_cast<int>(head.tensors.size()) - 1;
  spec.head.rows = plan::cut_rows(spec.units[static_cast<std::size_t>(matrix_unit)],
                                  matrix_unit,
                                  matrix,
                                  rows_per_piece(a, spec.head.rows_per_chunk));
}

void set_tables(plan::ModelSpec& spec) {
  const std::vector<plan::TensorSpec>& tensors = spec.units.front().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    spec.tables.push_back(
        {.tensor = static_cast<int>(i),
         .rows = tensors[i].shape.front(),
         .index = i == 0 ? plan::RowTable::Index::kToken : plan::RowTable::Index::kPosition});
  }
}

void set_costs(const Architecture& a, const BatchShape& batch, plan::ModelSpec& spec) {
  std::map<std::int64_t, plan::UnitCost> costs;  // by window
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const auto [cost, is_new] = costs.try_emplace(window_of(a, layer));
    if (is_new) {
      cost->second =
          a.family == Family::kGpt2 ? gpt2_block_cost(a, batch) : llama_block_cost(a, batch, layer);
    }
    spec.units[static_cast<std::size_t>(layer + 1)].cost = cost->second;
  }
  spec.units.front().cost = embedding_cost(a, batch);
  set_head_costs(a, batch, spec.units.back(), spec.head);
}

}  // namespace

std::vector<plan::UnitSpec> name_units(const Architecture& architecture) {
  std::vector<plan::UnitSpec> units;
  units.push_back(embedding_unit(architecture));
  for (std::int64_t layer = 0; layer < architecture.layers; ++layer) {
    units.push_back(block_unit(architecture, layer));
  }
  units.push_back(head_unit(architecture));
  return units;
}

// A power of two, so that it divides, or is divided by, the rows between two multiples of
// kBlockElements; or all rows at once where they fit.
std::int64_t rows_per_chunk(const Architecture& architecture, const BatchShape& batch) {
  const std::int64_t rows = batch.micro_batch * batch.seq_len;
  const std::int64_t by_logits = kChunkBytesMax / (4 * rows);
  const std::int64_t by_piece = kRowPieceBytes / (4 * architecture.hidden);
  const std::int64_t chunk =
      std::max(power_of_two_below(std::min(by_logits, by_piece)), kChunkRowsMin);
  return std::min(chunk, round_up(architecture.vocab, kChunkRowsMin));
}

Result<plan::ModelSpec> make_model_spec(const Architecture& architecture,
                                        const BatchShape& batch,
                                        const OptimSection& optim) {
  HEADRACE_TRY(validate(architecture, "model"));
  HEADRACE_TRY(check_batch(architecture, batch));
  plan::ModelSpec spec;
  spec.tied = architecture.tied;
  spec.hidden = architecture.hidden;
  spec.vocab = architecture.vocab;
  spec.micro_batch = batch.micro_batch;
  spec.seq_len = batch.seq_len;
  spec.accumulate = batch.accumulate;
  spec.units = name_units(architecture);

  Groups groups(optim);
  for (plan::UnitSpec& unit : spec.units) {
    for (plan::TensorSpec& entry : unit.tensors) {
      groups.assign(entry);
    }
    plan::lay_out(unit);
  }
  Problems problems;
  groups.report_unmatched(spec.units[1].tensors.front().name, problems);
  spec.groups = std::move(groups).take();
  if (spec.trainable_parameters() == 0) {
    problems.add(usage_error("optim.group: every tensor is frozen, so nothing would be trained"));
  }
  HEADRACE_TRY(std::move(problems).status());

  set_tables(spec);
  spec.head.rows_per_chunk = rows_per_chunk(architecture, batch);
  cut_pieces(architecture, spec);
  set_costs(architecture, batch, spec);
  return spec;
}

}  // namespace headrace::model
