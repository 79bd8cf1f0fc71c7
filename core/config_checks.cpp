// Checks that need more than one key (config_schema.hpp: check_combinations). One function a
// section; each appends every problem it sees.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/config_schema.hpp"

namespace headrace::config {

namespace {

struct Problem {
  std::string_view key;  // whose place is shown
  std::string what;
  std::string hint;
};

void add(const RunConfig& config, std::vector<Error>& errors, Problem problem) {
  errors.push_back(usage_error(std::move(problem.what))
                       .with_hint(std::move(problem.hint))
                       .with_where(config_place(config, problem.key)));
}

// It becomes the name of a folder.
bool is_name(std::string_view text) {
  constexpr unsigned char kFirstPrintable = 0x20;
  constexpr unsigned char kDelete = 0x7f;
  return text != "." && text != ".." && std::none_of(text.begin(), text.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return c == '/' || byte < kFirstPrintable || byte == kDelete;
         });
}

void check_run(const RunConfig& config, std::vector<Error>& errors) {
  if (!is_name(config.run.name)) {
    add(config,
        errors,
        {.key = "run.name",
         .what = "run.name is no name of a folder",
         .hint = "leave out slashes and control characters; run.dir says where the folder is"});
  }
  if (config.run.dir == "/") {
    add(config,
        errors,
        {.key = "run.dir",
         .what = "run.dir is the root of the filesystem",
         .hint = "name a folder of the run's own"});
  }
  if (config.run.steps && config.run.epochs) {
    add(config,
        errors,
        {.key = "run.epochs",
         .what = "run.steps and run.epochs are both given",
         .hint = "leave one of them out"});
  }
}

void check_model(const RunConfig& config, std::vector<Error>& errors) {
  const ModelSection& model = config.model;
  std::vector<std::string_view> given;
  for (const auto& [name, text] :
       {std::pair<std::string_view, const std::string&>("preset", model.preset),
        {"path", model.path},
        {"arch", model.arch}}) {
    if (!text.empty()) {
      given.push_back(name);
    }
  }
  if (given.size() > 1) {
    add(config,
        errors,
        {.key = fmt::format("model.{}", given[1]),
         .what = fmt::format("model.{} and model.{} are both given", given[0], given[1]),
         .hint = "a model is named by exactly one of model.preset, model.path and model.arch"});
  }
  // A model that is read brings its sizes along.
  if (!model.path.empty() && model.arch.empty() && model.preset.empty()) {
    for (const Key<RunConfig>& key : run_keys()) {
      const bool is_size =
          key.name.starts_with("model.") && key.name != "model.path" && key.name != "model.ignore";
      if (is_size && config.where.contains(std::string(key.name))) {
        add(config,
            errors,
            {.key = key.name,
             .what = fmt::format("{} is given beside model.path", key.name),
             .hint = "leave it out: the model's config.json says it"});
      }
    }
  }
}

void check_data(const RunConfig& config, std::vector<Error>& errors) {
  const DataSection& data = config.data;
  if (data.token_width && *data.token_width == 3) {
    add(config,
        errors,
        {.key = "data.token_width",
         .what = "data.token_width = 3: tokens are of 2 or 4 bytes",
         .hint = "see what wrote the file"});
  }
  if (data.token_width && data.tokenizer == "bytes") {
    add(config,
        errors,
        {.key = "data.token_width",
         .what = "data.token_width is given beside data.tokenizer",
         .hint = "token_width is about token files, a tokenizer about text: leave one out"});
  }
  if (data.eos && data.tokenizer.empty()) {
    add(config,
        errors,
        {.key = "data.eos",
         .what = "data.eos is given without data.tokenizer",
         .hint = "it is put after text files; token files carry their own"});
  }
}

void check_optim(const RunConfig& config, std::vector<Error>& errors) {
  const OptimSection& optim = config.optim;
  if (optim.min_lr > optim.lr) {
    add(config,
        errors,
        {.key = "optim.min_lr",
         .what = fmt::format("optim.min_lr = {} is above optim.lr = {}", optim.min_lr, optim.lr),
         .hint = "min_lr is where the schedule ends, lr its peak"});
  }
  if (optim.lr_schedule == "constant" && optim.min_lr > 0) {
    add(config,
        errors,
        {.key = "optim.min_lr",
         .what = "optim.min_lr is given with lr_schedule = \"constant\"",
         .hint = "leave it out, or choose \"linear\", \"cosine\" or \"wsd\""});
  }
  if (optim.decay_steps && optim.lr_schedule != "wsd") {
    add(config,
        errors,
        {.key = "optim.decay_steps",
         .what =
             fmt::format("optim.decay_steps is given with lr_schedule = \"{}\"", optim.lr_schedule),
         .hint = "only \"wsd\" has a decay of its own length"});
  }
  if (optim.threads && optim.cores_left > 0) {
    add(config,
        errors,
        {.key = "optim.cores_left",
         .what = "optim.threads and optim.cores_left are both given",
         .hint = "leave one of them out: cores_left is what \"auto\" leaves of all cores"});
  }
  for (std::size_t i = 0; i < optim.group.size(); ++i) {
    const OptimGroup& group = optim.group[i];
    const bool sets = group.lr_scale != 1.0 || group.betas || group.eps || group.weight_decay;
    if (group.frozen && sets) {
      add(config,
          errors,
          {.key = "optim.group",
           .what = fmt::format("optim.group[{}] is frozen and has settings of an update", i),
           .hint = "leave either out"});
    }
  }
}

void check_tiers(const RunConfig& config, std::vector<Error>& errors) {
  const std::vector<NvmeFolder>& folders = config.tiers.nvme;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (folders[i].path == folders[j].path) {
        add(config,
            errors,
            {.key = "tiers.nvme",
             .what = fmt::format("tiers.nvme names '{}' twice", folders[i].path),
             .hint = "a drive gains nothing from a second folder: name each folder once"});
      }
    }
  }
}

