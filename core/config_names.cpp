// What a user may have meant by a key that does not exist: names of other trainers, the right key
// in the wrong section, or a slip of the fingers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/config_schema.hpp"
#include "core/nearest_name.hpp"

namespace headrace::config {

namespace {

constexpr std::string_view kNoDropout = "models are trained without dropout";
constexpr std::string_view kRecompute =
    "the plan decides what is recomputed, from device_memory and host_memory";
constexpr std::string_view kAdamW = "AdamW is the optimizer; its settings are in [optim]";
constexpr std::string_view kBetas = "betas = [beta1, beta2]";
constexpr std::string_view kNothingCompiles = "nothing is compiled at run time";
constexpr std::string_view kNoLoss = "there is no loss scaling; fp16 is refused";
constexpr std::string_view kOneProcess = "a run is one process with one device in this version";

// Lower case, '_' for '-'. A key may stand here and be ours too: this table is asked only when the
// key as written does not exist.
constexpr ForeignName kForeignNames[] = {
    // Hugging Face TrainingArguments and its examples
    {"learning_rate", "optim.lr", ""},
    {"per_device_train_batch_size", "batch.micro_batch", ""},
    {"per_device_eval_batch_size", "batch.micro_batch", "evaluation uses the same"},
    {"gradient_accumulation_steps", "batch.accumulate", ""},
    {"num_train_epochs", "run.epochs", ""},
    {"max_steps", "run.steps", ""},
    {"adam_beta1", "optim.betas", kBetas},
    {"adam_beta2", "optim.betas", kBetas},
    {"adam_epsilon", "optim.eps", ""},
    {"max_grad_norm", "optim.clip", ""},
    {"lr_scheduler_type", "optim.lr_schedule", ""},
    {"warmup_ratio", "optim.warmup_steps", "a count of steps, not a share of them"},
    {"logging_steps", "log.every", ""},
    {"save_steps", "durability.checkpoint", ""},
    {"save_strategy", "durability.checkpoint", ""},
    {"save_total_limit", "", "a store holds one commit"},
    {"eval_steps", "eval.every", ""},
    {"eval_strategy", "eval.every", ""},
    {"evaluation_strategy", "eval.every", ""},
    {"bf16", "precision.compute", ""},
    {"fp16", "precision.compute", kNoLoss},
    {"torch_dtype", "precision.compute", ""},
    {"gradient_checkpointing", "", kRecompute},
    {"data_seed", "run.seed", ""},
    {"run_name", "run.name", ""},
    {"output_dir", "run.dir", ""},
    {"logging_dir", "run.dir", ""},
    {"overwrite_output_dir", "", "give `--overwrite` to headrace train"},
    {"resume_from_checkpoint", "", "give `--resume auto|never|required` to headrace train"},
    {"model_name_or_path", "model.path", "a directory, not a name on the hub"},
    {"tokenizer_name", "data.tokenizer", ""},
    {"dataset_name", "data.train", "files, not a name on the hub"},
    {"train_file", "data.train", ""},
    {"validation_file", "eval.data", ""},
    {"max_seq_length", "batch.seq_len", ""},
    {"max_length", "batch.seq_len", ""},
    {"dataloader_num_workers", "", "the loader needs no workers"},
    {"deepspeed", "", "what it does is in [tiers]"},
    {"fsdp", "", kOneProcess},
    {"torch_compile", "", kNothingCompiles},
    {"label_smoothing_factor", "", "the loss is plain cross-entropy"},
    // config.json
    {"num_hidden_layers", "model.layers", ""},
    {"num_layers", "model.layers", ""},
    {"hidden_size", "model.hidden", ""},
    {"num_attention_heads", "model.heads", ""},
    {"num_heads", "model.heads", ""},
    {"num_key_value_heads", "model.kv_heads", ""},
    {"num_kv_heads", "model.kv_heads", ""},
    {"intermediate_size", "model.ffn", ""},
    {"n_inner", "model.ffn", ""},
    {"vocab_size", "model.vocab", ""},
    {"max_position_embeddings", "model.max_seq_len", ""},
    {"n_positions", "model.max_seq_len", ""},
    {"n_ctx", "model.max_seq_len", ""},
    {"tie_word_embeddings", "model.tied", ""},
    {"rms_norm_eps", "model.norm_eps", ""},
    {"layer_norm_epsilon", "model.norm_eps", ""},
    {"model_type", "model.arch", ""},
    {"architectures", "model.arch", ""},
    // axolotl
    {"base_model", "model.path", "a directory, not a name on the hub"},
    {"sequence_len", "batch.seq_len", ""},
    {"micro_batch_size", "batch.micro_batch", ""},
    {"sample_packing", "data.packing", "\"wrapped\" where it would be true"},
    {"train_on_inputs", "", "headrace tokenize --chat says what is learned"},
    {"chat_template", "", "headrace tokenize --chat takes the model's"},
    {"num_epochs", "run.epochs", ""},
    {"lr_scheduler", "optim.lr_schedule", ""},
    {"optimizer", "", kAdamW},
    {"datasets", "data.train", ""},
    {"val_set_size", "eval.fraction", ""},
    {"saves_per_epoch", "durability.checkpoint", ""},
    {"evals_per_epoch", "eval.every", ""},
    {"flash_attention", "", "attention never stores the whole matrix of scores"},
    // torchtune
    {"batch_size", "batch.micro_batch", ""},
    {"max_steps_per_epoch", "run.steps", ""},
    {"clip_grad_norm", "optim.clip", ""},
    {"num_warmup_steps", "optim.warmup_steps", ""},
    {"dtype", "precision.compute", ""},
    {"log_every_n_steps", "log.every", ""},
    {"enable_activation_checkpointing", "", kRecompute},
    {"enable_activation_offloading", "", "the plan decides where activations stay"},
    {"compile", "", kNothingCompiles},
    {"checkpointer", "durability.checkpoint", ""},
    {"dataset", "data.train", ""},
    // nanoGPT
    {"block_size", "batch.seq_len", ""},
    {"n_layer", "model.layers", ""},
    {"n_head", "model.heads", ""},
    {"n_embd", "model.hidden", ""},
    {"dropout", "", kNoDropout},
    {"max_iters", "run.steps", ""},
    {"beta1", "optim.betas", kBetas},
    {"beta2", "optim.betas", kBetas},
    {"grad_clip", "optim.clip", ""},
    {"decay_lr", "optim.lr_schedule", "\"constant\" where it would be false"},
    {"warmup_iters", "optim.warmup_steps", ""},
    {"lr_decay_iters", "run.steps", "the schedule ends with the run"},
    {"init_from", "model.path", ""},
    {"eval_interval", "eval.every", ""},
    {"eval_iters", "eval.batches", ""},
    {"log_interval", "log.every", ""},
    {"out_dir", "run.dir", ""},
    {"backend", "", kOneProcess},
    // llm.c
    {"train_data_pattern", "data.train", ""},
    {"val_data_pattern", "eval.data", ""},
    {"output_log_dir", "run.dir", ""},
    {"sequence_length", "batch.seq_len", ""},
    {"total_batch_size", "batch.accumulate", "micro_batch x seq_len x accumulate tokens a step"},
    {"warmup_iterations", "optim.warmup_steps", ""},
    {"final_learning_rate_frac", "optim.min_lr", "a learning rate, not a share of lr"},
    {"learning_rate_decay_frac", "optim.min_lr", "a learning rate, not a share of lr"},
    {"val_loss_every", "eval.every", ""},
    {"val_max_steps", "eval.batches", ""},
    {"checkpoint_every", "durability.checkpoint", ""},
    {"recompute", "", kRecompute},
    {"use_master_weights", "", "optim.state = \"fp32\" has them"},
    {"zero_stage", "", kOneProcess},
    // DeepSpeed
    {"train_batch_size", "batch.accumulate", "micro_batch x accumulate sequences a step"},
    {"train_micro_batch_size_per_gpu", "batch.micro_batch", ""},
    {"gradient_clipping", "optim.clip", ""},
    {"zero_optimization", "", "the plan places weights, gradients and state; see [tiers]"},
    {"offload_optimizer", "tiers.place", ""},
    {"offload_param", "tiers.place", ""},
    {"nvme_path", "tiers.nvme", ""},
    {"aio", "tiers.io_depth", ""},
    {"queue_depth", "tiers.io_depth", ""},
    {"thread_count", "tiers.io_depth", ""},
    {"pin_memory", "", "staging memory is registered with the kernel where it may be"},
    {"buffer_count", "tiers.lookahead", ""},
    {"buffer_size", "tiers.host_memory", "a size in bytes, with its unit"},
    {"cpu_offload", "tiers.place", ""},
    {"loss_scale", "", kNoLoss},
};

std::string normalised(std::string_view key) {
  std::string text(key);
  for (char& c : text) {
    c = c == '-' ? '_' : (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

std::string_view leaf_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == key.npos ? key : key.substr(dot + 1);
}

std::string_view section_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == key.npos ? std::string_view() : key.substr(0, dot);
}

// All names a user may write: "optim", "optim.lr", "optim.group.frozen", "tiers.nvme.space".
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const Key<RunConfig>& key : run_keys()) {
    const std::string section(section_of(key.name));
    if (std::find(names.begin(), names.end(), section) == names.end()) {
      names.push_back(section);
    }
    names.emplace_back(key.name);
  }
  for (const Key<OptimGroup>& key : group_keys()) {
    names.push_back(fmt::format("optim.group.{}", key.name));
  }
  for (const Key<NvmeFolder>& key : folder_keys()) {
    names.push_back(fmt::format("tiers.nvme.{}", key.name));
  }
  return names;
}

std::string hint_of_foreign_name(std::string_view leaf) {
  for (const ForeignName& foreign : kForeignNames) {
    if (foreign.name != leaf) {
      continue;
    }
    if (foreign.key.empty()) {
      return fmt::format("there is no such key: {}", foreign.note);
    }
    return foreign.note.empty() ? fmt::format("here it is {}", foreign.key)
                                : fmt::format("here it is {} ({})", foreign.key, foreign.note);
  }
  return {};
}

std::string hint_of_same_leaf(std::string_view leaf) {
  std::vector<std::string> found;
  for (const std::string& name : all_names()) {
    if (leaf_of(name) == leaf && !is_section(name)) {
      found.push_back(name);
    }
  }
  return found.empty() ? std::string() : fmt::format("it belongs to {}", fmt::join(found, " or "));
}

std::string hint_of_nearest(std::string_view key) {
  std::string nearest;
  // A slip is one letter in three, and at least two: more is another word.
  std::size_t best = std::max<std::size_t>(2, leaf_of(key).size() / 3) + 1;
  for (const std::string& name : all_names()) {
    const std::size_t whole = edit_distance(key, name);
    // The right word in the wrong section counts as one slip more.
    const std::size_t by_leaf = edit_distance(leaf_of(key), leaf_of(name)) + 1;
    const std::size_t distance = std::min(whole, by_leaf);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
  }
  return nearest.empty() ? std::string() : fmt::format("the nearest key is {}", nearest);
}

}  // namespace

std::span<const ForeignName> foreign_names() {
  return kForeignNames;
}

std::string section_hint(std::string_view section) {
  std::vector<std::string> found;
  for (const Key<RunConfig>& key : run_keys()) {
    const std::string_view own = section_of(key.name);
    const std::string_view shown = section.empty() ? own : leaf_of(key.name);
    if ((section.empty() || own == section) &&
        std::find(found.begin(), found.end(), shown) == found.end()) {
      found.emplace_back(shown);
    }
  }
  return section.empty() ? fmt::format("the sections are {}", fmt::join(found, ", "))
                         : fmt::format("the keys of [{}] are {}", section, fmt::join(found, ", "));
}

std::string unknown_key_hint(std::string_view key) {
  const std::string name = normalised(key);
  std::string hint = hint_of_foreign_name(leaf_of(name));
  if (hint.empty()) {
    hint = hint_of_same_leaf(leaf_of(name));
  }
  if (hint.empty()) {
    hint = hint_of_nearest(name);
  }
  if (hint.empty()) {
    const std::string_view section = section_of(name);
    hint = section_hint(is_section(section) ? section : std::string_view());
  }
  return hint;
}

}  // namespace headrace::config
