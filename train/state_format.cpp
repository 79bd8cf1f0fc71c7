#include "train/state_format.hpp"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "scheduler/exec/state_format.hpp"

namespace headrace::train {

Result<plan::StateFormat> format_of(const tiers::nvme::Store& store) {
  const std::string& tag = store.contents().layout_tag;
  if (exec::is_former_tag(tag)) {
    return operating_error(
               fmt::format("the store '{}' was made by an older version of headrace", store.path()))
        .with_why(fmt::format("its layout is '{}', which is not kept any more", tag))
        .with_hint("export its weights with that version, and train from them with model.path");
  }
  const std::string_view state = exec::state_of_tag(tag);
  if (state.empty()) {
    return corrupt_error(fmt::format("the store '{}' has a layout that is not known: '{}'",
                                     store.path(),
                                     tag))
        .with_hint("it was written by another version of headrace, or is damaged");
  }
  return exec::state_format(state);
}

Status check_format(const tiers::nvme::Store& store, const RunConfig& committed) {
  HEADRACE_ASSIGN(const plan::StateFormat format, format_of(store));
  if (format.name == committed.optim.state) {
    return {};
  }
  return corrupt_error(fmt::format("the store '{}' names two state formats: \"{}\" and \"{}\"",
                                   store.path(),
                                   format.name,
                                   committed.optim.state))
      .with_hint("restore the store from a copy, or start again with --overwrite");
}

Status check_tiles(const tiers::nvme::Store& store,
                   const TensorTable& table,
                   const plan::StateFormat& format) {
  std::size_t tiles = 0;
  for (const StoredUnit& unit : table.units) {
    tiles += unit.tiles.size();
  }
  bool same = tiles == store.contents().tiles.size();
  for (const tiers::nvme::TileBytes& tile : store.contents().tiles) {
    same = same && tile.unit < table.units.size() &&
           tile.tile < table.units[tile.unit].tiles.size() &&
           format.param_extent_bytes(table.units[tile.unit].tiles[tile.tile]) == tile.param_bytes &&
           format.state_extent_bytes(table.units[tile.unit].tiles[tile.tile]) == tile.state_bytes;
  }
  if (same) {
    return {};
  }
  return corrupt_error(
             fmt::format("the tensor table of the store '{}' is not of its tiles", store.path()))
      .with_hint("restore the store from a copy");
}

tiers::nvme::StoreContents contents_of(const TensorTable& table,
                                       const plan::StateFormat& format,
                                       const std::string& run_dir) {
  tiers::nvme::StoreContents contents;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    const std::vector<plan::TileSpec>& tiles = table.units[u].tiles;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      contents.tiles.push_back({.unit = static_cast<std::uint32_t>(u),
                                .tile = static_cast<std::uint32_t>(t),
                                .param_bytes = format.param_extent_bytes(tiles[t]),
                                .state_bytes = format.state_extent_bytes(tiles[t])});
    }
  }
  contents.tensor_table = tensor_table_to_text(table, format);
  contents.layout_tag = exec::layout_tag(format);
  contents.run_dir = run_dir;
  return contents;
}

std::size_t committed_tile_bytes(const plan::StateFormat& format, const plan::TileSpec& tile) {
  const std::size_t floats = static_cast<std::size_t>(tile.elements) * sizeof(float);
  return format.param_extent_bytes(tile) +
         (format.decodes(tile) ? format.state_extent_bytes(tile) + floats : 0);
}

}  // namespace headrace::train
