#include "train/run_dir.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "core/files.hpp"
#include "core/json.hpp"
#include "core/log.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::Store;

constexpr std::uint64_t kReferenceBytesMax = std::uint64_t{64} << 10U;

bool lies_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}

bool lies_in_run(const StoreReference& reference, const RunPaths& paths) {
  return std::all_of(reference.folders.begin(),
                     reference.folders.end(),
                     [&](const std::string& folder) { return lies_below(folder, paths.dir); });
}

// "'<folder>/<id>'" of the folders that have no such part.
std::vector<std::string> missing_parts(const StoreReference& reference) {
  std::vector<std::string> missing;
  for (const std::string& folder : reference.folders) {
    if (!path_exists(folder + "/" + reference.id)) {
      missing.push_back(fmt::format("'{}/{}'", folder, reference.id));
    }
  }
  return missing;
}

// What the store itself cannot know: that the run had a commit in it.
Error lost_commit(const StoreReference& reference, const std::string& why) {
  return corrupt_error(fmt::format("the store '{}/{}' has lost its commit",
                                   reference.folders.front(),
                                   reference.id))
      .with_why(fmt::format("this run committed step {}; {}", *reference.committed_step, why))
      .with_hint("restore the store from a copy, or start again with --overwrite");
}

Error written_since(const Store& store, const std::string& hint) {
  return operating_error(
             fmt::format("the store '{}' was written after its last commit", store.path()))
      .with_why(
          fmt::format("the run went on past step {} and did not end cleanly; with one slot a tile "
                      "the commit is gone",
                      store.last_commit()->step))
      .with_hint(hint);
}

Result<Beginning> begin_with(std::unique_ptr<Store> store,
                             const StoreReference& reference,
                             const RunPaths& paths,
                             const BeginOptions& options) {
  Beginning beginning;
  if (options.overwrite) {
    beginning.replaced = reference;
    return beginning;
  }
  if (!store->last_commit()) {
    if (options.resume == ResumeMode::kRequired) {
      return usage_error(fmt::format("'{}' holds no commit to resume", paths.dir))
          .with_why("the run never ended cleanly")
          .with_hint("leave --resume required out to start it again");
    }
    log_warning(fmt::format("'{}' holds a store without a commit: starting again", paths.dir));
    beginning.replaced = reference;
    return beginning;
  }
  if (options.resume == ResumeMode::kNever) {
    return usage_error(
               fmt::format("'{}' holds a commit of step {}", paths.dir, store->last_commit()->step))
        .with_why("--resume never would lose it")
        .with_hint("add --overwrite, or choose another run.dir");
  }
  if (store->dirty()) {
    return written_since(*store, "start again with --overwrite, or from another folder");
  }
  beginning.resumed = std::move(store);
  beginning.folders = reference.folders;
  return beginning;
}

}  // namespace

bool is_run_directory(const std::string& path) {
  const RunPaths paths{.dir = path};
  return path_exists(paths.store()) || path_exists(paths.config());
}

