// Every setting of a run, as resolved from RUN.toml and --set (core/config.hpp reads it).
//
// Invariant: "auto" is an empty optional; paths are absolute; sizes are bytes, rates bytes per
// second. The keys, their types, ranges and lines of help stand in core/config_schema.cpp alone.
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

  friend bool operator==(const RunSection&, const RunSection&) = default;
};

struct ModelSection {
  // Exactly one of preset, path and arch; none for commands that take --model.
  std::string preset;
  std::string path;
  std::string arch;  // "gpt2" | "llama"
  std::optional<std::int64_t> layers, hidden, heads, vocab, kv_heads, head_dim, ffn, max_seq_len;
  std::optional<bool> tied;
  std::optional<double> rope_theta, norm_eps;
  std::vector<std::string> ignore;

  friend bool operator==(const ModelSection&, const ModelSection&) = default;
};

struct DataSection {
  std::vector<std::string> train;  // files and globs
  std::string tokenizer;           // "bytes", a path, or empty (token files)
  std::string order = "shuffled";  // "shuffled" | "sequential"
  std::string packing = "none";    // "none" | "wrapped"
  std::optional<int> token_width;  // bytes, 2 | 4, for raw token files
  std::optional<std::int64_t> eos;

  friend bool operator==(const DataSection&, const DataSection&) = default;
};

struct BatchSection {
  std::int64_t micro_batch = 4;
  std::int64_t seq_len = 256;
  std::int64_t accumulate = 1;
  std::optional<std::string> traversal;  // "layer-major" | "batch-major"

  friend bool operator==(const BatchSection&, const BatchSection&) = default;
};

struct OptimGroup {
  // Globs over tensor names; a tensor belongs to the first group that matches.
  std::vector<std::string> match;
  double lr_scale = 1.0;
  std::optional<std::array<double, 2>> betas;
  std::optional<double> eps;
  std::optional<double> weight_decay;  // replaces the rule of dimensions too
  bool frozen = false;

  friend bool operator==(const OptimGroup&, const OptimGroup&) = default;
};

struct OptimSection {
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  // on tensors of 2 or more dimensions only
  double clip = 1.0;          // 0 turns it off
  std::string state = "fp32";
  std::optional<std::string> update;  // "held" | "speculative" | "after-backward"
  std::optional<int> threads;
  int cores_left = 0;                  // of those that "auto" takes for its threads
  std::string lr_schedule = "cosine";  // "constant" | "linear" | "cosine" | "wsd"
  std::int64_t warmup_steps = 0;
  double min_lr = 0.0;
  std::optional<std::int64_t> decay_steps;  // wsd: default a tenth of the steps
  std::vector<OptimGroup> group;

  friend bool operator==(const OptimSection&, const OptimSection&) = default;
};

struct PrecisionSection {
  std::optional<std::string> compute;  // "fp32" ("bf16" comes with the CUDA tier)
  std::optional<std::string> grad;     // "fp32" | "bf16"
  bool tf32 = false;

  friend bool operator==(const PrecisionSection&, const PrecisionSection&) = default;
};

struct NvmeFolder {
  std::string path;
  std::optional<std::uint64_t> space_bytes;
  std::optional<double> write_limit_bytes_per_s;
  std::optional<double> endurance_bytes;

  friend bool operator==(const NvmeFolder&, const NvmeFolder&) = default;
};

struct LinkCaps {  // bytes per second
  std::optional<double> h2d, d2h, nvme_read, nvme_write;

  friend bool operator==(const LinkCaps&, const LinkCaps&) = default;
};

struct TiersSection {
  std::optional<std::string> device;  // "cpu" | "cuda:N"
  std::optional<std::uint64_t> device_memory_bytes;
  std::optional<std::uint64_t> host_memory_bytes;
  std::vector<NvmeFolder> nvme;      // default: <run.dir>/store
  std::optional<std::string> place;  // "device" | "host" | "nvme"
  std::optional<int> lookahead;      // units
  bool spill_activations = true;
  // Written as a count of 65,536-element blocks ("tile = 5") in the file.
  std::optional<std::uint64_t> tile_elements;
  std::optional<int> io_depth;
  std::string direct_io = "on";  // "on" | "auto"
  LinkCaps links;

  friend bool operator==(const TiersSection&, const TiersSection&) = default;
};

struct DurabilitySection {
  std::string checkpoint = "10min";  // core/interval.hpp reads it
  bool verify_reads = true;          // false gives up that damage is found before it is used

  friend bool operator==(const DurabilitySection&, const DurabilitySection&) = default;
};

struct EvalSection {
  std::vector<std::string> data;
  std::optional<double> fraction;
  std::optional<std::int64_t> every;  // steps; absent: only where asked
  std::int64_t batches = 16;

  friend bool operator==(const EvalSection&, const EvalSection&) = default;
};

// [export]: weights only, while the run goes on.
struct ExportSection {
  std::string every = "none";        // core/interval.hpp reads it
  std::string dir;                   // default: <run.dir>/exports
  std::string dtype = "f32";         // "f32" | "bf16" | "f16"
  std::optional<std::int64_t> keep;  // the newest so many; absent: all
  bool best = false;                 // keep the one with the lowest eval.loss too

  friend bool operator==(const ExportSection&, const ExportSection&) = default;
};

struct LogSection {
  std::int64_t every = 1;
  std::string stuck_after = "1min";  // a duration or "none"; core/interval.hpp reads it

  friend bool operator==(const LogSection&, const LogSection&) = default;
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
  ExportSection exports;
  LogSection log;
  // Key ("optim.lr") -> "run.toml:31:1" or "--set optim.lr", for messages about a value.
  std::map<std::string, std::string> where;

  // The settings; not where they came from.
  friend bool operator==(const RunConfig& a, const RunConfig& b) {
    return a.run == b.run && a.model == b.model && a.data == b.data && a.batch == b.batch &&
           a.optim == b.optim && a.precision == b.precision && a.tiers == b.tiers &&
           a.durability == b.durability && a.eval == b.eval && a.exports == b.exports &&
           a.log == b.log;
  }
};

}  // namespace headrace
