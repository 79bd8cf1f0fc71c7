#include "train/store_folders.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <utility>

#include "core/config.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"

namespace headrace::train {

using tiers::nvme::Store;

namespace {

// Of the two stores of a conversion that was cut short, the one that the run does not name; empty:
// it names neither, so that nobody can tell which is wanted.
Result<std::string> left_of_conversion(const RunPaths& paths, const StoreReference& noted) {
  HEADRACE_ASSIGN(const std::optional<StoreReference> named, read_store_reference(paths));
  if (!named || noted.replaces.empty()) {
    return std::string();
  }
  return named->id == noted.replaces ? noted.id
         : named->id == noted.id     ? noted.replaces
                                     : std::string();
}

// A conversion that was killed may have renamed store.json and not flushed that: a power cut could
// bring back the name of the store that is about to go.
Status make_name_durable(const RunPaths& paths) {
  HEADRACE_ASSIGN(const std::optional<StoreReference> named, read_store_reference(paths));
  return named && named->committed_step ? write_store_reference(paths, *named) : Status();
}

// Removes what a creation that was killed has left of the store that it had noted, where that does
// not say yet whose it is; of a conversion the store that the run does not name, whatever it says.
// Returns the noted id; empty: none was.
Result<std::string> remove_noted(const RunPaths& paths, const std::string& keep_id) {
  HEADRACE_ASSIGN(const std::optional<StoreReference> noted, CreationNote::read(paths));
  if (!noted) {
    return std::string();
  }
  HEADRACE_ASSIGN(const std::string left, left_of_conversion(paths, *noted));
  if (!left.empty() && left != keep_id) {
    HEADRACE_TRY(make_name_durable(paths));
    HEADRACE_ASSIGN(const bool removed, remove_rest(noted->folders, left));
    if (removed) {
      log_info(fmt::format("removed the store {}, left by a conversion that was cut short", left));
    }
  } else if (noted->id != keep_id) {
    HEADRACE_ASSIGN(const bool removed, tiers::nvme::remove_unfinished(noted->folders, noted->id));
    if (removed) {
      log_info(
          fmt::format("removed the rest of store {}, whose creation was cut short", noted->id));
    }
  }
  return noted->id;
}

void warn(const Error& error) {
  log_warning(fmt::format("looking for stores of earlier starts: {}{}{}",
                          error.what,
                          error.why.empty() ? "" : ": ",
                          error.why));
}

// Those that say that they are of this run, or lie in its own folder. `noted_id` was never
// finished.
void reclaim_stores(const std::vector<std::string>& folders,
                    const RunPaths& paths,
                    const std::string& keep_id,
                    const std::string& noted_id) {
  std::vector<std::string> present;
  std::copy_if(folders.begin(), folders.end(), std::back_inserter(present), is_directory);
  const auto listed = tiers::nvme::list_stores(present);
  if (!listed) {
    return warn(listed.error());
  }
  for (const tiers::nvme::StoreListing& store : *listed) {
    // Of a creation that was cut short not even the number of slots is known, except where one
    // folder was finished and the next one not: that one was noted.
    const bool began =
        store.step >= 0 || (!store.problem.empty() && store.slots > 0 && store.id != noted_id);
    if (store.run_dir == paths.dir && store.id != keep_id && !store.copy && began) {
      log_warning(fmt::format(
          "'{}' is of a run in this folder too, and stays: {}; headrace store remove removes it",
          store.path,
          store.step >= 0 ? fmt::format("it holds a commit of step {}", store.step)
                          : store.problem));
      return;
    }
  }
  if (const auto removed = tiers::nvme::reclaim_orphans(present, paths.dir, keep_id); !removed) {
    return warn(removed.error());
  }
  // In the run's own folder even a store that does not say so is the run's.
  for (const tiers::nvme::StoreListing& store : *listed) {
    if (!store.path.starts_with(paths.dir + "/") || store.id == keep_id || store.locked ||
        !store.run_dir.empty()) {
      continue;
    }
    const Result<bool> removed =
        tiers::nvme::remove_unfinished({parent_path(store.path)}, store.id);
    if (!removed) {
      return warn(removed.error());
    }
    if (*removed) {
      log_info(fmt::format("removed '{}', the rest of a start that was cut short", store.path));
    }
  }
}

}  // namespace

Result<bool> remove_rest(const std::vector<std::string>& folders, const std::string& id) {
  HEADRACE_ASSIGN(bool removed, tiers::nvme::remove_unfinished(folders, id));
  if (std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
        return path_exists(folder + "/" + id);
      })) {
    HEADRACE_TRY(tiers::nvme::remove_store(folders, id));
    removed = true;
  }
  return removed;
}

bool is_left_of_conversion(const std::string& run_dir, const std::string& id) {
  const RunPaths paths{.dir = run_dir};
  const Result<std::optional<StoreReference>> noted = CreationNote::read(paths);
  if (!noted || !*noted) {
    return false;
  }
  const Result<std::string> left = left_of_conversion(paths, **noted);
  return left && *left == id;
}

void reclaim_leftovers(const std::vector<std::string>& folders,
                       const RunPaths& paths,
                       const std::string& keep_id) {
  const Result<std::string> noted_id = remove_noted(paths, keep_id);
  if (!noted_id) {
    warn(noted_id.error());  // the rest can be looked for all the same
  }
  reclaim_stores(folders, paths, keep_id, noted_id ? *noted_id : "");
  // Last: a start that is killed here finds it again.
  if (noted_id && ::unlink(paths.store_making().c_str()) != 0 && errno != ENOENT) {
    warn(errno_error(fmt::format("cannot remove '{}'", paths.store_making()), errno));
  }
}

