#include "train/convert_tiles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "core/float_environment.hpp"
#include "optim_cpu/convert.hpp"
#include "scheduler/exec/state_format.hpp"
#include "tiers/memory.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::ExtentKey;
using tiers::nvme::ExtentKind;
using tiers::nvme::Store;

// A tile's two extents, of the largest tile of a format.
struct Extents {
  std::span<std::byte> param;
  std::span<std::byte> state;
};

// What a format's largest extents take, pages all of them.
struct ExtentsBytes {
  std::size_t param = 0;
  std::size_t state = 0;

  [[nodiscard]] std::size_t sum() const { return param + state; }
};

ExtentsBytes largest_extents(const TensorTable& table, const plan::StateFormat& format) {
  ExtentsBytes bytes;
  for (const StoredUnit& unit : table.units) {
    for (const plan::TileSpec& tile : unit.tiles) {
      bytes.param = std::max(bytes.param, format.param_extent_bytes(tile));
      bytes.state = std::max(bytes.state, format.state_extent_bytes(tile));
    }
  }
  return bytes;
}

// A tile of a unit, by its place in the store.
struct TilePlace {
  std::uint32_t unit = 0;
  std::uint32_t tile = 0;
};

class Converter {
 public:
  Converter(Store& source,
            Store& target,
            const ConvertTiles& how,
            std::unique_ptr<tiers::Arena> memory)
      : source_(source), target_(target), how_(how), memory_(std::move(memory)) {
    const ExtentsBytes read = largest_extents(how.table, how.source_format);
    const ExtentsBytes written = largest_extents(how.table, how.target_format);
    std::byte* at = memory_->data();
    read_ = {.param = {at, read.param}, .state = {at + read.param, read.state}};
    at += read.sum();
    written_ = {.param = {at, written.param}, .state = {at + written.param, written.state}};
  }

  Status convert(const TilePlace& place) {
    const plan::TileSpec& tile = how_.table.units[place.unit].tiles[place.tile];
    const Extents from = extents(read_, how_.source_format, tile);
    HEADRACE_TRY(source_.read_now(key(place, ExtentKind::kParam), from.param));
    if (tile.frozen) {
      return write(place, ExtentKind::kParam, from.param);  // floats in every format
    }
    HEADRACE_TRY(source_.read_now(key(place, ExtentKind::kState), from.state));
    const Extents to = extents(written_, how_.target_format, tile);
    std::memset(to.param.data(), 0, to.param.size());
    std::memset(to.state.data(), 0, to.state.size());
    HEADRACE_TRY(convert_tensors(how_.table.units[place.unit], tile, from, to));
    HEADRACE_TRY(write(place, ExtentKind::kParam, to.param));
    return write(place, ExtentKind::kState, to.state);
  }

 private:
  static ExtentKey key(const TilePlace& place, ExtentKind kind) {
    return {.unit = place.unit, .tile = place.tile, .kind = kind};
  }

  static Extents extents(const Extents& memory,
                         const plan::StateFormat& format,
                         const plan::TileSpec& tile) {
    return {.param = memory.param.first(format.param_extent_bytes(tile)),
            .state = memory.state.first(format.state_extent_bytes(tile))};
  }

  Status write(const TilePlace& place, ExtentKind kind, std::span<const std::byte> payload) {
    const ExtentKey extent = key(place, kind);
    return target_.write_now(extent, payload, source_.step_of(extent));
  }

  // Tensor by tensor, since a group of elements never holds two.
  Status convert_tensors(const StoredUnit& unit,
                         const plan::TileSpec& tile,
                         const Extents& from,
                         const Extents& to) {
    const optim::Optimizer& source_format = exec::optimizer_of(how_.source_format);
    const optim::Optimizer& target_format = exec::optimizer_of(how_.target_format);
    const std::int64_t group = std::max(source_format.group_elements, target_format.group_elements);
    for (const StoredTensor& tensor : unit.tensors) {
      const std::int64_t begin = std::max(tensor.offset, tile.begin);
      const std::int64_t end =
          std::min(tensor.offset + tensor.elements, tile.begin + tile.elements);
      if (begin >= end) {
        continue;
      }
      if ((begin - tile.begin) % group != 0) {
        return corrupt_error(fmt::format("'{}' of the store '{}' does not start with a group",
                                         tensor.name,
                                         source_.path()))
            .with_why(fmt::format("groups have {} elements", group))
            .with_hint("it was written by another version of headrace, or is damaged");
      }
      optim::convert_state(source_format,
                           memory(from, tile),
                           target_format,
                           memory(to, tile),
                           {.begin = begin - tile.begin, .elements = end - begin});
    }
    return {};
  }

  static optim::TileMemory memory(const Extents& extents, const plan::TileSpec& tile) {
    return {.param = extents.param.data(),
            .state = extents.state.data(),
            .tile_elements = tile.elements};
  }

  Store& source_;
  Store& target_;
  const ConvertTiles& how_;
  std::unique_ptr<tiers::Arena> memory_;
  Extents read_, written_;
};

}  // namespace

Status convert_tiles(Store& source,
                     Store& target,
                     const ConvertTiles& how,
                     const tiers::nvme::StoreProgress& progress) {
  const FlushToZeroScope flush_to_zero;
  const std::size_t bytes = largest_extents(how.table, how.source_format).sum() +
                            largest_extents(how.table, how.target_format).sum();
  HEADRACE_ASSIGN(std::unique_ptr<tiers::Arena> memory,
                  tiers::Arena::create(tiers::Tier::kHost, "convert", bytes));
  Converter converter(source, target, how, std::move(memory));
  const std::vector<tiers::nvme::TileBytes>& tiles = source.contents().tiles;
  std::uint64_t total = 0;
  for (const tiers::nvme::TileBytes& tile : tiles) {
    total += tile.param_bytes + tile.state_bytes;
  }
  std::uint64_t done = 0;
  for (const tiers::nvme::TileBytes& tile : tiles) {
    HEADRACE_TRY(converter.convert({.unit = tile.unit, .tile = tile.tile}));
    done += tile.param_bytes + tile.state_bytes;
    HEADRACE_TRY(progress(done, total));
  }
  return {};
}

}  // namespace headrace::train
