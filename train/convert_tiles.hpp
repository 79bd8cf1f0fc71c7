// The tiles of a store's last commit in another state format.
//
// Invariant: the target's bytes are a function of the source's commit and the two formats: rounding
// is to nearest (optim_cpu/convert.hpp), bytes that belong to no tensor are zero. Every extent that
// is read is checked against its sums first. Memory: one tile in both formats. Thread: the
// caller's, which flushes subnormals meanwhile, as the optimizer's threads do. Failure: Errors of
// either store and of `progress`; tensors that no tile can hold in groups are corrupt data.
#pragma once

#include "core/error.hpp"
#include "scheduler/plan/state_format.hpp"
#include "tiers/nvme/store.hpp"
#include "train/run_state.hpp"

namespace headrace::train {

// `table` is the source's, checked by check_tiles; the target was made with contents_of() of it.
struct ConvertTiles {
  const TensorTable& table;
  const plan::StateFormat& source_format;
  const plan::StateFormat& target_format;
};

// Writes every tile into the target, with the step that it has in the source; commits nothing.
[[nodiscard]] Status convert_tiles(tiers::nvme::Store& source,
                                   tiers::nvme::Store& target,
                                   const ConvertTiles& how,
                                   const tiers::nvme::StoreProgress& progress);

}  // namespace headrace::train
