// The table of all keys (core/config_schema.hpp), and how a Value moves into and out of a field.
#include "core/config_schema.hpp"

#include <string>

#include "core/assert.hpp"

namespace headrace::config {

namespace {

template <class T>
const T& held(const Value& value) {
  const T* pointer = std::get_if<T>(&value);
  HEADRACE_ASSERT(pointer != nullptr, "a config value does not have its field's type");
  return *pointer;
}

void assign(std::string& field, const Value& value) {
  field = held<std::string>(value);
}

void assign(bool& field, const Value& value) {
  field = held<bool>(value);
}

void assign(double& field, const Value& value) {
  field = held<double>(value);
}

void assign(std::int64_t& field, const Value& value) {
  field = held<std::int64_t>(value);
}

void assign(int& field, const Value& value) {
  field = static_cast<int>(held<std::int64_t>(value));  // ranges of the table lie within int
}

void assign(std::uint64_t& field, const Value& value) {
  const auto* integer = std::get_if<std::int64_t>(&value);
  field = integer != nullptr ? static_cast<std::uint64_t>(*integer) : held<std::uint64_t>(value);
}

template <class T>
void assign(std::vector<T>& field, const Value& value) {
  field = held<std::vector<T>>(value);
}

void assign(std::array<double, 2>& field, const Value& value) {
  field = held<std::array<double, 2>>(value);
}

template <class T>
void assign(std::optional<T>& field, const Value& value) {
  if (std::holds_alternative<std::monostate>(value)) {
    field.reset();
  } else {
    assign(field.emplace(), value);
  }
}

template <class T>
Value value_of(const T& field) {
  return field;
}

Value value_of(const int& field) {
  return static_cast<std::int64_t>(field);
}

template <class T>
Value value_of(const std::optional<T>& field) {
  return field ? value_of(*field) : Value();
}

// owner.*first.*second...
template <auto... kPath, class Owner>
auto& at(Owner& owner) {
  return (owner.*....*kPath);
}

template <class Member>
struct OwnerOf;

template <class Class, class T>
struct OwnerOf<T Class::*> {
  using Type = Class;
};

// key<&RunConfig::optim, &OptimSection::lr>({...}): a row whose value is config.optim.lr.
template <auto kFirst, auto... kRest>
constexpr auto key(Traits traits) {
  using Owner = typename OwnerOf<decltype(kFirst)>::Type;
  return Key<Owner>{
      traits,
      [](Owner& owner, const Value& value) { assign(at<kFirst, kRest...>(owner), value); },
      [](const Owner& owner) { return value_of(at<kFirst, kRest...>(owner)); }};
}

constexpr Range kPositive = {.min = 0, .min_open = true};
constexpr Range kFromZero = {.min = 0};
// AdamW's scalars become floats: none may round to 0 or to infinity there.
constexpr Range kRate = {.min = 0, .max = 1e6};
constexpr Range kEps = {.min = 1e-30, .max = 1e6};
constexpr Range kCount = {.min = 1, .max = 1e12};
constexpr Range kCountOrZero = {.min = 0, .max = 1e12};
// Sizes of models: far beyond those that exist, and still planned within seconds.
constexpr Range kLayers = {.min = 1, .max = 1024};
constexpr Range kWidth = {.min = 1, .max = 65536};  // of the residual stream; heads; a head
constexpr Range kInnerWidth = {.min = 1, .max = 1 << 20};
constexpr Range kVocabulary = {.min = 1, .max = 1 << 24};
constexpr Range kTokens = {.min = 1, .max = 1e8};  // of a sequence
constexpr Range kThreads = {.min = 1, .max = 1024};
constexpr Range kCoresLeft = {.min = 0, .max = 1023};
constexpr Range kBetaRange = {.min = 0, .max = 1, .max_open = true};

constexpr Refusal kComputeRefusals[] = {
    {"bf16",
     "the CPU's kernels compute in fp32, and this version has no CUDA kernels",
     "use \"fp32\" or \"auto\""},
    {"fp16", "fp16 needs loss scaling, which headrace does not do", "use \"fp32\" or \"auto\""},
    {"fp8", "there are no fp8 kernels", "use \"fp32\" or \"auto\""},
};
constexpr Refusal kGradRefusals[] = {
    {"fp16", "fp16 needs loss scaling, which headrace does not do", "use \"bf16\" or \"fp32\""},
};
constexpr Refusal kTf32Refusals[] = {
    {"true",
     "it rounds the inputs of fp32 products on GPUs, and this version has no CUDA kernels",
     "leave it out"},
};

constexpr Key<RunConfig> kRunKeys[] = {
    key<&RunConfig::run, &RunSection::name>(
        {.name = "run.name",
         .kind = Kind::kText,
         .doc = "names the run in its files",
         .default_words = "the file's name without its ending"}),
    key<&RunConfig::run, &RunSection::dir>(
        {.name = "run.dir",
         .kind = Kind::kPath,
         .doc = "the run's folder: metrics, log, plan, and its store by default",
         .default_words = "runs/ and run.name"}),
    key<&RunConfig::run, &RunSection::steps>({.name = "run.steps",
                                              .kind = Kind::kInteger,
                                              .doc = "steps to train; this or run.epochs",
                                              .range = kCount,
                                              .default_words = "none"}),
    key<&RunConfig::run, &RunSection::epochs>(
        {.name = "run.epochs",
         .kind = Kind::kNumber,
         .doc = "passes over the data to train; this or run.steps",
         .range = kPositive,
         .default_words = "none"}),
    key<&RunConfig::run, &RunSection::seed>({.name = "run.seed",
                                             .kind = Kind::kInteger,
                                             .doc = "of initial weights and of the order of data",
                                             .makes_numbers = true,
                                             .range = kFromZero}),
    key<&RunConfig::run, &RunSection::compute_threads>(
        {.name = "run.compute_threads",
         .kind = Kind::kInteger,
         .doc = "threads of the CPU device's kernels; fixed for the whole run",
         .may_be_auto = true,
         .makes_numbers = true,
         .range = kThreads}),

    key<&RunConfig::model, &ModelSection::preset>(
        {.name = "model.preset",
         .kind = Kind::kText,
         .doc =
             "a model known by name (docs/cli.md lists them); exactly one of preset, path and arch",
         .makes_numbers = true,
         .default_words = "none"}),
    key<&RunConfig::model, &ModelSection::path>(
        {.name = "model.path",
         .kind = Kind::kPath,
         .doc = "a Hugging Face directory, or a run directory (its weights, a fresh optimizer)",
         .makes_numbers = true,
         .default_words = "none"}),
    key<&RunConfig::model, &ModelSection::arch>(
        {.name = "model.arch",
         .kind = Kind::kText,
         .doc = "the family of a new model, with its sizes below",
         .makes_numbers = true,
         .choices = "gpt2|llama",
         .default_words = "none"}),
    key<&RunConfig::model, &ModelSection::layers>({.name = "model.layers",
                                                   .kind = Kind::kInteger,
                                                   .doc = "transformer blocks",
                                                   .makes_numbers = true,
                                                   .range = kLayers,
                                                   .default_words = "needed with arch"}),
    key<&RunConfig::model, &ModelSection::hidden>({.name = "model.hidden",
                                                   .kind = Kind::kInteger,
                                                   .doc = "width of the residual stream",
                                                   .makes_numbers = true,
                                                   .range = kWidth,
                                                   .default_words = "needed with arch"}),
    key<&RunConfig::model, &ModelSection::heads>({.name = "model.heads",
                                                  .kind = Kind::kInteger,
                                                  .doc = "attention heads",
                                                  .makes_numbers = true,
                                                  .range = kWidth,
                                                  .default_words = "needed with arch"}),
    key<&RunConfig::model, &ModelSection::vocab>({.name = "model.vocab",
                                                  .kind = Kind::kInteger,
                                                  .doc = "token ids",
                                                  .makes_numbers = true,
                                                  .range = kVocabulary,
                                                  .default_words = "the tokenizer's"}),
    key<&RunConfig::model, &ModelSection::kv_heads>(
        {.name = "model.kv_heads",
         .kind = Kind::kInteger,
         .doc = "heads of keys and values (grouped-query attention; llama)",
         .makes_numbers = true,
         .range = kWidth,
         .default_words = "model.heads"}),
    key<&RunConfig::model, &ModelSection::head_dim>({.name = "model.head_dim",
                                                     .kind = Kind::kInteger,
                                                     .doc = "width of a head (llama)",
                                                     .makes_numbers = true,
                                                     .range = kWidth,
                                                     .default_words = "hidden / heads"}),
    key<&RunConfig::model, &ModelSection::ffn>({.name = "model.ffn",
                                                .kind = Kind::kInteger,
                                                .doc = "inner width of the MLP",
                                                .makes_numbers = true,
                                                .range = kInnerWidth,
                                                .default_words = "the family's usual value"}),
    key<&RunConfig::model, &ModelSection::max_seq_len>(
        {.name = "model.max_seq_len",
         .kind = Kind::kInteger,
         .doc = "longest sequence, in tokens (the rows of GPT-2's position table)",
         .makes_numbers = true,
         .range = kTokens,
         .default_words = "the family's usual value"}),
    key<&RunConfig::model, &ModelSection::tied>({.name = "model.tied",
                                                 .kind = Kind::kBool,
                                                 .doc = "the head uses the embedding's weights",
                                                 .makes_numbers = true,
                                                 .default_words = "the family's usual value"}),
    key<&RunConfig::model, &ModelSection::rope_theta>(
        {.name = "model.rope_theta",
         .kind = Kind::kNumber,
         .doc = "base of the rotary position embedding (llama)",
         .makes_numbers = true,
         .range = kPositive,
         .default_words = "the family's usual value"}),
    key<&RunConfig::model, &ModelSection::norm_eps>({.name = "model.norm_eps",
                                                     .kind = Kind::kNumber,
                                                     .doc = "epsilon of LayerNorm and RMSNorm",
                                                     .makes_numbers = true,
                                                     .range = kPositive,
                                                     .default_words = "the family's usual value"}),
    key<&RunConfig::model, &ModelSection::ignore>(
        {.name = "model.ignore",
         .kind = Kind::kTexts,
         .doc = "fields of config.json that are passed over although they are not known here",
         .makes_numbers = true}),

    key<&RunConfig::data, &DataSection::train>(
        {.name = "data.train",
         .kind = Kind::kPaths,
         .doc = "files and globs (*, ?, [..], **): text with a tokenizer, token or chat files",
         .makes_numbers = true,
         .default_words = "none; needed to train"}),
    key<&RunConfig::data, &DataSection::tokenizer>(
        {.name = "data.tokenizer",
         .kind = Kind::kTokenizer,
         .doc = "\"bytes\" for text; or the tokenizer.json of token files, or its directory",
         .makes_numbers = true,
         .default_words = "none: token files"}),
    key<&RunConfig::data, &DataSection::order>(
        {.name = "data.order",
         .kind = Kind::kText,
         .doc = "windows in a new random order each epoch, or as llm.c reads them",
         .makes_numbers = true,
         .choices = "shuffled|sequential"}),
    key<&RunConfig::data, &DataSection::packing>(
        {.name = "data.packing",
         .kind = Kind::kText,
         .doc = "of chat files: an example a row, padded; or rows cut from all, one after another",
         .makes_numbers = true,
         .choices = "none|wrapped"}),
    key<&RunConfig::data, &DataSection::token_width>(
        {.name = "data.token_width",
         .kind = Kind::kInteger,
         .doc = "bytes of a token in token files without a header: 2 or 4",
         .makes_numbers = true,
         .range = {.min = 2, .max = 4},
         .default_words = "the file's header says"}),
    key<&RunConfig::data, &DataSection::eos>({.name = "data.eos",
                                              .kind = Kind::kInteger,
                                              .doc = "the token put after each text file",
                                              .makes_numbers = true,
                                              .range = kCountOrZero,
                                              .default_words = "none"}),

    key<&RunConfig::batch, &BatchSection::micro_batch>(
        {.name = "batch.micro_batch",
         .kind = Kind::kInteger,
         .doc = "sequences that go through the model together",
         .makes_numbers = true,
         .range = {.min = 1, .max = 1e6}}),
    key<&RunConfig::batch, &BatchSection::seq_len>({.name = "batch.seq_len",
                                                    .kind = Kind::kInteger,
                                                    .doc = "tokens of a sequence",
                                                    .makes_numbers = true,
                                                    .range = kTokens}),
    key<&RunConfig::batch, &BatchSection::accumulate>(
        {.name = "batch.accumulate",
         .kind = Kind::kInteger,
         .doc = "micro-batches of a step; times the model's units at most 65536",
         .makes_numbers = true,
         .range = {.min = 1, .max = 4096}}),
    key<&RunConfig::batch, &BatchSection::traversal>(
        {.name = "batch.traversal",
         .kind = Kind::kText,
         .doc = "every micro-batch through a unit before the next unit, or one after the other; "
                "auto: also groups",
         .may_be_auto = true,
         .choices = "layer-major|batch-major"}),

    key<&RunConfig::optim, &OptimSection::lr>({.name = "optim.lr",
                                               .kind = Kind::kNumber,
                                               .doc = "peak learning rate",
                                               .makes_numbers = true,
                                               .range = kRate}),
    key<&RunConfig::optim, &OptimSection::betas>(
        {.name = "optim.betas",
         .kind = Kind::kPair,
         .doc = "AdamW's decay of the first and second moment",
         .makes_numbers = true,
         .range = kBetaRange}),
    key<&RunConfig::optim, &OptimSection::eps>({.name = "optim.eps",
                                                .kind = Kind::kNumber,
                                                .doc = "AdamW's epsilon, outside the square root",
                                                .makes_numbers = true,
                                                .range = kEps}),
    key<&RunConfig::optim, &OptimSection::weight_decay>(
        {.name = "optim.weight_decay",
         .kind = Kind::kNumber,
         .doc = "decoupled; on tensors of 2 or more dimensions only",
         .makes_numbers = true,
         .range = kRate}),
    key<&RunConfig::optim, &OptimSection::clip>(
        {.name = "optim.clip",
         .kind = Kind::kNumber,
         .doc = "bound of the global gradient norm; 0 turns clipping off",
         .makes_numbers = true,
         .range = kFromZero}),
    key<&RunConfig::optim, &OptimSection::state>(
        {.name = "optim.state",
         .kind = Kind::kText,
         .doc = "how weights and optimizer state are kept: 12, 8 or 5.25 bytes a parameter",
         .makes_numbers = true,
         .choices = "fp32|bf16|q8"}),
    key<&RunConfig::optim, &OptimSection::update>(
        {.name = "optim.update",
         .kind = Kind::kText,
         .doc = "each unit as the next forward nears it; in backward, undone if clipped; or last",
         .may_be_auto = true,
         .choices = "held|speculative|after-backward"}),
    key<&RunConfig::optim, &OptimSection::threads>({.name = "optim.threads",
                                                    .kind = Kind::kInteger,
                                                    .doc = "optimizer threads; auto: one a core",
                                                    .may_be_auto = true,
                                                    .range = kThreads}),
    key<&RunConfig::optim, &OptimSection::cores_left>(
        {.name = "optim.cores_left",
         .kind = Kind::kInteger,
         .doc =
             "cores that threads = \"auto\" leaves to others, as a GPU's driver; the CPU's GEMMs "
             "need none",
         .range = kCoresLeft}),
    key<&RunConfig::optim, &OptimSection::lr_schedule>(
        {.name = "optim.lr_schedule",
         .kind = Kind::kText,
         .doc = "after warmup; wsd is constant, then linear to min_lr over the last decay_steps",
         .makes_numbers = true,
         .choices = "constant|linear|cosine|wsd"}),
    key<&RunConfig::optim, &OptimSection::warmup_steps>(
        {.name = "optim.warmup_steps",
         .kind = Kind::kInteger,
         .doc = "steps over which the learning rate rises from 0 to lr",
         .makes_numbers = true,
         .range = kCountOrZero}),
    key<&RunConfig::optim, &OptimSection::min_lr>({.name = "optim.min_lr",
                                                   .kind = Kind::kNumber,
                                                   .doc = "learning rate at the schedule's end",
                                                   .makes_numbers = true,
                                                   .range = kRate}),
    key<&RunConfig::optim, &OptimSection::decay_steps>({.name = "optim.decay_steps",
                                                        .kind = Kind::kInteger,
                                                        .doc = "steps of the decay of wsd",
                                                        .range = kCount,
                                                        .default_words = "a tenth of the steps"}),
    key<&RunConfig::optim, &OptimSection::group>(
        {.name = "optim.group",
         .kind = Kind::kGroups,
         .doc = "settings of the tensors whose names match; the first group that matches counts",
         .makes_numbers = true}),

    key<&RunConfig::precision, &PrecisionSection::compute>(
        {.name = "precision.compute",
         .kind = Kind::kText,
         .doc = "of weights and activations; auto is fp32 on the CPU",
         .may_be_auto = true,
         .makes_numbers = true,
         .choices = "fp32",
         .refusals = kComputeRefusals}),
    key<&RunConfig::precision, &PrecisionSection::grad>(
        {.name = "precision.grad",
         .kind = Kind::kText,
         .doc = "of stored gradients, rounded once a step; auto is as compute",
         .may_be_auto = true,
         .makes_numbers = true,
         .choices = "fp32|bf16",
         .refusals = kGradRefusals}),
    key<&RunConfig::precision, &PrecisionSection::tf32>({.name = "precision.tf32",
                                                         .kind = Kind::kBool,
                                                         .doc = "TF32 products on CUDA devices",
                                                         .makes_numbers = true,
                                                         .choices = "false",
                                                         .refusals = kTf32Refusals}),

    key<&RunConfig::tiers, &TiersSection::device>({.name = "tiers.device",
                                                   .kind = Kind::kDevice,
                                                   .doc = "what computes; auto is the CPU, and so "
                                                          "far nothing else trains (docs/cli.md)",
                                                   .may_be_auto = true}),
    key<&RunConfig::tiers, &TiersSection::device_memory_bytes>(
        {.name = "tiers.device_memory",
         .kind = Kind::kSize,
         .doc = "caps the device arena; set on the CPU, the device gets an arena of its own",
         .may_be_auto = true,
         .range = kPositive}),
    key<&RunConfig::tiers, &TiersSection::host_memory_bytes>(
        {.name = "tiers.host_memory",
         .kind = Kind::kSize,
         .doc = "caps the engine's host arenas; auto respects the cgroup's limit",
         .may_be_auto = true,
         .range = kPositive}),
    key<&RunConfig::tiers, &TiersSection::place>({.name = "tiers.place",
                                                  .kind = Kind::kText,
                                                  .doc = "forces where weights and state live",
                                                  .may_be_auto = true,
                                                  .choices = "device|host|nvme"}),
    key<&RunConfig::tiers, &TiersSection::lookahead>({.name = "tiers.lookahead",
                                                      .kind = Kind::kInteger,
                                                      .doc = "units that are fetched ahead of use",
                                                      .may_be_auto = true,
                                                      .range = {.min = 1, .max = 1024}}),
    key<&RunConfig::tiers, &TiersSection::spill_activations>(
        {.name = "tiers.spill_activations",
         .kind = Kind::kBool,
         .doc = "activations may wait on NVMe (on the host beside a device) where that beats "
                "recomputing"}),
    key<&RunConfig::tiers, &TiersSection::tile_elements>(
        {.name = "tiers.tile",
         .kind = Kind::kBlocks,
         .doc = "the grain of storage, in blocks of 65,536 elements",
         .may_be_auto = true,
         .range = {.min = 1, .max = 65536}}),
    key<&RunConfig::tiers, &TiersSection::io_depth>({.name = "tiers.io_depth",
                                                     .kind = Kind::kInteger,
                                                     .doc = "requests in flight to a drive",
                                                     .may_be_auto = true,
                                                     .range = {.min = 1, .max = 4096}}),
    key<&RunConfig::tiers, &TiersSection::direct_io>(
        {.name = "tiers.direct_io",
         .kind = Kind::kText,
         .doc = "past the page cache: always, or where the filesystem can",
         .choices = "on|auto"}),
    key<&RunConfig::tiers, &TiersSection::nvme>(
        {.name = "tiers.nvme",
         .kind = Kind::kFolders,
         .doc = "the store's folders, made if their parent exists; tiles are spread over them",
         .default_words = "store/ in run.dir"}),
    key<&RunConfig::tiers, &TiersSection::links, &LinkCaps::h2d>(
        {.name = "tiers.links.h2d",
         .kind = Kind::kRate,
         .doc = "caps copies from host to device, to rehearse another machine",
         .default_words = "none"}),
    key<&RunConfig::tiers, &TiersSection::links, &LinkCaps::d2h>(
        {.name = "tiers.links.d2h",
         .kind = Kind::kRate,
         .doc = "caps copies from device to host",
         .default_words = "none"}),
    key<&RunConfig::tiers, &TiersSection::links, &LinkCaps::nvme_read>(
        {.name = "tiers.links.nvme_read",
         .kind = Kind::kRate,
         .doc = "caps reads of the store",
         .default_words = "none"}),
    key<&RunConfig::tiers, &TiersSection::links, &LinkCaps::nvme_write>(
        {.name = "tiers.links.nvme_write",
         .kind = Kind::kRate,
         .doc = "caps writes of the store",
         .default_words = "none"}),

    key<&RunConfig::durability, &DurabilitySection::checkpoint>(
        {.name = "durability.checkpoint",
         .kind = Kind::kInterval,
         .doc = "what a crash may cost at most; none: half the disk, commits at clean ends only"}),
    key<&RunConfig::durability, &DurabilitySection::verify_reads>(
        {.name = "durability.verify_reads",
         .kind = Kind::kBool,
         .doc =
             "checks the sums of all that steps read; false: what a drive damages is trained on"}),

    key<&RunConfig::eval, &EvalSection::data>(
        {.name = "eval.data",
         .kind = Kind::kPaths,
         .doc = "files and globs to evaluate on; this or eval.fraction",
         .default_words = "none"}),
    key<&RunConfig::eval, &EvalSection::fraction>(
        {.name = "eval.fraction",
         .kind = Kind::kNumber,
         .doc = "the share of the training data, at its end, that is kept for evaluation",
         .makes_numbers = true,
         .range = {.min = 0, .max = 1, .min_open = true, .max_open = true},
         .default_words = "none"}),
    key<&RunConfig::eval, &EvalSection::every>({.name = "eval.every",
                                                .kind = Kind::kInteger,
                                                .doc = "steps between evaluations",
                                                .range = kCount,
                                                .default_words = "none: only where asked"}),
    key<&RunConfig::eval, &EvalSection::batches>({.name = "eval.batches",
                                                  .kind = Kind::kInteger,
                                                  .doc = "micro-batches of an evaluation",
                                                  .range = kCount}),

    key<&RunConfig::exports, &ExportSection::every>(
        {.name = "export.every",
         .kind = Kind::kInterval,
         .doc = "writes the weights as a Hugging Face directory, while the run goes on"}),
    key<&RunConfig::exports, &ExportSection::dir>(
        {.name = "export.dir",
         .kind = Kind::kPath,
         .doc = "holds a folder for each, step-00000500 and so on; made if its parent exists",
         .default_words = "exports/ in run.dir"}),
    key<&RunConfig::exports, &ExportSection::dtype>({.name = "export.dtype",
                                                     .kind = Kind::kText,
                                                     .doc = "of the weights",
                                                     .choices = "f32|bf16|f16"}),
    key<&RunConfig::exports, &ExportSection::keep>({.name = "export.keep",
                                                    .kind = Kind::kInteger,
                                                    .doc = "the newest so many stay",
                                                    .range = kCount,
                                                    .default_words = "all"}),
    key<&RunConfig::exports, &ExportSection::best>(
        {.name = "export.best",
         .kind = Kind::kBool,
         .doc =
             "the one with the lowest evaluation loss stays too (exports.json names it as best)"}),

    key<&RunConfig::log, &LogSection::every>(
        {.name = "log.every",
         .kind = Kind::kInteger,
         .doc = "steps between step lines; metrics.jsonl has every step",
         .range = kCount}),
    key<&RunConfig::log, &LogSection::stuck_after>(
        {.name = "log.stuck_after",
         .kind = Kind::kDuration,
         .doc = "warns when nothing was done for so long, with what is stuck; none: never"}),
};

constexpr Key<OptimGroup> kGroupKeys[] = {
    key<&OptimGroup::match>({.name = "match",
                             .kind = Kind::kTexts,
                             .doc = "globs over tensor names",
                             .makes_numbers = true,
                             .default_words = "needed"}),
    key<&OptimGroup::lr_scale>({.name = "lr_scale",
                                .kind = Kind::kNumber,
                                .doc = "multiplies the learning rate",
                                .makes_numbers = true,
                                .range = kRate}),
    key<&OptimGroup::betas>({.name = "betas",
                             .kind = Kind::kPair,
                             .doc = "in place of optim.betas",
                             .makes_numbers = true,
                             .range = kBetaRange,
                             .default_words = "optim.betas"}),
    key<&OptimGroup::eps>({.name = "eps",
                           .kind = Kind::kNumber,
                           .doc = "in place of optim.eps",
                           .makes_numbers = true,
                           .range = kEps,
                           .default_words = "optim.eps"}),
    key<&OptimGroup::weight_decay>({.name = "weight_decay",
                                    .kind = Kind::kNumber,
                                    .doc = "in place of optim.weight_decay, on every dimension",
                                    .makes_numbers = true,
                                    .range = kRate,
                                    .default_words = "optim.weight_decay"}),
    key<&OptimGroup::frozen>({.name = "frozen",
                              .kind = Kind::kBool,
                              .doc = "never updated: no gradient, no state, never written",
                              .makes_numbers = true}),
};

constexpr Key<NvmeFolder> kFolderKeys[] = {
    key<&NvmeFolder::path>(
        {.name = "path", .kind = Kind::kPath, .doc = "the folder", .default_words = "needed"}),
    key<&NvmeFolder::space_bytes>({.name = "space",
                                   .kind = Kind::kSize,
                                   .doc = "the most that stores in it may take",
                                   .range = kPositive,
                                   .default_words = "what is free"}),
    key<&NvmeFolder::write_limit_bytes_per_s>({.name = "write_limit",
                                               .kind = Kind::kRate,
                                               .doc = "sustained writes are held below it",
                                               .default_words = "none"}),
    key<&NvmeFolder::endurance_bytes>({.name = "endurance",
                                       .kind = Kind::kEndurance,
                                       .doc = "what the drive may be written over its life",
                                       .default_words = "as 600 TBW per TB of the drive"}),
};

}  // namespace

std::span<const Key<RunConfig>> run_keys() {
  return kRunKeys;
}

std::span<const Key<OptimGroup>> group_keys() {
  return kGroupKeys;
}

std::span<const Key<NvmeFolder>> folder_keys() {
  return kFolderKeys;
}

bool is_section(std::string_view name) {
  for (const Key<RunConfig>& key : kRunKeys) {
    if (name.empty() || (key.name.starts_with(name) && key.name.size() > name.size() &&
                         key.name[name.size()] == '.')) {
      return true;
    }
  }
  return false;
}

}  // namespace headrace::config
