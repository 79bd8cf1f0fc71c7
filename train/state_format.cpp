#include "train/state_format.hpp"

#include <fmt/format.h>

#include <string_view>

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

std::size_t committed_tile_bytes(const plan::StateFormat& format, const plan::TileSpec& tile) {
  const std::size_t floats = static_cast<std::size_t>(tile.elements) * sizeof(float);
  return format.param_extent_bytes(tile) +
         (format.decodes(tile) ? format.state_extent_bytes(tile) + floats : 0);
}

}  // namespace headrace::train
