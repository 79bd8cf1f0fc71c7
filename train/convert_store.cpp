#include "train/convert_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "scheduler/exec/state_format.hpp"
#include "tiers/memory.hpp"
#include "tiers/nvme/store.hpp"
#include "train/convert_tiles.hpp"
#include "train/interrupt.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/state_format.hpp"
#include "train/store_folders.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::ExtentKey;
using tiers::nvme::ExtentKind;
using tiers::nvme::Store;
using tiers::nvme::TileBytes;

constexpr std::uint64_t kConfigBytesMax = std::uint64_t{1} << 20U;

// What is converted, and all that its commit says.
struct Source {
  StoreReference reference;
  std::unique_ptr<Store> store;
  RunState state;
  TensorTable table;
  plan::StateFormat format;
};

Result<Source> open_source(const RunPaths& paths) {
  Source source;
  HEADRACE_ASSIGN(source.store, open_committed_store(paths));
  HEADRACE_ASSIGN(const std::optional<StoreReference> reference, read_store_reference(paths));
  source.reference = reference.value_or(StoreReference{});  // the store was opened by it
  HEADRACE_TRY(check_own_store(*source.store, source.reference, paths));
  const Store& store = *source.store;
  HEADRACE_ASSIGN(source.state, run_state_from_text(store.last_commit()->run_state, store.path()));
  HEADRACE_ASSIGN(source.table,
                  tensor_table_from_text(store.contents().tensor_table, store.path()));
  HEADRACE_ASSIGN(source.format, format_of(store));
  HEADRACE_TRY(check_format(store, source.state.config));
  HEADRACE_TRY(check_tiles(store, source.table, source.format));
  return source;
}

// The source's folders, with its proportions and the limits of the run's settings.
std::vector<tiers::nvme::StoreFolder> target_folders(const Source& source) {
  std::vector<tiers::nvme::StoreFolder> folders;
  for (const std::string& path : source.reference.folders) {
    tiers::nvme::StoreFolder& folder = folders.emplace_back();
    folder.path = path;
    folder.weight = 0.0;
    for (const NvmeFolder& setting : store_folders(source.state.config)) {
      if (setting.path == path) {
        folder.space_bytes_max = setting.space_bytes;
      }
    }
  }
  for (const TileBytes& tile : source.store->contents().tiles) {
    folders[source.store->folder_of(tile.unit, tile.tile)].weight +=
        static_cast<double>(tile.param_bytes + tile.state_bytes);
  }
  for (tiers::nvme::StoreFolder& folder : folders) {
    folder.weight = std::max(folder.weight, 1.0);
  }
  return folders;
}

// A line now and then, and an end where one is asked for.
tiers::nvme::StoreProgress tell(std::string what) {
  using Clock = std::chrono::steady_clock;
  return [what = std::move(what), last = Clock::now()](std::uint64_t done_bytes,
                                                       std::uint64_t total_bytes) mutable {
    if (interrupt_requested()) {
      return Status(make_error(ExitCode::kInterrupted, "interrupted while the store was converted")
                        .with_why("SIGINT or SIGTERM came before the end")
                        .with_hint("the run is as it was; the same command converts it"));
    }
    constexpr std::chrono::seconds kPause{3};
    if (Clock::now() - last >= kPause) {
      last = Clock::now();
      log_info(
          fmt::format("{}: {} of {}", what, format_bytes(done_bytes), format_bytes(total_bytes)));
    }
    return Status();
  };
}