void check_eval(const RunConfig& config, std::vector<Error>& errors) {
  const EvalSection& eval = config.eval;
  if (!eval.data.empty() && eval.fraction) {
    add(config,
        errors,
        {.key = "eval.fraction",
         .what = "eval.data and eval.fraction are both given",
         .hint = "leave one of them out"});
  }
  if (eval.every && eval.data.empty() && !eval.fraction) {
    add(config,
        errors,
        {.key = "eval.every",
         .what = "eval.every is given, but nothing to evaluate on",
         .hint = "add eval.data or eval.fraction"});
  }
}

void check_export(const RunConfig& config, std::vector<Error>& errors) {
  const ExportSection& exports = config.exports;
  if (exports.every == "none") {
    if (exports.keep || exports.best) {
      add(config,
          errors,
          {.key = exports.keep ? "export.keep" : "export.best",
           .what = fmt::format("export.{} is given, but nothing is exported",
                               exports.keep ? "keep" : "best"),
           .hint = "say when: export.every = \"500 steps\""});
    }
    return;
  }
  if (config.durability.checkpoint == "none") {
    add(config,
        errors,
        {.key = "export.every",
         .what = "export.every is given with durability.checkpoint = \"none\"",
         .hint = "weights are exported from a commit, which must stay whole while the run goes on: "
                 "durability.checkpoint = \"10min\""});
  }
  if (exports.best && !config.eval.every) {
    add(config,
        errors,
        {.key = "export.best",
         .what = "export.best is given without eval.every",
         .hint =
             "the best is the one with the lowest evaluation loss: add eval.every, and eval.data "
             "or eval.fraction"});
  }
}

}  // namespace

void check_combinations(const RunConfig& config,
                        const std::set<std::string, std::less<>>& failed_sections,
                        std::vector<Error>& errors) {
  struct Check {
    std::string_view section;
    void (*function)(const RunConfig&, std::vector<Error>&);
  };

  constexpr Check kChecks[] = {
      {"run", check_run},
      {"model", check_model},
      {"data", check_data},
      {"optim", check_optim},
      {"tiers", check_tiers},
      {"eval", check_eval},
      {"export", check_export},
  };
  for (const Check& check : kChecks) {
    if (!failed_sections.contains(check.section)) {
      check.function(config, errors);
    }
  }
}

}  // namespace headrace::config
