// What doctor says of folders and runs: facts that hold, problems that would stop a start, and
// nothing left behind.
#include "train/doctor.hpp"

#include <gtest/gtest.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "train/probe_nvme.hpp"
#include "train/run_dir.hpp"
#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

class DoctorTest : public TestFolder {
 protected:
  [[nodiscard]] RunConfig config() const {
    RunConfig config;
    config.run.dir = path("run");
    config.tiers.direct_io = "auto";
    return config;
  }

  [[nodiscard]] static NvmeFolder folder(const std::string& path) {
    NvmeFolder folder;
    folder.path = path;
    return folder;
  }
};

bool stops(const Finding& finding) {
  return !can_train({finding});
}

TEST_F(DoctorTest, AFolderThatWillDoIsToldWithFiguresAndLeftAsItWas) {
  const Finding finding = examine_folder(config(), folder(folder_));
  EXPECT_FALSE(stops(finding)) << format_findings({finding});
  EXPECT_GT(finding.facts.find("free_bytes")->as_uint(), 0U);
  EXPECT_EQ(finding.facts.find("writable")->as_bool(), true);
  EXPECT_EQ(finding.facts.find("exists")->as_bool(), true);
  EXPECT_EQ(finding.facts.find("stores")->as_int(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  const Finding later = examine_folder(config(), folder(path("later")));
  EXPECT_FALSE(stops(later)) << format_findings({later});
  EXPECT_EQ(later.facts.find("exists")->as_bool(), false);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(DoctorTest, AFolderThatAStartWouldRefuseIsAnError) {
  write("file", "text");
  EXPECT_TRUE(stops(examine_folder(config(), folder(path("file")))));
  EXPECT_TRUE(stops(examine_folder(config(), folder(path("no/parent")))));
  const Finding in_memory = examine_folder(config(), folder("/dev/shm/headrace"));
  ASSERT_TRUE(stops(in_memory));
  EXPECT_NE(in_memory.problems.front().what.find("tmpfs"), std::string::npos);
}

TEST_F(DoctorTest, DirectIoMustWorkWhereTheSettingsInsist) {
  // A tmpfs takes direct I/O on new kernels only, and writes in any case.
  const FolderTrial trial = try_folder("/dev/shm");
  ASSERT_TRUE(trial.writing) << trial.writing.error().why;
  RunConfig insists = config();
  insists.tiers.direct_io = "on";
  const Finding finding = examine_folder(insists, folder(folder_));
  EXPECT_EQ(stops(finding), !*finding.facts.find("direct_io")->as_bool())
      << format_findings({finding});
  EXPECT_FALSE(try_folder(path("nowhere")).writing);
}

TEST_F(DoctorTest, ARunThatTrainsElsewhereIsInUse) {
  ASSERT_TRUE(make_directory(path("run"), Parents::kMake));
  std::vector<Finding> findings = examine_run(config());
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_FALSE(stops(findings[0]));
  EXPECT_EQ(*findings[1].facts.find("path")->as_string(), path("run/store"));
  const Result<RunLock> lock = RunLock::take(path("run"));
  ASSERT_TRUE(lock);
  findings = examine_run(config());
  EXPECT_TRUE(stops(findings[0]));
  EXPECT_EQ(findings[0].facts.find("in_use")->as_bool(), true);
}

TEST_F(DoctorTest, ARunsFolderThatCannotBeWrittenIsAnError) {
  write("file", "text");
  RunConfig elsewhere = config();
  elsewhere.tiers.nvme = {folder(path("store"))};
  EXPECT_TRUE(can_train(examine_run(elsewhere))) << format_findings(examine_run(elsewhere));
  for (const std::string& dir : {path("file"), path("file/run"), std::string("/proc/run")}) {
    elsewhere.run.dir = dir;
    const std::vector<Finding> findings = examine_run(elsewhere);
    EXPECT_TRUE(stops(findings[0])) << dir;
    EXPECT_FALSE(stops(findings[1])) << dir;
  }
}

TEST_F(DoctorTest, TheReportHasASectionALineAndEveryProblem) {
  const std::vector<Finding> machine = examine_machine();
  const Json json = findings_to_json(machine);
  for (const char* section :
       {"cpu", "memory", "huge_pages", "locked_memory", "numa", "io_uring", "limits", "openmp"}) {
    EXPECT_NE(json.find(section), nullptr) << section;
  }
  EXPECT_GE(json.find("cpu")->find("cores")->as_int(), 1);
  for (const Json& node : *json.find("numa")->find("nodes")->as_array()) {
    for (const Json& core : *node.find("cores")->as_array()) {
      EXPECT_GE(core.as_int(), 0);
    }
  }
  EXPECT_GT(json.find("memory")->find("total_bytes")->as_uint(), 0U);
  EXPECT_TRUE(json.find("folders")->as_array()->empty());
  const std::vector<Finding> findings = {
      {.section = "one", .text = "a\nb", .problems = {{.what = "slow", .hint = "mend it"}}},
      {.section = "two", .text = "c", .problems = {{.stops_training = true, .what = "broken"}}}};
  EXPECT_EQ(format_findings(findings),
            "one            a\n"
            "               b\n"
            "  warning: slow\n"
            "  hint   : mend it\n"
            "two            c\n"
            "  error  : broken\n");
  const Json report = findings_to_json(findings);
  EXPECT_EQ(report.find("problems")->as_array()->size(), 2U);
  EXPECT_EQ(report.find("can_train")->as_bool(), false);
}

}  // namespace
}  // namespace headrace::train