// That what was committed is what a start would find: opened anew, all of it read and checked. As
// long as it is open, nobody can remove it.
Result<std::unique_ptr<Store>> read_back(const StoreReference& reference,
                                         const std::string& run_state) {
  HEADRACE_ASSIGN(std::unique_ptr<Store> store,
                  Store::open(reference.folders, reference.id, Store::Access::kRead, false));
  if (!store->last_commit() || store->last_commit()->run_state != run_state) {
    return corrupt_error(fmt::format("the new store '{}' does not hold its commit", store->path()))
        .with_hint("the drive lost what was written to it; the old store is as it was");
  }
  std::uint64_t total = 0;
  std::uint64_t largest = 0;
  for (const TileBytes& tile : store->contents().tiles) {
    total += tile.param_bytes + tile.state_bytes;
    largest = std::max({largest, tile.param_bytes, tile.state_bytes});
  }
  HEADRACE_ASSIGN(const std::unique_ptr<tiers::Arena> memory,
                  tiers::Arena::create(tiers::Tier::kHost, "convert", largest));
  const tiers::nvme::StoreProgress progress = tell("reading the new store back");
  std::uint64_t done = 0;
  for (const TileBytes& tile : store->contents().tiles) {
    const auto read = [&](ExtentKind kind, std::uint64_t bytes) -> Status {
      const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
      return bytes > 0 ? store->read_now(key, {memory->data(), bytes}) : Status();
    };
    HEADRACE_TRY(read(ExtentKind::kParam, tile.param_bytes));
    HEADRACE_TRY(read(ExtentKind::kState, tile.state_bytes));
    done += tile.param_bytes + tile.state_bytes;
    HEADRACE_TRY(progress(done, total));
  }
  return store;
}

// Has config.resolved.toml name the run's format, so that it can be trained from; its comments
// stay.
Status rewrite_config(const RunPaths& paths, const std::string& state) {
  if (!path_exists(paths.config())) {
    return {};
  }
  HEADRACE_ASSIGN(RunConfig config, load_run_config(paths.config(), {}));
  if (config.optim.state == state) {
    return {};
  }
  HEADRACE_ASSIGN(const std::string text, read_file(paths.config(), kConfigBytesMax));
  std::vector<std::string> comments;
  for (std::size_t at = 0; text.compare(at, 2, "# ") == 0;) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    comments.push_back(text.substr(at + 2, end - at - 2));
    at = std::min(end + 1, text.size());
  }
  config.optim.state = state;
  return write_file_atomically(paths.config(), to_toml(config, comments));
}

// The conversion has taken effect: what goes wrong now is told, and left to the next start.
void warn(const Error& error) {
  log_warning(fmt::format("{}{}{}", error.what, error.why.empty() ? "" : ": ", error.why));
}

class Conversion {
 public:
  Conversion(RunPaths paths, Source source, plan::StateFormat format)
      : paths_(std::move(paths)), source_(std::move(source)), format_(std::move(format)) {
    result_.run_dir = paths_.dir;
    result_.state_before = source_.format.name;
    result_.state = format_.name;
    result_.step = source_.state.step;
    result_.bytes_before = source_.store->bytes();
    result_.old_store = source_.store->path();
  }

  Result<Converted> run() {
    HEADRACE_ASSIGN(const Id128 id, random_id());
    target_ = source_.reference;
    target_.id = id.hex();
    target_.committed_step = source_.state.step;
    target_.replaces = source_.reference.id;
    HEADRACE_ASSIGN(CreationNote note, CreationNote::write(paths_, target_));
    if (Status made = make(id); !made) {
      if (const Result<bool> removed = remove_rest(target_.folders, target_.id); !removed) {
        warn(removed.error());
        note.keep();
      }
      return std::move(made).error();
    }
    target_.replaces.clear();
    if (Status switched = write_store_reference(paths_, target_); !switched) {
      note.keep();  // which of the two store.json names is for the next start to see
      return std::move(switched).error();
    }
    log_info(fmt::format("the run's store is {} now", result_.store));
    if (!clear_up()) {
      note.keep();
    }
    return std::move(result_);
  }

