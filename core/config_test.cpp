// Facts about RUN.toml and --set that users depend on: what is accepted, what is refused and where.
#include "core/config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "core/config_schema.hpp"
#include "core/files.hpp"
#include "core/test_folder.hpp"

namespace headrace {
namespace {

using Sets = std::vector<std::string>;

class ConfigTest : public ::testing::Test {
 protected:
  Result<RunConfig> load(const std::string& text, const Sets& sets = {}) {
    path_ = folder_.path("run.toml");
    EXPECT_TRUE(write_file_atomically(path_, text));
    return load_run_config(path_, sets);
  }

  // The one or first error of a text.
  Error error_of(const std::string& text, const Sets& sets = {}) {
    auto result = load(text, sets);
    EXPECT_FALSE(result) << text;
    return result ? Error() : result.error();
  }

  [[nodiscard]] std::string place(const std::string& line_and_column) const {
    return path_ + ":" + line_and_column;
  }

  TestFolder folder_;
  std::string path_;
};

constexpr const char* kModel = "[model]\npreset = \"gpt2-124m\"\n";

// Every key that a file may set at once; another test checks that none is left out.
constexpr const char* kFull = R"([run]
name = "full"
dir = "runs/demo"
steps = 200
seed = 7
compute_threads = 2
[model]
arch = "llama"
layers = 2
hidden = 64
heads = 4
vocab = 300
kv_heads = 2
head_dim = 16
ffn = 128
max_seq_len = 512
tied = true
rope_theta = 10000.0
norm_eps = 1e-5
ignore = ["use_cache"]
[data]
train = ["a.txt", "../other/**/*.txt"]
tokenizer = "bytes"
order = "sequential"
packing = "wrapped"
eos = 256
[batch]
micro_batch = 2
seq_len = 32
accumulate = 3
traversal = "layer-major"
[optim]
lr = 1e-3
betas = [0.8, 0.99]
eps = 1e-6
weight_decay = 0.0
clip = 0
state = "fp32"
update = "held"
threads = 3
lr_schedule = "wsd"
warmup_steps = 10
min_lr = 1e-5
decay_steps = 20
[[optim.group]]
match = ["*.wte.*", "*.ln_*"]
lr_scale = 0.5
betas = [0.9, 0.9]
eps = 1e-7
weight_decay = 0.3
[[optim.group]]
match = ["h.0.*"]
frozen = true
[precision]
compute = "fp32"
grad = "bf16"
tf32 = false
[tiers]
device = "cpu"
device_memory = "1GiB"
host_memory = "1.5GB"
nvme = [{ path = "store", space = "2GiB", write_limit = "1.5GB/s", endurance = "1200TBW" }]
place = "nvme"
lookahead = 4
spill_activations = false
tile = 5
io_depth = 8
direct_io = "auto"
[tiers.links]
h2d = "25GB/s"
d2h = "24.5GB/s"
nvme_read = "3GB/s"
nvme_write = "1GiB/s"
[durability]
checkpoint = "100 steps"
verify_reads = false
[eval]
data = ["eval.txt"]
every = 50
batches = 4
[export]
every = "500 steps"
dir = "exports"
dtype = "bf16"
keep = 3
best = true
[log]
every = 5
stuck_after = "90s"
)";

TEST_F(ConfigTest, DefaultsAreThoseOfTheDesign) {
  const RunConfig config = load(kModel).value();
  EXPECT_EQ(config.run.name, "run");
  EXPECT_EQ(config.run.dir, folder_.path("runs/run"));
  EXPECT_EQ(config.run.seed, 1337U);
  EXPECT_FALSE(config.run.steps);
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_EQ(config.optim.lr_schedule, "cosine");
  EXPECT_EQ(config.durability.checkpoint, "10min");
  EXPECT_TRUE(config.durability.verify_reads);
  EXPECT_FALSE(config.tiers.host_memory_bytes);
  ASSERT_EQ(config.tiers.nvme.size(), 1U);
  EXPECT_EQ(config.tiers.nvme[0].path, folder_.path("runs/run/store"));
}

TEST_F(ConfigTest, EveryValueOfAFullFileArrives) {
  const RunConfig config = load(kFull).value();
  EXPECT_EQ(config.run.steps, 200);
  EXPECT_EQ(config.model.kv_heads, 2);
  EXPECT_EQ(config.optim.betas[1], 0.99);
  EXPECT_EQ(config.optim.clip, 0.0);
  ASSERT_EQ(config.optim.group.size(), 2U);
  EXPECT_EQ(config.optim.group[0].weight_decay, 0.3);
  EXPECT_TRUE(config.optim.group[1].frozen);
  EXPECT_EQ(config.tiers.device_memory_bytes, 1ULL << 30U);
  EXPECT_EQ(config.tiers.host_memory_bytes, 1'500'000'000ULL);
  EXPECT_EQ(config.tiers.tile_elements, 5U * 65536U);
  EXPECT_EQ(config.tiers.nvme[0].write_limit_bytes_per_s, 1.5e9);
  EXPECT_EQ(config.tiers.nvme[0].endurance_bytes, 1.2e15);
  EXPECT_EQ(config.tiers.links.nvme_write, 1073741824.0);
  EXPECT_EQ(config.durability.checkpoint, "100 steps");
  EXPECT_FALSE(config.durability.verify_reads);
  EXPECT_EQ(config.exports.dir, folder_.path("exports"));
  EXPECT_EQ(config.exports.keep, 3);
  EXPECT_EQ(config.log.every, 5);
  EXPECT_EQ(config.log.stuck_after, "90s");
  EXPECT_EQ(config_place(config, "optim.lr"), place("33:1"));
  EXPECT_EQ(config_place(config, "run.epochs"), "");
}

// Field note (a documented key silently ignored): what is documented is accepted.
TEST_F(ConfigTest, EveryDocumentedKeyIsAccepted) {
  RunConfig config = load(kFull).value();
  config.where.merge(load("[run]\nepochs = 1.5\n[model]\npath = \"hf\"\n[eval]\nfraction = 0.1\n"
                          "[data]\ntoken_width = 2\n[optim]\ncores_left = 2\n")
                         .value()
                         .where);
  config.where.merge(load(kModel).value().where);
  for (const ConfigKey& key : config_keys()) {
    EXPECT_FALSE(key.doc.empty()) << key.key;
    EXPECT_FALSE(key.default_text.empty()) << key.key;
    if (key.key.find("[].") == std::string::npos) {
      EXPECT_TRUE(config.where.contains(key.key)) << key.key;
    } else {
      const std::string member = key.key.substr(key.key.find("[].") + 3);
      EXPECT_NE(std::string(kFull).find(member + " ="), std::string::npos) << key.key;
    }
  }
}

TEST_F(ConfigTest, ResolvedTextReadsBackToAnEqualConfig) {
  const std::vector<std::string> texts = {
      kFull, kModel, "[run]\nepochs = 0.1\n[model]\npath = \"a \\\"quoted\\\" dir\"\n"};
  for (const std::string& text : texts) {
    const RunConfig config = load(text).value();
    const std::string resolved = to_toml(config, {"made by a test", "gemm shapes: 1"});
    EXPECT_TRUE(resolved.starts_with("# made by a test\n# gemm shapes: 1\n"));
    const auto back = load(resolved);
    ASSERT_TRUE(back) << format_error(back.error(), true) << resolved;
    EXPECT_TRUE(config_differences(config, *back).empty()) << resolved;
    EXPECT_EQ(*back, config) << resolved;
    EXPECT_EQ(to_toml(*back), to_toml(config));
  }
}

TEST_F(ConfigTest, UnknownKeysNameTheirPlaceAndWhatWasMeant) {
  struct Case {
    const char* text;
    const char* key;
    const char* hint;
    const char* place;
  };

  const Case cases[] = {
      {"[optim]\nlearning_rate = 1e-3\n", "optim.learning_rate", "optim.lr", "2:1"},
      {"learning_rate = 1e-3\n", "learning_rate", "optim.lr", "1:1"},
      {"[training]\nblock_size = 64\n", "training", "sections are run, model", "1:2"},
      {"[batch]\n  seq_length = 64\n", "batch.seq_length", "batch.seq_len", "2:3"},
      {"[run]\nweight_decay = 0.1\n", "run.weight_decay", "belongs to optim.weight_decay", "2:1"},
      {"[optim]\nlrr = 0.1\n", "optim.lrr", "nearest key is optim.lr", "2:1"},
      {"[optim]\nwarmup_stesp = 1\n", "optim.warmup_stesp", "optim.warmup_steps", "2:1"},
      {"[optin]\nlr = 0.1\n", "optin", "nearest key is optim", "1:2"},
      {"[log]\nqqqqqq = 1\n", "log.qqqqqq", "keys of [log] are every", "2:1"},
      {"[data]\nseed = 1\n", "data.seed", "belongs to run.seed", "2:1"},
      {"[model]\nn_layer = 2\n", "model.n_layer", "model.layers", "2:1"},
      {"[model]\ndropout = 0.1\n", "model.dropout", "without dropout", "2:1"},
      {"[tiers.nvme]\npath = \"x\"\n", "tiers.nvme", "", "1:8"},
      {"[optim]\nLearning-Rate = 1\n", "optim.Learning-Rate", "optim.lr", "2:1"},
  };
  for (const Case& c : cases) {
    const Error error = error_of(c.text);
    EXPECT_EQ(error.code, ExitCode::kUsage);
    EXPECT_NE(error.what.find(c.key), std::string::npos) << error.what;
    EXPECT_NE(error.hint.find(c.hint), std::string::npos) << c.text << error.hint;
    EXPECT_EQ(error.where, place(c.place)) << c.text;
  }
}

TEST_F(ConfigTest, AllErrorsAreReportedAtOnceInTheOrderOfTheFile) {
  const Error error = error_of(
      "[optim]\nlr = \"fast\"\nlearning_rate = 1\nupdate = \"sometimes\"\n"
      "[batch]\nmicro_batch = 0\n[run]\nsteps = 1\nepochs = 1.0\n",
      {"tiers.host_memory=5"});
  std::vector<std::string> whats = {error.what};
  for (const Error& other : error.others) {
    whats.push_back(other.what);
  }
  ASSERT_EQ(whats.size(), 7U) << format_error(error, false);
  const char* parts[] = {"optim.lr: a number is due",
                         "unknown key 'optim.learning_rate'",
                         "optim.update = \"sometimes\" is not a choice",
                         "batch.micro_batch = 0 is out of range",
                         "tiers.host_memory: '5' is not a size",
                         "no model is named",
                         "run.steps and run.epochs are both given"};
  for (std::size_t i = 0; i < whats.size(); ++i) {
    EXPECT_NE(whats[i].find(parts[i]), std::string::npos) << whats[i];
  }
}

TEST_F(ConfigTest, ATokenizerIsBytesOrAPathBelowTheFilesFolder) {
  EXPECT_EQ(load(kModel, {"data.tokenizer=bytes"}).value().data.tokenizer, "bytes");
  EXPECT_EQ(load(kModel, {"data.tokenizer=x/tokenizer.json"}).value().data.tokenizer,
            working_directory() + "/x/tokenizer.json");
}

// Field note (an unsupported mode trains nothing, without an error).
TEST_F(ConfigTest, WhatThisVersionDoesNotDoIsRefusedWithAReason) {
  const char* refused[] = {
      "precision.compute=bf16",
      "precision.compute=fp16",
      "precision.grad=fp16",
      "precision.tf32=true",
  };
  for (const char* set : refused) {
    const Error error = error_of(kModel, {set});
    EXPECT_NE(error.what.find("is refused"), std::string::npos) << error.what;
    EXPECT_FALSE(error.why.empty()) << set;
    EXPECT_FALSE(error.hint.empty()) << set;
  }
  const Error ranks = error_of("[dist]\nranks = 2\n");
  EXPECT_NE(ranks.what.find("is not in this version"), std::string::npos) << ranks.what;
  EXPECT_FALSE(ranks.hint.empty());
  const Error folders =
      error_of("[model]\npreset = \"x\"\n[tiers]\nnvme = [\"a\", \"b\", \"a\"]\n");
  EXPECT_NE(folders.what.find("twice"), std::string::npos);
  EXPECT_EQ(folders.where, place("4:1"));
}

TEST_F(ConfigTest, ADeviceIsTheCpuOrAGpuByNumber) {
  for (const auto& [given, kept] : {std::pair("cpu", "cpu"),
                                    std::pair("cuda", "cuda:0"),
                                    std::pair("cuda:0", "cuda:0"),
                                    std::pair("cuda:99", "cuda:99")}) {
    const auto config = load(kModel, {std::string("tiers.device=") + given});
    ASSERT_TRUE(config) << given;
    EXPECT_EQ(config->tiers.device, kept);
  }
  EXPECT_FALSE(load(kModel, {"tiers.device=auto"})->tiers.device);
  EXPECT_EQ(cuda_ordinal("cuda:0"), 0);
  EXPECT_EQ(cuda_ordinal("cuda:37"), 37);
  for (const char* device :
       {"cuda:", "cuda:-1", "cuda:100", "cuda:01", "cuda:x", "CUDA:0", "gpus"}) {
    EXPECT_FALSE(cuda_ordinal(device)) << device;
    const Error error = error_of(kModel, {std::string("tiers.device=") + device});
    EXPECT_NE(error.what.find("is no device"), std::string::npos) << error.what;
    EXPECT_NE(error.hint.find("\"cuda:99\""), std::string::npos) << error.hint;
  }
  const Error error = error_of("[model]\npreset = \"x\"\n[tiers]\ndevice = \"gpu\"\n");
  EXPECT_NE(error.hint.find("\"cuda:0\""), std::string::npos) << error.hint;
  EXPECT_EQ(error.where, place("4:1"));
}

TEST_F(ConfigTest, ScalarsThatNoFloatHoldsAreRefused) {
  for (const char* set : {"optim.eps=1e-40", "optim.lr=1e39", "optim.weight_decay=1e39"}) {
    EXPECT_NE(error_of(kModel, {set}).what.find("is out of range"), std::string::npos) << set;
  }
}

TEST_F(ConfigTest, ValuesOutOfRangeOrOfAnotherTypeAreRefused) {
  const char* refused[] = {
      "run.steps=0",
      "run.steps=1.5",
      "run.steps=1e3",
      "run.steps=\"10\"",
      "run.steps=auto",
      "run.epochs=0",
      "durability.checkpoint=often",
      "durability.checkpoint=10",
      "durability.checkpoint=\"0 steps\"",
      "export.every=1.5 steps",
      "export.dtype=fp8",
      "export.keep=0",
      "run.seed=-1",
      "run.compute_threads=0",
      "run.name=",
      "model.layers=-2",
      "model.arch=bert",
      "model.tied=\"yes\"",
      "data.train=a.txt",
      "data.train=[1]",
      "data.token_width=3",
      "data.order=random",
      "batch.micro_batch=0",
      "batch.seq_len=0",
      "optim.lr=-1",
      "optim.lr=nan",
      "optim.lr=inf",
      "optim.betas=[0.9]",
      "optim.betas=[0.9,1.0]",
      "optim.betas=0.9",
      "optim.eps=0",
      "optim.clip=-1",
      "optim.lr_schedule=step",
      "tiers.host_memory=1000000",
      "tiers.host_memory=0B",
      "tiers.host_memory=1.5",
      "tiers.tile=0",
      "tiers.tile=-1",
      "tiers.tile=99999999999999999",
      "tiers.links.h2d=25GB",
      "tiers.links.h2d=0GB/s",
      "tiers.nvme=/x",
      "tiers.nvme=[{space=\"1GiB\"}]",
      "tiers.nvme=[{path=\"x\",spce=\"1GiB\"}]",
      "tiers.nvme=[1]",
      "optim.group=[{lr_scale=1}]",
      "optim.group=[{match=[\"*\"],lr=1}]",
      "optim.group={match=[\"*\"]}",
      "optim.group=[{match=[\"*\"],frozen=true,eps=1e-3}]",
      "eval.fraction=1.0",
      "log.every=0",
      "optim.lr",
      "=1",
      "optim.lr=1979-05-27",
      "optim=1",
      "tiers.links={h2d=\"1GB/s\"}",
      "optim.lr=1\nseed = 2",
  };
  for (const char* set : refused) {
    const auto result = load(kModel, {set});
    EXPECT_FALSE(result) << set;
    if (!result) {
      EXPECT_EQ(result.error().code, ExitCode::kUsage) << set;
      EXPECT_TRUE(result.error().others.empty()) << set << format_error(result.error(), false);
    }
  }
}

TEST_F(ConfigTest, ATimeIsNotCountedInSteps) {
  for (const char* set : {"log.stuck_after=10 steps", "log.stuck_after=every-step"}) {
    const Error error = error_of(kModel, {set});
    EXPECT_EQ(error.code, ExitCode::kUsage) << set;
    EXPECT_EQ(error.hint, "write \"1min\" or \"none\"") << set;
  }
  EXPECT_EQ(load(kModel, {"log.stuck_after=2h"}).value().log.stuck_after, "120min");
  EXPECT_EQ(load(kModel, {"log.stuck_after=none"}).value().log.stuck_after, "none");
}

TEST_F(ConfigTest, ImpossibleCombinationsAreRefused) {
  const std::vector<Sets> refused = {
      {"run.steps=1", "run.epochs=1"},
      {"model.preset=a", "model.path=b"},
      {"model.path=b", "model.layers=2"},
      {"data.tokenizer=bytes", "data.token_width=2"},
      {"data.eos=5"},
      {"optim.lr=1e-4", "optim.min_lr=1e-3"},
      {"optim.lr_schedule=constant", "optim.min_lr=1e-5"},
      {"optim.decay_steps=5"},
      {"optim.threads=2", "optim.cores_left=1"},
      {"eval.every=5"},
      {"eval.data=[\"x\"]", "eval.fraction=0.1"},
  };
  for (const Sets& sets : refused) {
    const Error error = error_of(kModel, sets);
    EXPECT_FALSE(error.hint.empty()) << sets.front();
    EXPECT_TRUE(error.others.empty()) << format_error(error, false);
  }
}

TEST_F(ConfigTest, SetTakesItsTypeFromTheSchema) {
  const RunConfig config = load(kModel,
                                {"optim.lr=1",
                                 "run.name=123",
                                 "optim.betas=[0.5, 0.6]",
                                 "tiers.host_memory=24GiB",
                                 "tiers.lookahead=auto",
                                 "run.seed=99",
                                 "model.tied=true",
                                 "data.tokenizer=\"bytes\"",
                                 "optim.group=[{ match = [\"*.b\"], frozen = true }]",
                                 "tiers.nvme=[\"/mnt/x\"]",
                                 "tiers.place=nvme",
                                 "run.name=a=b"})
                               .value();
  EXPECT_EQ(config.optim.lr, 1.0);
  EXPECT_EQ(config.run.name, "a=b");
  EXPECT_EQ(config.optim.betas[0], 0.5);
  EXPECT_EQ(config.tiers.host_memory_bytes, 24ULL << 30U);
  EXPECT_FALSE(config.tiers.lookahead);
  EXPECT_EQ(config.run.seed, 99U);
  EXPECT_TRUE(config.model.tied.value());
  EXPECT_EQ(config.data.tokenizer, "bytes");
  EXPECT_TRUE(config.optim.group.at(0).frozen);
  EXPECT_EQ(config.tiers.nvme.at(0).path, "/mnt/x");
  EXPECT_EQ(config_place(config, "optim.lr"), "--set optim.lr");
}

TEST_F(ConfigTest, SetTakesThePlaceOfTheFilesOtherChoice) {
  const std::string text = std::string(kModel) + "[run]\nepochs = 2.0\n";
  const RunConfig config = load(text, {"run.steps=5", "model.path=/m"}).value();
  EXPECT_EQ(config.run.steps, 5);
  EXPECT_FALSE(config.run.epochs);
  EXPECT_EQ(config.model.path, "/m");
  EXPECT_EQ(config.model.preset, "");
}

TEST_F(ConfigTest, PathsAreRelativeToTheFileAndInSetsToTheWorkingDirectory) {
  const RunConfig config = load(kFull).value();
  EXPECT_EQ(config.run.dir, folder_.path("runs/demo"));
  EXPECT_EQ(config.data.train[0], folder_.path("a.txt"));
  EXPECT_EQ(config.data.train[1], parent_path(parent_path(folder_.path("x"))) + "/other/**/*.txt");
  EXPECT_EQ(config.tiers.nvme[0].path, folder_.path("store"));
  EXPECT_EQ(config.eval.data[0], folder_.path("eval.txt"));
  const RunConfig other =
      load(kModel, {"run.dir=here", "data.train=[\"t.txt\"]", "tiers.nvme=[{path=\"n\"}]"}).value();
  EXPECT_EQ(other.run.dir, working_directory() + "/here");
  EXPECT_EQ(other.data.train[0], working_directory() + "/t.txt");
  EXPECT_EQ(other.tiers.nvme[0].path, working_directory() + "/n");
}

TEST_F(ConfigTest, SyntaxErrorsAndMissingFilesAreUsageErrorsWithAPlace) {
  const Error syntax = error_of("[run]\nsteps = \n");
  EXPECT_EQ(syntax.code, ExitCode::kUsage);
  EXPECT_NE(syntax.where.find(":2:"), std::string::npos) << syntax.where;
  EXPECT_EQ(error_of("[run]\nsteps = 1\nsteps = 2\n").code, ExitCode::kUsage);
  EXPECT_EQ(load_run_config(folder_.path("none.toml"), {}).error().code, ExitCode::kUsage);
  EXPECT_EQ(load_run_config(folder_.path(""), {}).error().code, ExitCode::kUsage);
}

TEST_F(ConfigTest, WithoutAFileTheDefaultsHoldAndSetsApply) {
  const RunConfig config = default_run_config({"batch.seq_len=64"}).value();
  EXPECT_EQ(config.batch.seq_len, 64);
  EXPECT_EQ(config.file, "");
  EXPECT_FALSE(default_run_config({"batch.block_size=64"}));
}

TEST_F(ConfigTest, DifferencesSayWhetherTheyMakeNumbers) {
  const RunConfig before = load(kFull).value();
  RunConfig after = before;
  EXPECT_TRUE(config_differences(before, after).empty());
  after.optim.lr = 2e-3;
  after.tiers.lookahead = 1;
  after.run.steps = 300;
  const auto differences = config_differences(before, after);
  ASSERT_EQ(differences.size(), 3U);
  EXPECT_EQ(differences[0].key, "run.steps");
  EXPECT_FALSE(differences[0].makes_numbers);
  EXPECT_EQ(differences[1].key, "optim.lr");
  EXPECT_EQ(differences[1].before, "0.001");
  EXPECT_EQ(differences[1].after, "0.002");
  EXPECT_TRUE(differences[1].makes_numbers);
  EXPECT_FALSE(differences[2].makes_numbers);
}

// Made with HEADRACE_UPDATE_DOCS=1.
TEST(ConfigDocs, TheDocumentIsWhatTheTableSays) {
  const std::string path = HEADRACE_SOURCE_DIR "/docs/config.md";
  if (std::getenv("HEADRACE_UPDATE_DOCS") != nullptr) {
    ASSERT_TRUE(write_file_atomically(path, config_markdown()));
  }
  EXPECT_EQ(read_file(path, 1U << 20U).value_or(""), config_markdown())
      << "run core_test with HEADRACE_UPDATE_DOCS=1 and commit docs/config.md";
}

TEST(ConfigNames, EveryForeignNameLeadsToAKeyOfOursOrSaysWhyNot) {
  std::set<std::string_view> names;
  for (const config::ForeignName& foreign : config::foreign_names()) {
    EXPECT_TRUE(names.insert(foreign.name).second) << foreign.name << " stands twice";
    if (foreign.key.empty()) {
      EXPECT_FALSE(foreign.note.empty()) << foreign.name;
    } else {
      EXPECT_NE(config::find_key(config::run_keys(), foreign.key), nullptr) << foreign.name;
    }
  }
  EXPECT_GE(names.size(), 60U);
}

TEST(ConfigNames, KeysAreUniqueAndDescribed) {
  std::set<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(names.insert(key.key).second) << key.key;
    EXPECT_FALSE(key.type.empty());
    EXPECT_LE(key.doc.size(), 100U) << key.key;
  }
}

TEST_F(ConfigTest, NamesOfVeryManyPartsAreRefusedBeforeTheyAreParsed) {
  std::string name = "a";
  for (int i = 0; i < 50000; ++i) {
    name += i % 2 == 0 ? ".a" : " . \"a\"";
  }
  for (const std::string& text :
       {"\n[" + name + "]\n", "\n" + name + " = 1\n", "\nx = { " + name + " = 1 }"}) {
    const Error error = error_of(text);
    EXPECT_EQ(error.code, ExitCode::kUsage);
    EXPECT_NE(error.what.find("64 dots"), std::string::npos) << error.what;
    EXPECT_TRUE(error.where.starts_with(path_ + ":2:")) << error.where;
  }
  EXPECT_FALSE(load(kModel, {"data.train=[{ " + name + " = 1 }]"}));
  // Dots of a text, of numbers and of a comment are no names.
  std::string files = "\"" + std::string(200, '.') + "\"";
  for (int i = 0; i < 100; ++i) {
    files += ", \"../a." + std::to_string(i) + ".txt\"";
  }
  EXPECT_TRUE(load("# " + files + "\n" + kModel + "[data]\ntrain = [" + files + "]\n"));
}

}  // namespace
}  // namespace headrace
