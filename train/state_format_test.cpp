// What a store's layout tag says of its state.
#include "train/state_format.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "scheduler/exec/state_format.hpp"
#include "tiers/nvme/store.hpp"
#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::Store;

class StateFormatTest : public TestFolder {
 protected:
  // A store of one frozen tile.
  std::unique_ptr<Store> store_of(const std::string& tag) {
    tiers::nvme::StoreContents contents;
    contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = 4096, .state_bytes = 0}};
    contents.tensor_table = "{}";
    contents.layout_tag = tag;
    contents.run_dir = path("run");
    auto store = Store::create(
        {.folders = {{.path = path("store")}}, .direct_io_required = false, .slots = 1}, contents);
    EXPECT_TRUE(store) << format_error(store.error(), false);
    return std::move(*store);
  }
};

TEST_F(StateFormatTest, EveryFormatIsFoundByItsOwnTag) {
  for (const char* state : {"fp32", "bf16", "q8"}) {
    const auto store = store_of(exec::layout_tag(exec::state_format(state)));
    const Result<plan::StateFormat> format = format_of(*store);
    ASSERT_TRUE(format);
    EXPECT_EQ(format->name, state);
  }
}

TEST_F(StateFormatTest, LayoutsOfOlderVersionsAreRefusedAsSuch) {
  const auto store = store_of("bf16/q8");
  const Result<plan::StateFormat> format = format_of(*store);
  ASSERT_FALSE(format);
  const std::string text = format_error(format.error(), false);
  EXPECT_NE(text.find("made by an older version"), std::string::npos) << text;
  EXPECT_NE(text.find("model.path"), std::string::npos) << text;
  EXPECT_EQ(format.error().code, ExitCode::kOperating);
}

TEST_F(StateFormatTest, LayoutsThatNobodyKnowsAreCorrupt) {
  const auto store = store_of("bf16/q7");
  const Result<plan::StateFormat> format = format_of(*store);
  ASSERT_FALSE(format);
  EXPECT_EQ(format.error().code, ExitCode::kCorrupt);
}

}  // namespace
}  // namespace headrace::train
