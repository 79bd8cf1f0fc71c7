// What a commit says, and what a resume compares.
#include "train/run_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace headrace::train {
namespace {

RunState example() {
  RunState state;
  state.step = 12;
  state.update_count = 11;
  state.tokens = 12288;
  state.skipped_in_row = 1;
  state.config.run.name = "demo";
  state.config.run.dir = "/runs/demo";
  state.config.run.steps = 20;
  state.config.run.compute_threads = 3;
  state.config.model.preset = "gpt2-124m";
  state.config.data.train = {"/data/a.txt"};
  state.config.data.tokenizer = "bytes";
  state.config.optim.lr = 1.0 / 3;
  OptimGroup frozen;
  frozen.match = {"*.wte.*"};
  frozen.frozen = true;
  state.config.optim.group = {frozen};
  state.config.tiers.nvme.resize(1);
  state.config.tiers.nvme[0].path = "/runs/demo/store";
  state.config.exports.dir = "/runs/demo/exports";
  model::Architecture& architecture = state.numbers.architecture;
  architecture.family = model::Family::kLlama;
  architecture.layers = 2;
  architecture.hidden = 32;
  architecture.heads = 4;
  architecture.kv_heads = 2;
  architecture.head_dim = 8;
  architecture.ffn = 96;
  architecture.vocab = 256;
  architecture.max_seq_len = 64;
  architecture.rope_theta = 12345.678;
  architecture.norm_eps = 1.0 / 3e5;
  architecture.tokenizer = "bytes";
  state.numbers.data = {.files = 1, .bytes = 900, .tokens = 900, .hash = 0x0123456789abcdefU};
  return state;
}

TEST(RunState, ReadsBackEqual) {
  const RunState before = example();
  const Result<RunState> after = run_state_from_text(run_state_to_text(before), "store");
  ASSERT_TRUE(after) << format_error(after.error(), false);
  EXPECT_EQ(after->step, before.step);
  EXPECT_EQ(after->update_count, before.update_count);
  EXPECT_EQ(after->tokens, before.tokens);
  EXPECT_EQ(after->skipped_in_row, before.skipped_in_row);
  EXPECT_TRUE(after->numbers.architecture == before.numbers.architecture);
  EXPECT_EQ(after->numbers.data.hash, before.numbers.data.hash);
  EXPECT_EQ(after->numbers.data.tokens, before.numbers.data.tokens);
  EXPECT_TRUE(after->config == before.config);
}

TEST(RunState, DamagedTextIsCorruptData) {
  const std::string good = run_state_to_text(example());
  for (const std::string& text : {std::string(), std::string("{}"), good.substr(0, 100)}) {
    const Result<RunState> state = run_state_from_text(text, "the/store");
    ASSERT_FALSE(state);
    EXPECT_EQ(state.error().code, ExitCode::kCorrupt);
    EXPECT_NE(state.error().what.find("the/store"), std::string::npos);
  }
}

// The keys that an error of differing numbers names.
std::vector<std::string> named(const Status& status) {
  std::vector<std::string> names;
  if (!status) {
    for (const Error& other : status.error().others) {
      names.push_back(other.what.substr(0, other.what.find(':')));
    }
  }
  return names;
}

TEST(SameNumbers, AnotherStateFormatNamesTheCommandThatConverts) {
  const RunState committed = example();
  RunConfig now = committed.config;
  now.optim.state = "q8";
  for (const auto& [dir, word] :
       {std::pair{"/runs/demo", "/runs/demo"}, std::pair{"/my runs/it's", "'/my runs/it'\\''s'"}}) {
    now.run.dir = dir;
    const Status refused = check_same_numbers(committed, now, committed.numbers);
    ASSERT_FALSE(refused);
    const std::string& hint = refused.error().others.front().hint;
    EXPECT_NE(hint.find("--set optim.state=fp32"), std::string::npos) << hint;
    EXPECT_TRUE(hint.ends_with(std::string("headrace store convert ") + word + " --state q8"))
        << hint;
  }
}

TEST(SameNumbers, WhatMayChangeDoes) {
  const RunState committed = example();
  RunConfig now = committed.config;
  now.run.steps = 40;
  now.tiers.host_memory_bytes = 1 << 30;
  now.tiers.place = "nvme";
  now.tiers.nvme.resize(1);
  now.tiers.nvme[0].path = "/elsewhere";
  now.batch.traversal = "batch-major";
  now.optim.update = "after-backward";
  now.optim.threads = 7;
  now.log.every = 10;
  now.data.train = {"/moved/a.txt"};  // compared by content
  EXPECT_TRUE(check_same_numbers(committed, now, committed.numbers));
}

TEST(SameNumbers, EveryDifferenceIsNamed) {
  const RunState committed = example();
  RunConfig now = committed.config;
  now.run.seed = 1;
  now.run.compute_threads = 4;
  now.batch.seq_len = 128;
  now.optim.lr = 1e-3;
  now.optim.group.clear();
  now.precision.grad = "bf16";
  RunNumbers numbers = committed.numbers;
  numbers.data.hash += 1;
  const Status status = check_same_numbers(committed, now, numbers);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ExitCode::kUsage);
  const std::vector<std::string> names = named(status);
  for (const char* key : {"run.seed",
                          "run.compute_threads",
                          "batch.seq_len",
                          "optim.lr",
                          "optim.group",
                          "precision.grad",
                          "data.train"}) {
    EXPECT_TRUE(std::find(names.begin(), names.end(), key) != names.end()) << key;
  }
  EXPECT_EQ(names.size(), 7U);
}

