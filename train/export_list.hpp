// exports.json in export.dir: which exports a run has made there, and which of them stay.
//
// Invariant: only folders that the list names are removed, and of these only the files that an
// export writes; the list is replaced whole. Thread: one at a time. Failure: Result; another run's
// list is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace headrace::train {

struct ExportEntry {
  std::int64_t step = 0;
  std::optional<double> loss;  // of the evaluation at this step
};

class ExportList {
 public:
  // `run_dir` is whose exports these are.
  [[nodiscard]] static Result<ExportList> open(std::string dir, std::string run_dir);

  [[nodiscard]] const std::vector<ExportEntry>& entries() const { return entries_; }

  [[nodiscard]] bool contains(std::int64_t step) const;
  // "<dir>/step-00000500"
  [[nodiscard]] std::string folder(std::int64_t step) const;
  // With the lowest loss, the earliest among equals.
  [[nodiscard]] std::optional<ExportEntry> best() const;

  // Adds the entry, writes the list, then removes what need not stay: all but the newest `keep`
  // and, where `keep_best`, the best.
  [[nodiscard]] Status add(const ExportEntry& entry,
                           std::optional<std::int64_t> keep,
                           bool keep_best);
  // Removes the exports of steps beyond this one.
  [[nodiscard]] Status cut_back(std::int64_t step);
  // Of an export that was not finished.
  [[nodiscard]] Status remove_folder(std::int64_t step) const;

 private:
  ExportList(std::string dir, std::string run_dir)
      : dir_(std::move(dir)), run_dir_(std::move(run_dir)) {}

  [[nodiscard]] Status read();
  [[nodiscard]] Status write() const;

  [[nodiscard]] std::string path() const { return dir_ + "/exports.json"; }

  std::string dir_;
  std::string run_dir_;
  std::vector<ExportEntry> entries_;  // ascending steps
};

}  // namespace headrace::train
