// What a commit says beside the tiles, and what must not differ on a resume.
//
// Two JSON texts travel in the store: the run state (every commit) and the tensor table (once: the
// architecture and where each tensor lies, enough to read the weights without the run's settings).
// Invariant: a resume continues the numbers or is refused with every difference. Thread: any.
// Failure: damaged text is corrupt data; differences are one usage error with all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "model/architecture.hpp"
#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/plan.hpp"
#include "train/tokens.hpp"

namespace headrace::train {

// The numbers that are not settings.
struct RunNumbers {
  model::Architecture architecture;
  DataIdentity data;  // of data.train
};

struct RunState {
  std::int64_t step = 0;          // steps finished
  std::int64_t update_count = 0;  // updates applied: step less the skipped ones
  std::int64_t tokens = 0;
  std::int64_t skipped_in_row = 0;
  RunConfig config;  // as resolved; compute_threads is set
  RunNumbers numbers;
};

[[nodiscard]] std::string run_state_to_text(const RunState& state);
[[nodiscard]] Result<RunState> run_state_from_text(const std::string& text,
                                                   const std::string& store_path);

// Settings that make the numbers, the architecture and the data: `now` against the commit's.
// run.compute_threads is to be resolved in both. Errors: kUsage, one for each difference.
[[nodiscard]] Status check_same_numbers(const RunState& committed,
                                        const RunConfig& now,
                                        const RunNumbers& numbers_now);

// Of every kind, in words for the log: "tiers.host_memory: \"1GiB\" -> \"2GiB\"".
[[nodiscard]] std::vector<std::string> changed_settings(const RunConfig& before,
                                                        const RunConfig& after);

// ---- the tensor table --------------------------------------------------------------------------

struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0;
  std::int64_t offset = 0;  // elements from the unit's start
  bool frozen = false;
};

struct StoredUnit {
  std::string name;
  std::vector<StoredTensor> tensors;
  std::vector<plan::TileSpec> tiles;
};

struct TensorTable {
  model::Architecture architecture;
  std::int64_t tile_elements = 0;  // that the tiles were cut with
  std::vector<StoredUnit> units;
};

[[nodiscard]] TensorTable make_tensor_table(const model::Architecture& architecture,
                                            const plan::ModelSpec& spec,
                                            const plan::Plan& plan);
// Errors: the plan cuts the units otherwise than the store was made for (another version did).
[[nodiscard]] Status check_same_tiles(const TensorTable& table,
                                      const plan::Plan& plan,
                                      const std::string& store_path);
// `format` is said in words for whoever reads the store; the layout tag is what counts.
[[nodiscard]] std::string tensor_table_to_text(const TensorTable& table,
                                               const plan::StateFormat& format);
[[nodiscard]] Result<TensorTable> tensor_table_from_text(const std::string& text,
                                                         const std::string& store_path);

}  // namespace headrace::train
