// Which state format a store has, by its layout tag; and what a store of a format holds.
//
// Invariant: the tag, the settings of the commit and the bytes of the tiles name one format.
// Thread: any. Failure: what is not so is corrupt data.
#pragma once

#include <cstddef>
#include <string>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "scheduler/plan/state_format.hpp"
#include "tiers/nvme/store.hpp"
#include "train/run_state.hpp"

namespace headrace::train {

// Errors: a tag of an older version (kOperating), one that this version does not know (kCorrupt).
[[nodiscard]] Result<plan::StateFormat> format_of(const tiers::nvme::Store& store);

// `committed` are the settings of the store's commit. Errors: they name another format (kCorrupt).
[[nodiscard]] Status check_format(const tiers::nvme::Store& store, const RunConfig& committed);

// That the table's tiles are those that the store was made for, in this format. Errors: kCorrupt.
[[nodiscard]] Status check_tiles(const tiers::nvme::Store& store,
                                 const TensorTable& table,
                                 const plan::StateFormat& format);

// What a store of these tensors holds in a format.
[[nodiscard]] tiers::nvme::StoreContents contents_of(const TensorTable& table,
                                                     const plan::StateFormat& format,
                                                     const std::string& run_dir);

// Memory that reading the weights of one committed tile takes, its header not counted.
[[nodiscard]] std::size_t committed_tile_bytes(const plan::StateFormat& format,
                                               const plan::TileSpec& tile);

}  // namespace headrace::train
