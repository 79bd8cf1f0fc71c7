// exports.json: which exports stay, and that nothing else is touched.
#include "train/export_list.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/files.hpp"
#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

class ExportListTest : public TestFolder {
 protected:
  void make_export(const ExportList& list, std::int64_t step) const {
    ASSERT_TRUE(make_directory(list.folder(step), Parents::kMustExist));
    for (const char* name : {"config.json",
                             "generation_config.json",
                             "tokenizer.json",
                             "model-00001-of-00002.safetensors",
                             "model-00002-of-00002.safetensors",
                             "model.safetensors.index.json"}) {
      ASSERT_TRUE(write_file_atomically(list.folder(step) + "/" + name, "x"));
    }
  }

  [[nodiscard]] ExportList open() const { return ExportList::open(path(""), "run").value(); }
};

TEST_F(ExportListTest, TheNewestAndTheBestStay) {
  ExportList list = open();
  const double losses[] = {3, 1, 2, 4, 1};
  for (std::int64_t i = 0; i < 5; ++i) {
    make_export(list, 10 * (i + 1));
    ASSERT_TRUE(list.add({.step = 10 * (i + 1), .loss = losses[i]}, 2, true));
  }
  EXPECT_FALSE(path_exists(list.folder(10)));
  EXPECT_TRUE(path_exists(list.folder(20)));  // the earliest of the best
  EXPECT_FALSE(path_exists(list.folder(30)));
  EXPECT_TRUE(path_exists(list.folder(40)));
  EXPECT_TRUE(path_exists(list.folder(50)));
  const ExportList again = open();
  ASSERT_EQ(again.entries().size(), 3U);
  EXPECT_EQ(again.best()->step, 20);
  EXPECT_EQ(again.entries()[1].loss, 4.0);
}

TEST_F(ExportListTest, AllStayWithoutALimit) {
  ExportList list = open();
  for (std::int64_t step = 1; step <= 4; ++step) {
    make_export(list, step);
    ASSERT_TRUE(list.add({.step = step, .loss = std::nullopt}, std::nullopt, false));
  }
  EXPECT_EQ(open().entries().size(), 4U);
  EXPECT_TRUE(path_exists(list.folder(1)));
  EXPECT_FALSE(open().best());
}

TEST_F(ExportListTest, CuttingBackRemovesLaterExportsOnly) {
  ExportList list = open();
  for (const std::int64_t step : {10, 20, 30}) {
    make_export(list, step);
    ASSERT_TRUE(list.add({.step = step, .loss = std::nullopt}, std::nullopt, false));
  }
  ASSERT_TRUE(list.cut_back(20));
  EXPECT_TRUE(open().contains(20));
  EXPECT_FALSE(open().contains(30));
  EXPECT_FALSE(path_exists(list.folder(30)));
}

TEST_F(ExportListTest, WhatAUserPutThereStays) {
  ExportList list = open();
  make_export(list, 10);
  make_export(list, 20);  // on no list
  ASSERT_TRUE(write_file_atomically(list.folder(10) + "/notes.txt", "mine"));
  ASSERT_TRUE(list.add({.step = 10, .loss = std::nullopt}, std::nullopt, false));
  ASSERT_TRUE(list.cut_back(0));
  EXPECT_TRUE(path_exists(list.folder(10) + "/notes.txt"));
  EXPECT_FALSE(path_exists(list.folder(10) + "/config.json"));
  EXPECT_TRUE(path_exists(list.folder(20) + "/config.json"));
}

TEST_F(ExportListTest, AnotherRunsListAndADamagedOneAreRefused) {
  ExportList list = open();
  ASSERT_TRUE(list.add({.step = 10, .loss = 1.5}, std::nullopt, false));
  const auto other = ExportList::open(path(""), "other");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ExitCode::kUsage);
  for (const char* text : {"{", "{}", R"({"run_dir":"run","exports":[{"step":2},{"step":1}]})"}) {
    ASSERT_TRUE(write_file_atomically(path("exports.json"), text));
    const auto damaged = ExportList::open(path(""), "run");
    ASSERT_FALSE(damaged) << text;
    EXPECT_EQ(damaged.error().code, ExitCode::kCorrupt) << text;
  }
}

}  // namespace
}  // namespace headrace::train
