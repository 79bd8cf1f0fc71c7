// A run's folder: its files, its lock, and whether a start begins the run or resumes it.
//
//   config.resolved.toml  every setting as used; can be trained from
//   plan.json             the plan of the last start
//   metrics.jsonl         one row a step (docs/metrics.md)
//   run.log               the log of every start
//   trace/                Chrome trace events, where asked for
//   store.json            {"folders", "id", "committed_step"}: where the weights and the state are
//   store.making.json     the same of a store that is being made, while it is being made; of one
//                         that takes another's place ("replaces"), until the other is gone
//
// Invariant: one training process has a run's folder at a time (a lock on the folder itself, gone
// with the process); a store that belongs to another run is never opened for writing, emptied or
// removed. Thread: main's. Failure: Result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "core/unique.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::train {

enum class ResumeMode : std::uint8_t { kAuto, kNever, kRequired };

struct StoreReference {
  std::vector<std::string> folders;  // absolute, in the order in which the store was made
  std::string id;
  // The step of the last commit that this run made; a store that says it has none is damaged.
  std::optional<std::int64_t> committed_step = {};
  bool never_committed = false;  // it says so, as opposed to saying nothing
  // In a CreationNote only: the id of the store in the same folders whose place this one takes. Of
  // the two the one that store.json names counts, and the other can go.
  std::string replaces = {};
};

struct RunPaths {
  std::string dir;

  [[nodiscard]] std::string config() const { return dir + "/config.resolved.toml"; }

  [[nodiscard]] std::string plan() const { return dir + "/plan.json"; }

  [[nodiscard]] std::string metrics() const { return dir + "/metrics.jsonl"; }

  [[nodiscard]] std::string log() const { return dir + "/run.log"; }

  [[nodiscard]] std::string trace() const { return dir + "/trace"; }

  [[nodiscard]] std::string skipped() const { return dir + "/skipped"; }

  [[nodiscard]] std::string store() const { return dir + "/store.json"; }

  [[nodiscard]] std::string store_making() const { return dir + "/store.making.json"; }
};

// It has a store.json or a config.resolved.toml.
[[nodiscard]] bool is_run_directory(const std::string& path);

// Nothing: there is no store.json.
[[nodiscard]] Result<std::optional<StoreReference>> read_store_reference(const RunPaths& paths);

// A folder below the run's own is written relative to it, so that a run can be moved.
[[nodiscard]] Status write_store_reference(const RunPaths& paths, const StoreReference& reference);

// Notes in the run's folder which store is about to be made, until the object ends. One that was
// killed leaves the note, and by it the next start finds what is left (reclaim_leftovers).
class CreationNote {
 public:
  // Errors: what an earlier note tells of is still there, and would be forgotten.
  [[nodiscard]] static Result<CreationNote> write(const RunPaths& paths,
                                                  const StoreReference& reference);
  // Nothing: no creation was cut short.
  [[nodiscard]] static Result<std::optional<StoreReference>> read(const RunPaths& paths);

  ~CreationNote();

  CreationNote(CreationNote&& source) noexcept : path_(std::exchange(source.path_, {})) {}

  CreationNote& operator=(CreationNote&&) = delete;

  // Leaves the note: there is something for the next start to remove.
  void keep() { path_.clear(); }

 private:
  explicit CreationNote(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// Where a run's store is made: tiers.nvme, else store/ in the run's folder.
[[nodiscard]] std::vector<NvmeFolder> store_folders(const RunConfig& config);

[[nodiscard]] std::vector<std::string> paths_of(const std::vector<NvmeFolder>& folders);

// Folders that a start has made. They go away with the object where they are empty, unless they are
// kept: a start that fails leaves nothing.
class MadeFolders {
 public:
  // Makes `path` with its parents; an existing one is fine.
  [[nodiscard]] static Result<MadeFolders> make(const std::string& path);
  MadeFolders() = default;

  ~MadeFolders() { remove(); }

  MadeFolders(MadeFolders&& source) noexcept : paths_(std::exchange(source.paths_, {})) {}

  MadeFolders& operator=(MadeFolders&& source) noexcept {
    std::swap(paths_, source.paths_);
    return *this;
  }

  void keep() { paths_.clear(); }

 private:
  void remove() noexcept;

  std::vector<std::string> paths_;  // parents first
};

class RunLock {
 public:
  // Of an existing folder. Errors: another process trains there, and goes on doing so for a tenth
  // of a second: one that only asks (is_held) is gone by then.
  [[nodiscard]] static Result<RunLock> take(const std::string& dir);
  // Whether somebody has it; asked in an instant. Errors: the folder cannot be opened.
  [[nodiscard]] static Result<bool> is_held(const std::string& dir);

 private:
  explicit RunLock(UniqueFd folder) : folder_(std::move(folder)) {}

  UniqueFd folder_;
};

// What a start finds.
struct Beginning {
  // The run's store, open for writing, with its commit; null: a fresh run.
  std::unique_ptr<tiers::nvme::Store> resumed;
  std::vector<std::string> folders;  // of `resumed`
  // A store that a fresh run replaces: remove it when the new one is about to be made.
  std::optional<StoreReference> replaced;
};

struct BeginOptions {
  ResumeMode resume = ResumeMode::kAuto;
  bool overwrite = false;
  bool direct_io_required = true;
};

// Errors (kUsage): `never` on a committed run without overwrite; `required` and no commit; a store
// of another run; a store that was written after its last commit, since this version keeps one
// slot.
[[nodiscard]] Result<Beginning> begin_run(const RunPaths& paths, const BeginOptions& options);

// The store that a run names. Errors: it is gone (kOperating); it is damaged, or does not hold the
// commit that the run has made (kCorrupt).
[[nodiscard]] Result<std::unique_ptr<tiers::nvme::Store>> open_run_store(
    const RunPaths& paths,
    const StoreReference& reference,
    tiers::nvme::Store::Access access,
    bool direct_io_required);

// That a store is this run's: it says so, or all of it lies in the run's own folder, wherever that
// was moved. Errors: kUsage.
[[nodiscard]] Status check_own_store(const tiers::nvme::Store& store,
                                     const StoreReference& reference,
                                     const RunPaths& paths);

// The commit of a run, for commands that only read. Errors: no store, no commit, written since.
[[nodiscard]] Result<std::unique_ptr<tiers::nvme::Store>> open_committed_store(
    const RunPaths& paths);

}  // namespace headrace::train