namespace {

// From one of the run's files that name a store. Nothing: the file is not there.
Result<std::optional<StoreReference>> read_reference(const RunPaths& paths,
                                                     const std::string& path) {
  if (!path_exists(path)) {
    return std::optional<StoreReference>();
  }
  const auto damaged = [&](const Error& error) {
    return corrupt_error(fmt::format("'{}' cannot be read", path))
        .with_why(error.what)
        .with_hint("it holds the folder and the id of the run's store: headrace store list");
  };
  HEADRACE_ASSIGN(const std::uint64_t bytes, file_size_bytes(path));
  if (bytes > kReferenceBytesMax) {
    return damaged(corrupt_error(fmt::format("it has {} bytes", bytes)));
  }
  HEADRACE_ASSIGN(const std::string text, read_file(path, kReferenceBytesMax));
  Result<Json> json = parse_json(text);
  if (!json) {
    return damaged(json.error());
  }
  Result<std::string> id = json->require_string("id");
  Result<const Json::Array*> folders = json->require_array("folders");
  if (!folders || !id) {
    return damaged(folders ? id.error() : folders.error());
  }
  StoreReference reference;
  reference.id = *std::move(id);
  for (const Json& folder : **folders) {
    if (folder.as_string() == nullptr) {
      return damaged(corrupt_error("a folder is no text"));
    }
    reference.folders.push_back(absolute_path(paths.dir, *folder.as_string()));
  }
  if (reference.folders.empty()) {
    return damaged(corrupt_error("it names no folder"));
  }
  if (const Json* step = json->find("committed_step")) {
    reference.committed_step = step->as_int();
    reference.never_committed = step->is_null();
  }
  if (json->find("replaces") != nullptr) {
    Result<std::string> replaces = json->require_string("replaces");
    if (!replaces) {
      return damaged(replaces.error());
    }
    reference.replaces = *std::move(replaces);
  }
  return std::optional(std::move(reference));
}

Status write_reference(const RunPaths& paths,
                       const StoreReference& reference,
                       const std::string& path) {
  Json json = Json::object();
  Json folders = Json::array();
  for (const std::string& folder : reference.folders) {
    const bool below = lies_below(folder, paths.dir);
    folders.push_back(below ? folder.substr(paths.dir.size() + 1) : folder);
  }
  json.add("folders", std::move(folders));
  json.add("id", reference.id);
  json.add("committed_step", Json(reference.committed_step));
  if (!reference.replaces.empty()) {
    json.add("replaces", reference.replaces);
  }
  return write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

Result<std::optional<StoreReference>> read_store_reference(const RunPaths& paths) {
  return read_reference(paths, paths.store());
}

Status write_store_reference(const RunPaths& paths, const StoreReference& reference) {
  return write_reference(paths, reference, paths.store());
}

Result<CreationNote> CreationNote::write(const RunPaths& paths, const StoreReference& reference) {
  if (path_exists(paths.store_making())) {
    return operating_error(
               fmt::format("what an earlier start of '{}' has left is still there", paths.dir))
        .with_why("it could not be removed (see the warnings), and is still noted")
        .with_hint("end what uses it, or remove it with headrace store remove, then try again");
  }
  HEADRACE_TRY(write_reference(paths, reference, paths.store_making()));
  return CreationNote(paths.store_making());
}

Result<std::optional<StoreReference>> CreationNote::read(const RunPaths& paths) {
  return read_reference(paths, paths.store_making());
}

CreationNote::~CreationNote() {
  // Where it stays, the next start finds nothing unfinished under that id, and removes it.
  if (!path_.empty()) {
    static_cast<void>(::unlink(path_.c_str()));
  }
}

std::vector<NvmeFolder> store_folders(const RunConfig& config) {
  if (!config.tiers.nvme.empty()) {
    return config.tiers.nvme;
  }
  NvmeFolder folder;
  folder.path = config.run.dir + "/store";
  return {folder};
}

std::vector<std::string> paths_of(const std::vector<NvmeFolder>& folders) {
  std::vector<std::string> paths;
  paths.reserve(folders.size());
  for (const NvmeFolder& folder : folders) {
    paths.push_back(folder.path);
  }
  return paths;
}

void MadeFolders::remove() noexcept {
  for (; !paths_.empty(); paths_.pop_back()) {
    ::rmdir(paths_.back().c_str());  // one that has come to hold something stays
  }
}

Result<MadeFolders> MadeFolders::make(const std::string& path) {
  MadeFolders made;
  for (std::string folder = path; !path_exists(folder); folder = parent_path(folder)) {
    made.paths_.insert(made.paths_.begin(), folder);
  }
  HEADRACE_TRY(make_directory(path, Parents::kMake));
  return made;
}

Result<RunLock> RunLock::take(const std::string& dir) {
  HEADRACE_ASSIGN(UniqueFd folder, open_file(dir, O_RDONLY | O_DIRECTORY));
  constexpr int kTries = 10;
  constexpr std::chrono::milliseconds kPause{10};
  int failure = 0;
  for (int i = 0; i < kTries; ++i) {
    failure = ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (failure != EWOULDBLOCK) {
      break;
    }
    std::this_thread::sleep_for(kPause);
  }
  if (failure != 0) {
    if (failure == EWOULDBLOCK) {
      return operating_error(fmt::format("another process is training in '{}'", dir))
          .with_hint("wait for it, stop it, or choose another run.dir");
    }
    return errno_error(fmt::format("cannot lock '{}'", dir), failure);
  }
  return RunLock(std::move(folder));
}

Result<bool> RunLock::is_held(const std::string& dir) {
  HEADRACE_ASSIGN(const UniqueFd folder, open_file(dir, O_RDONLY | O_DIRECTORY));
  // Shared: two that ask do not take each other for a training. The lock goes with the descriptor.
  if (::flock(folder.get(), LOCK_SH | LOCK_NB) == 0) {
    return false;
  }
  if (errno == EWOULDBLOCK) {
    return true;
  }
  return errno_error(fmt::format("cannot lock '{}'", dir), errno);
}

namespace {

// Opening for writing mends what a power cut left; whose the store is, and that it holds the commit
// that it must, is looked at before.
Result<std::unique_ptr<Store>> open_for_writing(const RunPaths& paths,
                                                const StoreReference& reference,
                                                const BeginOptions& options) {
  if (!lies_in_run(reference, paths) || reference.committed_step) {
    HEADRACE_ASSIGN(const std::unique_ptr<Store> reader,
                    open_run_store(paths, reference, Store::Access::kRead, false));
    HEADRACE_TRY(check_own_store(*reader, reference, paths));
  }
  return open_run_store(paths, reference, Store::Access::kWrite, options.direct_io_required);
}

}  // namespace

Result<Beginning> begin_run(const RunPaths& paths, const BeginOptions& options) {
  HEADRACE_ASSIGN(const std::optional<StoreReference> reference, read_store_reference(paths));
  if (!reference) {
    if (options.resume == ResumeMode::kRequired) {
      return usage_error(fmt::format("'{}' holds no commit to resume", paths.dir))
          .with_hint("leave --resume required out to start the run");
    }
    return Beginning{};
  }
  const std::vector<std::string> missing = missing_parts(*reference);
  const bool all_missing = missing.size() == reference->folders.size();
  if (all_missing && options.overwrite) {
    return Beginning{};
  }
  if (all_missing && reference->never_committed && options.resume != ResumeMode::kRequired) {
    // A start that was killed after it had removed the store and before it named the next one.
    log_warning(
        fmt::format("the store of '{}' is gone, and held no commit: starting again", paths.dir));
    return Beginning{};
  }
  Result<std::unique_ptr<Store>> store = open_for_writing(paths, *reference, options);
  if (!store && options.overwrite && store.error().code == ExitCode::kCorrupt &&
      lies_in_run(*reference, paths)) {
    Beginning beginning;
    beginning.replaced = *reference;
    return beginning;
  }
  if (!store) {
    return std::move(store).error();
  }
  return begin_with(*std::move(store), *reference, paths, options);
}

Result<std::unique_ptr<Store>> open_run_store(const RunPaths& paths,
                                              const StoreReference& reference,
                                              Store::Access access,
                                              bool direct_io_required) {
  if (const std::vector<std::string> missing = missing_parts(reference); !missing.empty()) {
    return operating_error(
               fmt::format("{}the store of '{}' is gone",
                           missing.size() < reference.folders.size() ? "a part of " : "",
                           paths.dir))
        .with_why(fmt::format("there is no {}", fmt::join(missing, ", no ")))
        .with_hint("mount or restore it, or start again with --overwrite");
  }
  Result<std::unique_ptr<Store>> store =
      Store::open(reference.folders, reference.id, access, direct_io_required);
  if (!reference.committed_step) {
    return store;
  }
  if (!store && store.error().code == ExitCode::kUsage) {
    const Error& error = store.error();
    return lost_commit(reference, error.why.empty() ? error.what : error.what + ": " + error.why);
  }
  if (store && !(*store)->last_commit()) {
    return lost_commit(reference, "the store says that it has no commit");
  }
  return store;
}

Status check_own_store(const Store& store, const StoreReference& reference, const RunPaths& paths) {
  if (lies_in_run(reference, paths) || store.contents().run_dir == paths.dir) {
    return {};
  }
  return usage_error(fmt::format("the store '{}' is not this run's", store.path()))
      .with_why(fmt::format(
          "it belongs to the run '{}', this is '{}'", store.contents().run_dir, paths.dir))
      .with_hint("choose another run.dir; a store of another run is never touched");
}

Result<std::unique_ptr<Store>> open_committed_store(const RunPaths& paths) {
  HEADRACE_ASSIGN(const std::optional<StoreReference> reference, read_store_reference(paths));
  if (!reference) {
    return usage_error(fmt::format("'{}' holds no run with a commit", paths.dir))
        .with_why("there is no store.json in it")
        .with_hint("train the run first, or name a Hugging Face directory");
  }
  HEADRACE_ASSIGN(std::unique_ptr<Store> store,
                  open_run_store(paths, *reference, Store::Access::kRead, false));
  if (!store->last_commit()) {
    return operating_error(fmt::format("'{}' holds no commit", paths.dir))
        .with_why("the run never ended cleanly")
        .with_hint("train it to its end, or interrupt it with Ctrl-C, which commits");
  }
  if (store->dirty()) {
    return written_since(*store, "train the run again; there are no weights to read");
  }
  return store;
}

}  // namespace headrace::train
