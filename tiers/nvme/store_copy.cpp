// Copying the last commit of a store into a new one (store.hpp).
//
// Invariant: the source is locked against writers and only read; every extent is verified on its
// way; the target has a commit only when all of it is there, and is removed if it does not get
// that far. Memory: one extent. Thread: the caller's. Failure: Errors of either store.
#include <fmt/format.h>

#include <utility>

#include "core/log.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

Status copy_extents(Store& source, Store& target, const StoreProgress& progress) {
  std::uint64_t total = 0;
  for (const TileBytes& tile : source.contents().tiles) {
    total += tile.param_bytes + tile.state_bytes;
  }
  std::uint64_t done = 0;
  std::vector<std::byte> payload;
  for (const TileBytes& tile : source.contents().tiles) {
    for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
      const std::uint64_t bytes = kind == ExtentKind::kParam ? tile.param_bytes : tile.state_bytes;
      if (bytes == 0) {
        continue;
      }
      const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
      payload.resize(bytes);
      HEADRACE_TRY(source.read_now(key, payload));
      HEADRACE_TRY(target.write_now(key, payload, source.step_of(key)));
      done += bytes;
      if (progress) {
        HEADRACE_TRY(progress(done, total));
      }
    }
  }
  return {};
}

}  // namespace

Result<std::string> copy_store(const StoreLocation& source,
                               const std::vector<StoreFolder>& targets,
                               const StoreProgress& progress) {
  HEADRACE_ASSIGN(const std::unique_ptr<Store> from,
                  Store::open(source.folders, source.id, Store::Access::kRead, false));
  if (!from->last_commit() || from->dirty()) {
    return operating_error(fmt::format("nvme tier: cannot copy the store '{}'", from->path()))
        .with_why(from->dirty() ? "it was written after its last commit, and has one slot a tile"
                                : "it holds no commit");
  }
  // A run may go on from a copy: it has what a run writes to, whether the source had it or not, and
  // an undo slot where the source has one.
  HEADRACE_ASSIGN(std::unique_ptr<Store> to,
                  Store::create({.folders = targets,
                                 .direct_io_required = false,
                                 .undo_slot = from->undo_slot(),
                                 .prewrite = false,
                                 .copy = true},
                                from->contents()));
  const std::string id = to->id();
  const auto copy = [&]() -> Status {
    HEADRACE_TRY(copy_extents(*from, *to, progress));
    return to->commit(*from->last_commit());
  };
  Status copied = copy();
  to.reset();
  if (!copied) {
    std::vector<std::string> folders;
    folders.reserve(targets.size());
    for (const StoreFolder& target : targets) {
      folders.push_back(target.path);
    }
    if (const Status removed = remove_store(folders, id); !removed) {
      log_warning(removed.error().what + ": " + removed.error().why);
    }
    return std::move(copied).error();
  }
  return id;
}

}  // namespace headrace::tiers::nvme
