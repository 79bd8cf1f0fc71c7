#include "train/export_list.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/files.hpp"
#include "core/json.hpp"
#include "model/huggingface.hpp"

namespace headrace::train {
namespace {

constexpr std::uint64_t kListBytesMax = std::uint64_t{16} << 20U;

Error damaged(const std::string& path, const Error& cause) {
  return corrupt_error(fmt::format("'{}' cannot be read", path))
      .with_why(cause.what)
      .with_hint("move the folder away, or choose another export.dir");
}

}  // namespace

Result<ExportList> ExportList::open(std::string dir, std::string run_dir) {
  ExportList list(std::move(dir), std::move(run_dir));
  if (path_exists(list.path())) {
    HEADRACE_TRY(list.read());
  }
  return list;
}

Status ExportList::read() {
  HEADRACE_ASSIGN(const std::string text, read_file(path(), kListBytesMax));
  const Result<Json> json = parse_json(text);
  if (!json) {
    return damaged(path(), json.error());
  }
  const Result<std::string> owner = json->require_string("run_dir");
  const Result<const Json::Array*> exports = json->require_array("exports");
  if (!owner || !exports) {
    return damaged(path(), owner ? exports.error() : owner.error());
  }
  if (*owner != run_dir_) {
    return usage_error(fmt::format("export.dir '{}' holds exports of another run", dir_))
        .with_why(fmt::format("of '{}'", *owner))
        .with_hint("choose another export.dir");
  }
  for (const Json& item : **exports) {
    const Result<std::int64_t> step = item.require_int("step");
    if (!step || (!entries_.empty() && *step <= entries_.back().step)) {
      return damaged(path(), step ? corrupt_error("its steps do not ascend") : step.error());
    }
    ExportEntry entry;
    entry.step = *step;
    if (const Json* loss = item.find("loss"); loss != nullptr && loss->is_number()) {
      entry.loss = loss->as_double();
    }
    entries_.push_back(entry);
  }
  return {};
}

Status ExportList::write() const {
  Json json = Json::object();
  json.add("run_dir", run_dir_);
  Json exports = Json::array();
  for (const ExportEntry& entry : entries_) {
    Json item = Json::object();
    item.add("step", entry.step);
    item.add("loss", Json(entry.loss));
    exports.push_back(std::move(item));
  }
  json.add("exports", std::move(exports));
  const std::optional<ExportEntry> lowest = best();
  json.add("best", lowest ? Json(lowest->step) : Json());
  return write_file_atomically(path(), json.dump(1) + "\n");
}

bool ExportList::contains(std::int64_t step) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const ExportEntry& entry) {
    return entry.step == step;
  });
}

std::string ExportList::folder(std::int64_t step) const {
  return fmt::format("{}/step-{:08}", dir_, step);
}

std::optional<ExportEntry> ExportList::best() const {
  std::optional<ExportEntry> lowest;
  for (const ExportEntry& entry : entries_) {
    if (entry.loss && (!lowest || *entry.loss < *lowest->loss)) {
      lowest = entry;
    }
  }
  return lowest;
}

Status ExportList::add(const ExportEntry& entry, std::optional<std::int64_t> keep, bool keep_best) {
  std::erase_if(entries_, [&](const ExportEntry& old) { return old.step >= entry.step; });
  entries_.push_back(entry);
  std::vector<std::int64_t> dropped;
  if (keep && std::cmp_greater(entries_.size(), *keep)) {
    const std::optional<ExportEntry> lowest = keep_best ? best() : std::nullopt;
    const auto surplus = entries_.size() - static_cast<std::size_t>(*keep);
    std::vector<ExportEntry> staying;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const bool is_best = lowest && lowest->step == entries_[i].step;
      if (i >= surplus || is_best) {
        staying.push_back(entries_[i]);
      } else {
        dropped.push_back(entries_[i].step);
      }
    }
    entries_ = std::move(staying);
  }
  HEADRACE_TRY(write());
  for (const std::int64_t step : dropped) {
    HEADRACE_TRY(remove_folder(step));
  }
  return {};
}

Status ExportList::cut_back(std::int64_t step) {
  std::vector<std::int64_t> beyond;
  for (const ExportEntry& entry : entries_) {
    if (entry.step > step) {
      beyond.push_back(entry.step);
    }
  }
  if (beyond.empty()) {
    return {};
  }
  std::erase_if(entries_, [&](const ExportEntry& entry) { return entry.step > step; });
  HEADRACE_TRY(write());
  for (const std::int64_t gone : beyond) {
    HEADRACE_TRY(remove_folder(gone));
  }
  return {};
}

Status ExportList::remove_folder(std::int64_t step) const {
  const std::string dir = folder(step);
  const auto failed = [&](int reason) {
    return errno_error(fmt::format("cannot remove the export '{}'", dir), reason);
  };
  // config.json, which was written last, goes first.
  const auto remove = [&](std::string_view name) {
    return ::unlink(fmt::format("{}/{}", dir, name).c_str()) == 0 || errno == ENOENT;
  };
  if (!remove("config.json")) {
    return failed(errno);
  }
  if (is_directory(dir)) {
    HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(dir));
    for (const std::string& name : names) {
      if (model::is_export_file(name) && !remove(name)) {
        return failed(errno);
      }
    }
  }
  // A folder that holds something else stays, with what it holds.
  if (::rmdir(dir.c_str()) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST) {
    return failed(errno);
  }
  return {};
}

}  // namespace headrace::train
