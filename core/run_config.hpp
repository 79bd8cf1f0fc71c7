// Every setting of a run, as resolved from RUN.toml and --set (core/config.hpp reads it). "auto" is
// an empty optional. Paths are absolute.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct RunSection {
  std::string name;                   // default: the stem of the file
  std::string dir;                    // default: runs/<name>, relative to the file
  std::optional<std::int64_t> steps;  // steps or epochs must be given to train
  std::optional<double> epochs;
  std::uint64_t seed = 1337;
  std::optional<int> compute_threads;
};

struct ModelSection {
  std::string
      preset;  // exactly one of preset, path and arch (or none, for commands that take --model)
  std::string path;
  std::string arch;  // "gpt2" | "llama"
  std::optional<std::int64_t> layers, hidden, heads, vocab, kv_heads, head_dim, ffn, max_seq_len;
  std::optional<bool> tied;
  std::optional<double> rope_theta, norm_eps;
  std::vector<std::string> ignore;
};

struct DataSection {
  std::vector<std::string> train;  // files and globs
  std::string tokenizer;           // "bytes" or empty (token files)
  std::string order = "shuffled";  // "shuffled" | "sequential"
  std::optional<int> token_width;  // 2 | 4, for raw token files
  std::optional<std::int64_t> eos;
};

struct BatchSection {
  std::int64_t micro_batch = 4;
  std::int64_t seq_len = 256;
  std::int64_t accumulate = 1;
  std::optional<std::string> traversal;  // "layer-major" | "batch-major"
};

struct OptimGroup {
  std::vector<std::string>
      match;  // globs over tensor names; a tensor belongs to the first group that matches
  double lr_scale = 1.0;
  std::optional<std::array<double, 2>> betas;
  std::optional<double> eps;
  std::optional<double> weight_decay;  // replaces the rule of dimensions too
  bool frozen = false;
};

struct OptimSection {
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  // on tensors of 2 or more dimensions only
  double clip = 1.0;          // 0 turns it off
  std::string state = "fp32";
  std::optional<std::string> update;  // "held" | "after-backward"
  std::optional<int> threads;
  std::string lr_schedule = "cosine";  // "constant" | "linear" | "cosine" | "wsd"
  std::int64_t warmup_steps = 0;
  double min_lr = 0.0;
  std::optional<std::int64_t> decay_steps;  // wsd: default a tenth of the steps
  std::vector<OptimGroup> group;
};

struct PrecisionSection {
  std::optional<std::string> compute;  // "fp32" ("bf16" comes with the CUDA tier)
  std::optional<std::string> grad;     // "fp32" | "bf16"
  bool tf32 = false;
};

struct NvmeFolder {
  std::string path;
  std::optional<std::uint64_t> space_bytes;
  std::optional<double> write_limit_bytes_per_s;
  std::optional<double> endurance_bytes;
};

struct LinkCaps {  // bytes per second
  std::optional<double> h2d, d2h, nvme_read, nvme_write;
};

struct TiersSection {
  std::optional<std::string> device;  // "cpu"
  std::optional<std::uint64_t> device_memory_bytes;
  std::optional<std::uint64_t> host_memory_bytes;
  std::vector<NvmeFolder> nvme;      // default: <run.dir>/store
  std::optional<std::string> place;  // "device" | "host" | "nvme"
  std::optional<int> lookahead;
  std::optional<std::uint64_t>
      tile_elements;  // written as a count of 65,536-element blocks ("tile = 5") in the file
  std::optional<int> io_depth;
  std::string direct_io = "on";  // "on" | "auto"
  LinkCaps links;
};

struct DurabilitySection {
  std::string checkpoint = "none";
};

struct EvalSection {
  std::vector<std::string> data;
  std::optional<double> fraction;
  std::optional<std::int64_t> every;  // steps; absent: only where asked
  std::int64_t batches = 16;
};

struct LogSection {
  std::int64_t every = 1;
};

struct RunConfig {
  std::string file;  // the RUN.toml it came from; "" if none
  RunSection run;
  ModelSection model;
  DataSection data;
  BatchSection batch;
  OptimSection optim;
  PrecisionSection precision;
  TiersSection tiers;
  DurabilitySection durability;
  EvalSection eval;
  LogSection log;
  std::map<std::string, std::string>
      where;  // key ("optim.lr") -> "run.toml:31:1", for messages about a value
};

}  // namespace headrace