TEST(SameNumbers, AModelNamedOtherwiseIsTheSameWhereItsNumbersAre) {
  const RunState committed = example();
  RunConfig now = committed.config;
  now.model.preset.clear();
  now.model.arch = "gpt2";
  now.model.layers = 12;
  EXPECT_TRUE(check_same_numbers(committed, now, committed.numbers));
  RunNumbers numbers = committed.numbers;
  numbers.architecture.layers = 3;
  EXPECT_FALSE(check_same_numbers(committed, now, numbers));
  // Other initial weights are another run, whatever their shape.
  now = committed.config;
  now.model.path = "/models/other";
  EXPECT_FALSE(check_same_numbers(committed, now, committed.numbers));
}

TEST(TensorTable, ReadsBackEqual) {
  TensorTable before;
  before.architecture = example().numbers.architecture;
  before.tile_elements = 65536;
  before.units = {
      {.name = "embedding",
       .tensors =
           {{.name = "wte", .shape = {256, 32}, .elements = 8192, .offset = 0, .frozen = true}},
       .tiles = {{.begin = 0, .elements = 4096, .frozen = true},
                 {.begin = 4096, .elements = 4096, .frozen = true}}}};
  const Result<TensorTable> after =
      tensor_table_from_text(tensor_table_to_text(before, {}), "store");
  ASSERT_TRUE(after) << format_error(after.error(), false);
  EXPECT_EQ(tensor_table_to_text(*after, {}), tensor_table_to_text(before, {}));
  EXPECT_EQ(after->units[0].tensors[0].shape, before.units[0].tensors[0].shape);
  EXPECT_TRUE(after->units[0].tiles[1].frozen);
}

TEST(TensorTable, TensorsMustLieInTheirTiles) {
  StoredTensor good = {.name = "t", .shape = {2, 1024}, .elements = 2048, .offset = 0};
  const auto code_of = [](const StoredTensor& tensor) {
    TensorTable table;
    table.architecture = example().numbers.architecture;
    table.units = {{.name = "u", .tensors = {tensor}, .tiles = {{.begin = 0, .elements = 2048}}}};
    const auto read = tensor_table_from_text(tensor_table_to_text(table, {}), "store");
    return read ? ExitCode::kOk : read.error().code;
  };
  EXPECT_EQ(code_of(good), ExitCode::kOk);
  for (const std::int64_t offset : {std::int64_t{-2048}, std::int64_t{1}, std::int64_t{4096}}) {
    StoredTensor moved = good;
    moved.offset = offset;
    EXPECT_EQ(code_of(moved), ExitCode::kCorrupt) << offset;
  }
  StoredTensor reshaped = good;
  reshaped.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_EQ(code_of(reshaped), ExitCode::kCorrupt);
}

TEST(TensorTable, TilesMustFollowOneAnother) {
  TensorTable table;
  table.architecture = example().numbers.architecture;
  table.units = {{.name = "u", .tensors = {}, .tiles = {{.begin = 2048, .elements = 2048}}}};
  EXPECT_EQ(tensor_table_from_text(tensor_table_to_text(table, {}), "store").error().code,
            ExitCode::kCorrupt);
}

}  // namespace
}  // namespace headrace::train