 private:
  // All of the new store, up to a commit that was read back.
  Status make(const Id128& id) {
    tiers::nvme::StoreOptions options;
    options.folders = target_folders(source_);
    options.direct_io_required = false;
    options.slots = source_.store->slots();
    options.undo_slot = source_.store->undo_slot();
    options.prewrite = false;
    options.id = id;
    Result<std::unique_ptr<Store>> made =
        Store::create(options, contents_of(source_.table, format_, paths_.dir));
    if (!made) {
      Error error = std::move(made).error();
      if (error.code == ExitCode::kDoesNotFit) {
        error.hint = fmt::format(
            "the old store ({}) goes only once the new one is whole: free space there, or raise "
            "the folder's `space`",
            format_bytes(result_.bytes_before));
      }
      return error;
    }
    std::unique_ptr<Store> store = *std::move(made);
    result_.store = store->path();
    result_.bytes = store->bytes();
    log_info(fmt::format("converting the commit of step {} from {} to {}: '{}' to '{}', {}",
                         result_.step,
                         result_.state_before,
                         result_.state,
                         result_.old_store,
                         result_.store,
                         format_bytes(result_.bytes)));
    HEADRACE_TRY(store->mark_dirty());
    HEADRACE_TRY(convert_tiles(
        *source_.store,
        *store,
        {.table = source_.table, .source_format = source_.format, .target_format = format_},
        tell("converting")));
    RunState state = source_.state;
    state.config.optim.state = format_.name;
    const std::string text = run_state_to_text(state);
    HEADRACE_TRY(
        store->commit({.step = state.step, .update_count = state.update_count, .run_state = text}));
    store.reset();
    HEADRACE_ASSIGN(store, read_back(target_, text));
    HEADRACE_TRY(set_log_file(paths_.log()));  // the run's log is to tell of it
    whole_ = std::move(store);
    return {};
  }

  // False: the old store is still there.
  bool clear_up() {
    if (const Status written = rewrite_config(paths_, format_.name); !written) {
      warn(written.error());
    }
    source_.store.reset();
    const Result<bool> removed = remove_rest(source_.reference.folders, source_.reference.id);
    result_.old_removed = removed.has_value();
    if (!removed) {
      warn(removed.error());
      log_warning(
          fmt::format("the old store '{}' stays; the next `headrace train` or `headrace store "
                      "convert` of the run removes it",
                      result_.old_store));
    }
    result_.converted = true;
    return result_.old_removed;
  }

  RunPaths paths_;
  Source source_;
  plan::StateFormat format_;
  StoreReference target_;
  std::unique_ptr<Store> whole_;  // the new store, so that it is there when the run names it
  Converted result_;
};

Converted unchanged(const RunPaths& paths, const Source& source) {
  Converted result;
  result.run_dir = paths.dir;
  result.state_before = result.state = source.format.name;
  result.step = source.state.step;
  result.store = source.store->path();
  result.bytes_before = result.bytes = source.store->bytes();
  return result;
}

// An end of the log file with the function, however it ends.
struct LogFileScope {
  LogFileScope() = default;

  ~LogFileScope() { close_log_file(); }

  LogFileScope(const LogFileScope&) = delete;
  LogFileScope& operator=(const LogFileScope&) = delete;
};

}  // namespace

Result<Converted> convert_store(const ConvertRequest& request) {
  const RunPaths paths{.dir = absolute_path(working_directory(), request.run_dir)};
  if (!is_run_directory(paths.dir)) {
    return usage_error(fmt::format("'{}' is not the directory of a run", request.run_dir))
        .with_why(is_directory(paths.dir) ? "there is no store.json in it"
                                          : "there is no such directory")
        .with_hint("name the run.dir of a run that was trained");
  }
  HEADRACE_ASSIGN(const RunLock lock, RunLock::take(paths.dir));
  HEADRACE_ASSIGN(Source source, open_source(paths));
  reclaim_leftovers(source.reference.folders, paths, source.store->id());
  if (source.format.name == request.state) {
    HEADRACE_TRY(rewrite_config(paths, request.state));
    return unchanged(paths, source);
  }
  const LogFileScope log_file;
  return Conversion(paths, std::move(source), exec::state_format(request.state)).run();
}

}  // namespace headrace::train
