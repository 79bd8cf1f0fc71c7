// Reading everything that the last commit names (store.hpp).
//
// Invariant: every damage is told with file, offset and extent; a damage ends nothing, except where
// no answer could be trusted. Thread: the caller's. Failure: what is no damage is an Error.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tiers/nvme/store_state.hpp"
#include "tiers/nvme/store_superblocks.hpp"

namespace headrace::tiers::nvme {
namespace {

using OnProblem = std::function<void(const Error&)>;

// What load() found may have been damaged since, and the copy that it did not use is looked at here
// only.
void verify_metadata(const StoreState& state, const OnProblem& on_problem) {
  for (const StoreFile& part : state.files) {
    const Result<SuperblockCopies> copies = read_superblocks(*part.file);
    if (!copies) {
      on_problem(copies.error());
      continue;
    }
    if (copies->damaged) {
      on_problem(*copies->damaged);
    }
    const auto check = [&](const format::Region& region, const char* what) {
      const Result<std::vector<std::byte>> bytes = read_region(*part.file, region);
      if (!bytes) {
        on_problem(bytes.error());
      } else if (hash_bytes(*bytes) != region.xxh3) {
        on_problem(
            corrupt_error(fmt::format("nvme tier: the store '{}' is damaged", part.file->path()))
                .with_why(fmt::format(
                    "the checksum of its {} at offset {} is wrong", what, region.offset)));
      }
    };
    check(part.block.tile_table, "tile table");
    check(part.block.tensor_table, "tensor table");
    check(part.block.run_dir, "run folder");
    if (part.block.format_version > 1) {
      check(part.block.folder_paths, "list of folders");
    }
    if (part.block.generation > 0) {
      check(part.block.map, "commit record");
    }
  }
}

// Checks one extent through the scratch memory.
Status verify_extent(const StoreState& state, const ExtentKey& key, bool any_step) {
  const ExtentPlace at = state.read_place(key);
  BlockFile& file = *state.files[at.folder].file;
  const std::span<std::byte> header = state.header.bytes().first(at.header_bytes);
  HEADRACE_TRY(file.read(at.offset, header));
  std::optional<std::int64_t> step_wanted;
  if (!any_step) {
    step_wanted = state.step(key);
  }
  if (auto problem = format::extent_header_problem(state.identity(key, at), step_wanted, header)) {
    return state.corrupt(key, at, std::move(*problem));
  }
  const std::uint64_t chunk = state.scratch.bytes().size();
  for (std::uint64_t begin = 0; begin < at.payload_bytes; begin += chunk) {
    const std::span<std::byte> part =
        state.scratch.bytes().first(std::min(chunk, at.payload_bytes - begin));
    HEADRACE_TRY(file.read(at.offset + header.size() + begin, part));
    for (std::uint64_t i = 0; i < format::sum_count(part.size()); ++i) {
      const std::uint64_t sub_block = begin / kSumBlockBytes + i;
      if (format::sub_block_sum(part, i) != format::extent_sum(header, sub_block)) {
        return state.corrupt(key, at, sub_block_problem(at, sub_block));
      }
    }
  }
  return {};
}

}  // namespace

Result<std::uint64_t> Store::verify(const std::function<void(const Error&)>& on_problem) {
  verify_metadata(*state_, on_problem);
  if (dirty()) {
    on_problem(operating_error(fmt::format("nvme tier: the store '{}' is dirty", path()))
                   .with_why("it was written since its last commit, so its tiles may be of "
                             "different steps"));
  }
  const bool any_step = dirty();
  std::uint64_t checked = 0;
  for (const format::TileEntry& tile : state_->tiles) {
    for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
      const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
      if (kind == ExtentKind::kState && tile.state_bytes == 0) {
        continue;
      }
      if (!last_commit() && step_of(key) == kNeverWritten) {
        continue;
      }
      if (Status status = verify_extent(*state_, key, any_step); !status) {
        if (status.error().code != ExitCode::kCorrupt &&
            status.error().code != ExitCode::kOperating) {
          return std::move(status).error();
        }
        on_problem(status.error());
      }
      ++checked;
    }
  }
  return checked;
}

}  // namespace headrace::tiers::nvme
