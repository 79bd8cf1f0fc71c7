// [export]: the weights of a commit as a Hugging Face directory, written by a thread of its own
// while the run goes on.
//
// Invariant: an export reads the slots that the last commit names, and no commit is made while one
// is under way (the trainer calls finish() first), so that these stay whole; a folder without
// config.json is an unfinished export; what lies in export.dir and is not in its exports.json is
// never touched. Memory is taken at open(). Thread: all calls by the trainer's. Failure: an export
// that fails is reported and dropped, and the run goes on; open() refuses a folder of another run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::train {

// What an export takes beside what training takes: its buffer, a tile and a header.
[[nodiscard]] std::size_t export_memory_bytes(std::size_t tile_bytes_max);

struct ExportCounts {
  std::int64_t written = 0;
  std::int64_t failed = 0;
};

class PeriodicExport {
 public:
  // Null where export.every is "none". Exports of steps beyond `step`, the one that the run goes on
  // from, are removed: they belong to a course that is not taken again. `store` outlives this.
  [[nodiscard]] static Result<std::unique_ptr<PeriodicExport>> open(const RunConfig& config,
                                                                    tiers::nvme::Store& store,
                                                                    std::int64_t step);
  virtual ~PeriodicExport() = default;

  // At the end of a step, once: whether its weights are to be exported.
  [[nodiscard]] virtual bool due(std::int64_t step) const = 0;
  // The commit of `step` has just been made; `loss` is its evaluation's, where there was one.
  virtual void start(std::int64_t step, std::optional<double> loss) = 0;
  // Waits for the export that is under way, if one is. An interrupt ends it unfinished.
  virtual void finish() = 0;
  [[nodiscard]] virtual ExportCounts counts() const = 0;
};

}  // namespace headrace::train
