// Which state format a store has, by its layout tag.
//
// Invariant: the tag and the settings of the commit name one format. Thread: any. Failure: what is
// not so is corrupt data.
#pragma once

#include <cstddef>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "scheduler/plan/state_format.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::train {

// Errors: a tag of an older version (kOperating), one that this version does not know (kCorrupt).
[[nodiscard]] Result<plan::StateFormat> format_of(const tiers::nvme::Store& store);

// `committed` are the settings of the store's commit. Errors: they name another format (kCorrupt).
[[nodiscard]] Status check_format(const tiers::nvme::Store& store, const RunConfig& committed);

// Memory that reading the weights of one committed tile takes, its header not counted.
[[nodiscard]] std::size_t committed_tile_bytes(const plan::StateFormat& format,
                                               const plan::TileSpec& tile);

}  // namespace headrace::train
