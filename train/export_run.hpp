// A run's commit as a Hugging Face directory.
#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace headrace::train {

// Scratch of an export, whatever the model's size.
inline constexpr std::size_t kExportBufferBytes = std::size_t{4} << 20U;

struct ExportRequest {
  std::string run_dir;
  std::string target_dir;  // made if its parent exists
  Dtype dtype = Dtype::kF32;
  bool overwrite = false;  // files that are no export's too
};

struct Exported {
  std::string source;  // "the commit of step 200 of 'runs/demo'"
  std::string target_dir;
  Dtype dtype = Dtype::kF32;
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;  // of the weights
};

// Errors (kUsage): the target is the run's folder, lies in its store, or holds what is not to be
// written over (model::check_export_target). Tile by tile through two buffers: one tile, and
// kExportBufferBytes.
[[nodiscard]] Result<Exported> export_run(const ExportRequest& request);

}  // namespace headrace::train
