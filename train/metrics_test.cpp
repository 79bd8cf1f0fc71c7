// metrics.jsonl: what it says, that it reads back, and where it is cut.
#include "train/metrics.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "train/report.hpp"
#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

StepMetrics row_of(std::int64_t step) {
  StepMetrics row;
  row.step = step;
  row.loss = 1.0 / 3 + static_cast<double>(step);
  row.grad_norm = 0.1 + 0.2;
  row.lr = 1e-3 / 7;
  row.tokens = step * 1024;
  row.step_s = 0.5;
  row.tokens_per_s = 2048;
  row.bound_s = 0.25;
  row.stall_s = {{"nvme_read", 0.125}};
  row.bytes = {{"h2d", 1}, {"nvme_read", std::uint64_t{1} << 40U}};
  row.peak = {.device = 1, .host = 2, .pinned = 3, .process = 4};
  return row;
}

class MetricsTest : public TestFolder {
 protected:
  void write_rows(std::int64_t first, std::int64_t last) {
    auto file = MetricsFile::open(path("metrics.jsonl"), first - 1);
    ASSERT_TRUE(file);
    for (std::int64_t step = first; step <= last; ++step) {
      ASSERT_TRUE(file->append(row_of(step)));
    }
    ASSERT_TRUE(file->sync());
  }

  [[nodiscard]] std::vector<Json> rows() const {
    std::vector<Json> rows;
    std::istringstream text(read("metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      Result<Json> row = parse_json(line);
      EXPECT_TRUE(row) << line;
      rows.push_back(*std::move(row));
    }
    return rows;
  }
};

TEST_F(MetricsTest, NumbersReadBackBitForBit) {
  write_rows(1, 3);
  const std::vector<Json> read = rows();
  ASSERT_EQ(read.size(), 3U);
  for (std::int64_t step = 1; step <= 3; ++step) {
    const Json& row = read[static_cast<std::size_t>(step - 1)];
    const StepMetrics expected = row_of(step);
    EXPECT_EQ(row.require_int("step").value(), step);
    EXPECT_EQ(row.require_double("loss").value(), expected.loss);
    EXPECT_EQ(row.require_double("grad_norm").value(), expected.grad_norm);
    EXPECT_EQ(row.require_double("lr").value(), expected.lr);
    EXPECT_EQ(row.require_int("tokens").value(), expected.tokens);
    EXPECT_TRUE(row.find("skipped")->is_null());
    EXPECT_EQ(row.find("bytes")->require_uint("nvme_read").value(), std::uint64_t{1} << 40U);
    EXPECT_EQ(row.find("peak")->require_uint("process").value(), 4U);
  }
}

TEST_F(MetricsTest, ASkippedStepHasNoNumbersButACause) {
  StepMetrics row = row_of(1);
  row.loss = std::numeric_limits<double>::quiet_NaN();
  row.grad_norm = std::numeric_limits<double>::infinity();
  row.skipped = exec::NonFinite{.tensor = "h.0.attn", .element = 17, .count = 3};
  const Result<Json> read = parse_json(metrics_to_json(row).dump());
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->find("loss")->is_null());
  EXPECT_TRUE(read->find("grad_norm")->is_null());
  EXPECT_EQ(read->find("skipped")->require_string("tensor").value(), "h.0.attn");
  EXPECT_EQ(read->find("skipped")->require_int("element").value(), 17);
  EXPECT_EQ(read->find("skipped")->require_int("count").value(), 3);
}

TEST_F(MetricsTest, AResumeCutsTheRowsOfLostSteps) {
  write_rows(1, 5);
  const std::string before = read("metrics.jsonl");
  write_rows(4, 6);
  const std::vector<Json> read_rows = rows();
  ASSERT_EQ(read_rows.size(), 6U);
  for (std::int64_t step = 1; step <= 6; ++step) {
    EXPECT_EQ(read_rows[static_cast<std::size_t>(step - 1)].require_int("step").value(), step);
  }
  EXPECT_EQ(read("metrics.jsonl").substr(0, before.size()), before);
}

TEST_F(MetricsTest, AFreshRunEmptiesTheFile) {
  write_rows(1, 5);
  write_rows(1, 1);
  EXPECT_EQ(rows().size(), 1U);
}

TEST_F(MetricsTest, HalfALastLineIsDropped) {
  write_rows(1, 3);
  const std::string whole = read("metrics.jsonl");
  write("metrics.jsonl", whole + R"({"step":4,"loss":1.)");
  auto file = MetricsFile::open(path("metrics.jsonl"), 3);
  ASSERT_TRUE(file);
  EXPECT_EQ(read("metrics.jsonl"), whole);
}

TEST_F(MetricsTest, DamageInAKeptRowIsAnErrorAndLeavesTheFile) {
  write_rows(1, 3);
  const std::string good = read("metrics.jsonl");
  for (const std::string& damaged : {"{\"step\":1\n" + good, "[]\n" + good, good + good}) {
    write("metrics.jsonl", damaged);
    auto file = MetricsFile::open(path("metrics.jsonl"), 3);
    ASSERT_FALSE(file) << damaged;
    EXPECT_EQ(file.error().code, ExitCode::kCorrupt);
    EXPECT_EQ(read("metrics.jsonl"), damaged);
  }
}

TEST(StepLine, NamesTheLargestStallAndThePercentOfTheBound) {
  StepMetrics row = row_of(12);
  row.stall_s = {{"h2d", 0.002}, {"nvme_read", 0.125}};
  const std::string line = format_step(row, 200);
  EXPECT_NE(line.find("step  12/200"), std::string::npos) << line;
  EXPECT_NE(line.find("50 % of bound"), std::string::npos) << line;
  EXPECT_NE(line.find("stall nvme_read 125 ms"), std::string::npos) << line;
  row.skipped = exec::NonFinite{.tensor = "h.0.attn", .element = 17, .count = 3};
  EXPECT_NE(format_step(row, 200).find("h.0.attn[17], 3 in all"), std::string::npos);
}

TEST(SettingsTable, CutsLongValuesIntoLines) {
  const std::string table =
      format_settings({{.name = "a", .value = std::string(150, 'x')}, {.name = "b", .value = ""}});
  std::istringstream lines(table);
  std::size_t count = 0;
  std::size_t width = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    width = width == 0 ? line.size() : width;
    EXPECT_EQ(line.size(), width);
  }
  EXPECT_EQ(count, 6U);  // two rules, three lines of x, one of b
}

}  // namespace
}  // namespace headrace::train