bool same_folders(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  const auto sorted = [](const std::vector<std::string>& folders) {
    std::vector<std::string> real;
    std::transform(folders.begin(), folders.end(), std::back_inserter(real), real_path);
    std::sort(real.begin(), real.end());
    return real;
  };
  return sorted(one) == sorted(other);
}

Result<std::vector<std::uint64_t>> file_lengths(const Store& store) {
  std::vector<std::uint64_t> lengths;
  for (std::uint32_t folder = 0; folder < store.folder_count(); ++folder) {
    HEADRACE_ASSIGN(const std::uint64_t length, store.file(folder).bytes());
    lengths.push_back(length);
  }
  return lengths;
}

Status check_in_place(const Store& store, const std::vector<std::uint64_t>& bytes) {
  const std::string lost =
      "what was committed is lost; restore the store from a copy, or start "
      "again with --overwrite";
  for (std::uint32_t folder = 0; folder < store.folder_count(); ++folder) {
    const std::string& path = store.data_path(folder);
    struct stat open = {};
    struct stat named = {};
    if (::fstat(store.file(folder).fd(), &open) != 0) {
      return errno_error(fmt::format("cannot look at '{}'", path), errno);
    }
    if (::stat(path.c_str(), &named) != 0 || named.st_dev != open.st_dev ||
        named.st_ino != open.st_ino) {
      return operating_error(fmt::format("the store's file '{}' is gone", path))
          .with_why("it was removed or replaced while the run was writing to it")
          .with_hint(lost);
    }
    if (static_cast<std::uint64_t>(open.st_size) < bytes[folder]) {
      return corrupt_error(fmt::format("the store's file '{}' was cut short", path))
          .with_why(fmt::format("it had {} bytes, and has {}", bytes[folder], open.st_size))
          .with_hint(lost);
    }
  }
  return {};
}

Status keep_folders(RunConfig& config, const std::vector<std::string>& made_in) {
  if (same_folders(paths_of(store_folders(config)), made_in)) {
    return {};
  }
  if (!config.where.contains("tiers.nvme")) {
    config.tiers.nvme.clear();
    for (const std::string& folder : made_in) {
      config.tiers.nvme.emplace_back().path = folder;
    }
    return {};
  }
  std::vector<std::string> quoted;
  quoted.reserve(made_in.size());
  for (const std::string& folder : made_in) {
    quoted.push_back(fmt::format("\"{}\"", folder));
  }
  return usage_error("tiers.nvme names other folders than the run's store is in")
      .with_why(fmt::format("a store stays where it was made: {}", fmt::join(made_in, ", ")))
      .with_hint(fmt::format("--set 'tiers.nvme=[{}]'; to move it: headrace store copy, and its id "
                             "and folder into store.json",
                             fmt::join(quoted, ", ")))
      .with_where(config_place(config, "tiers.nvme"));
}

Status check_can_be_made(const RunConfig& config) {
  for (const NvmeFolder& folder : store_folders(config)) {
    const auto refused = [&](std::string why, std::string hint) {
      return usage_error(fmt::format("nvme tier: cannot use '{}'", folder.path))
          .with_why(std::move(why))
          .with_hint(std::move(hint))
          .with_where(config_place(config, "tiers.nvme"));
    };
    std::string present = folder.path;
    if (path_exists(present) && !is_directory(present)) {
      return refused("it is not a folder", "name a folder of the drive");
    }
    // In the run's folder it is made with its parents; elsewhere the parent must be there.
    const bool own = folder.path.starts_with(config.run.dir + "/");
    while (!path_exists(present)) {
      present = parent_path(present);
    }
    if (!own && present != folder.path && present != parent_path(folder.path)) {
      return refused(fmt::format("there is no folder '{}'", parent_path(folder.path)),
                     "make it, or mount the drive");
    }
    HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(present));
    if (filesystem.kind == FilesystemKind::kTmpfs) {
      return refused(fmt::format("the filesystem is {}: what is written there stays in memory",
                                 filesystem.name),
                     "use a folder on ext4 or xfs");
    }
  }
  return {};
}

Result<std::vector<std::uint64_t>> bytes_by_folder(const tiers::nvme::Store& store) {
  std::vector<std::uint64_t> bytes;
  for (std::uint32_t folder = 0; folder < store.folder_count(); ++folder) {
    HEADRACE_ASSIGN(const std::uint64_t of_folder, store.file(folder).bytes());
    bytes.push_back(of_folder);
  }
  return bytes;
}

Result<std::uint64_t> room_in(const std::vector<NvmeFolder>& folders,
                              const std::vector<std::uint64_t>& own_bytes) {
  std::uint64_t room = 0;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const NvmeFolder& folder = folders[i];
    std::string present = folder.path;
    while (!path_exists(present)) {
      present = parent_path(present);
    }
    HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(present));
    const std::uint64_t most = filesystem.free_bytes + (i < own_bytes.size() ? own_bytes[i] : 0);
    room += std::min(folder.space_bytes.value_or(most), most);
  }
  return room;
}

Status check_room(const std::vector<NvmeFolder>& folders, std::uint64_t bytes) {
  HEADRACE_ASSIGN(const std::uint64_t room, room_in(folders));
  if (bytes <= room) {
    return {};
  }
  return does_not_fit_error("nvme tier: no space for the store")
      .with_why(fmt::format(
          "it takes {}, and its folders have room for {}", format_bytes(bytes), format_bytes(room)))
      .with_hint("free space there, raise the folders' `space`, or use other folders");
}

}  // namespace headrace::train
