// The sections "run" and "folder" of doctor.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/files.hpp"
#include "core/quantity.hpp"
#include "tiers/nvme/store.hpp"
#include "train/doctor.hpp"
#include "train/probe_nvme.hpp"
#include "train/run_dir.hpp"
#include "train/store_folders.hpp"

namespace headrace::train {
namespace {

// What the system tells of a drive; empty: it does not.
struct Drive {
  std::string name;   // "nvme0n1"
  std::string model;  // "Samsung SSD 990 PRO 2TB"
  std::string scheduler, requests, write_cache, rotational;
};

// The first line of a small file, without blanks at its ends.
std::string line_of(const std::string& path) {
  constexpr std::uint64_t kBytesMax = 4096;
  const Result<std::string> text = read_file(path, kBytesMax);
  if (!text) {
    return "";
  }
  const std::string line = text->substr(0, text->find('\n'));
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

// `device` as device_of() gives it: "259:1", or a filesystem's name, of which nothing is known.
Drive drive_of(const std::string& device) {
  Drive drive;
  std::string path = real_path("/sys/dev/block/" + device);
  if (device.find(':') == std::string::npos || !is_directory(path)) {
    return drive;
  }
  if (path_exists(path + "/partition")) {
    path = parent_path(path);
  }
  drive.name = path.substr(path.rfind('/') + 1);
  drive.model = line_of(path + "/device/model");
  drive.requests = line_of(path + "/queue/nr_requests");
  drive.write_cache = line_of(path + "/queue/write_cache");
  drive.rotational = line_of(path + "/queue/rotational");
  // "[none] mq-deadline"
  const std::string schedulers = line_of(path + "/queue/scheduler");
  const std::size_t begin = schedulers.find('[');
  const std::size_t end = schedulers.find(']');
  drive.scheduler = begin < end && end != std::string::npos
                        ? schedulers.substr(begin + 1, end - begin - 1)
                        : schedulers;
  return drive;
}

// Every folder has all of them; null: not known, or nothing to know of a folder not made yet.
constexpr std::array<const char*, 10> kFolderMembers = {"path",
                                                        "exists",
                                                        "filesystem",
                                                        "free_bytes",
                                                        "total_bytes",
                                                        "writable",
                                                        "direct_io",
                                                        "drive",
                                                        "stores",
                                                        "stores_in_use"};

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json drive_to_json(const std::string& device, const Drive& drive) {
  Json json = Json::object();
  json.add("device", device);
  json.add("name", text_or_null(drive.name));
  json.add("model", text_or_null(drive.model));
  json.add("scheduler", text_or_null(drive.scheduler));
  std::optional<std::int64_t> requests;
  if (const Result<Json> number = parse_json(drive.requests)) {
    requests = number->as_int();
  }
  json.add("requests", requests);
  json.add("write_cache", text_or_null(drive.write_cache));
  json.add("rotational", drive.rotational.empty() ? Json() : Json(drive.rotational.front() == '1'));
  return json;
}

std::string drive_text(const std::string& device, const Drive& drive) {
  if (drive.name.empty()) {
    return fmt::format("drive {}", device);
  }
  return fmt::format("drive {}{}, scheduler {}, {} requests, {}",
                     drive.name,
                     drive.model.empty() ? "" : fmt::format(" ({})", drive.model),
                     drive.scheduler.empty() ? "unknown" : drive.scheduler,
                     drive.requests.empty() ? "?" : drive.requests,
                     drive.write_cache.empty() ? "write cache unknown" : drive.write_cache);
}

// The stores that lie in the folder already.
void examine_stores(const std::string& folder, Finding& finding) {
  const auto stores = tiers::nvme::list_stores({folder});
  if (!stores) {
    finding.problems.push_back(problem_of(stores.error(), false));
    return;
  }
  const auto in_use =
      std::count_if(stores->begin(), stores->end(), [](const auto& store) { return store.locked; });
  finding.facts.set("stores", stores->size());
  finding.facts.set("stores_in_use", in_use);
  finding.text += fmt::format(
      "\n{} store{} in it, {} in use", stores->size(), stores->size() == 1 ? "" : "s", in_use);
}

void try_direct_io(const RunConfig& config, const std::string& present, Finding& finding) {
  const FolderTrial trial = try_folder(present);
  finding.facts.set("writable", trial.writing.has_value());
  finding.facts.set("direct_io", trial.writing ? Json(trial.direct_io.has_value()) : Json());
  if (!trial.writing) {
    finding.text += ", cannot be written";
    finding.problems.push_back(
        {.stops_training = true,
         .what = fmt::format("nothing can be written there: {}", trial.writing.error().why),
         .hint = "give the user who runs headrace the right to write there, free space, or use "
                 "another folder"});
    return;
  }
  finding.text += trial.direct_io ? ", direct I/O works" : ", no direct I/O";
  if (!trial.direct_io) {
    finding.problems.push_back(
        {.stops_training = config.tiers.direct_io == "on",
         .what = fmt::format("{}: {}", trial.direct_io.error().what, trial.direct_io.error().why),
         .hint = "use a folder on ext4 or xfs, or tiers.direct_io = \"auto\" (through the page "
                 "cache, slower)"});
  }
}

}  // namespace

Finding examine_folder(const RunConfig& config, const NvmeFolder& folder) {
  Finding finding{.section = "folder"};
  for (const char* member : kFolderMembers) {
    finding.facts.add(member, Json());
  }
  finding.facts.set("path", folder.path);
  finding.text = fmt::format("'{}'", folder.path);
  RunConfig alone = config;
  alone.tiers.nvme = {folder};
  const Status can_be_made = check_can_be_made(alone);
  if (!can_be_made) {
    finding.problems.push_back(problem_of(can_be_made.error(), true));
  }
  const std::string present = existing_parent(folder.path);
  const bool made = present == folder.path;
  finding.facts.set("exists", made);
  const Result<Filesystem> filesystem = filesystem_of(present);
  if (!filesystem) {
    finding.problems.push_back(problem_of(filesystem.error(), true));
    return finding;
  }
  finding.text += fmt::format("{}: {}, {} of {} free",
                              made ? "" : ", not made yet",
                              filesystem->name,
                              format_bytes(filesystem->free_bytes),
                              format_bytes(filesystem->total_bytes));
  finding.facts.set("filesystem", filesystem->name);
  finding.facts.set("free_bytes", filesystem->free_bytes);
  finding.facts.set("total_bytes", filesystem->total_bytes);
  if (can_be_made) {
    try_direct_io(config, present, finding);
  }
  if (filesystem->kind == FilesystemKind::kOverlay) {
    finding.problems.push_back(
        {.what =
             "it is on an overlay (a container's own layer): slower than the disk below it, and "
             "gone with the container",
         .hint = "use a mounted volume"});
  }
  if (filesystem->kind == FilesystemKind::kNetwork) {
    finding.problems.push_back({.what = "it is on a network filesystem: every step waits for it",
                                .hint = "use a drive of this machine"});
  }
  const std::string device = device_of(present);
  const Drive drive = drive_of(device);
  finding.text += "\n" + drive_text(device, drive);
  finding.facts.set("drive", drive_to_json(device, drive));
  if (made) {
    examine_stores(folder.path, finding);
  }
  return finding;
}

namespace {

// Whether the run's folder can be made, or written to. A store inside it is tried in its stead.
void try_run_folder(const RunConfig& config, Finding& run) {
  const std::vector<NvmeFolder> folders = store_folders(config);
  const auto inside = [&](const NvmeFolder& folder) {
    return folder.path.starts_with(config.run.dir + "/");
  };
  if (std::any_of(folders.begin(), folders.end(), inside)) {
    return;
  }
  std::string present = config.run.dir;  // or what is there above it
  while (!path_exists(present) && present != "/") {
    present = parent_path(present);
  }
  std::string why = "it is not a folder";
  if (is_directory(present)) {
    const FolderTrial trial = try_folder(present);
    if (trial.writing) {
      return;
    }
    why = trial.writing.error().why;
  }
  run.problems.push_back(
      {.stops_training = true,
       .what = fmt::format("run.dir: nothing can be written in '{}': {}", present, why),
       .hint = "give the user who runs headrace the right to write there, free space, or name "
               "another run.dir"});
}

}  // namespace

std::vector<Finding> examine_run(const RunConfig& config) {
  Finding run{.section = "run"};
  const RunPaths paths{.dir = config.run.dir};
  run.text = fmt::format("'{}', in '{}'", config.file, config.run.dir);
  run.facts.add("file", config.file);
  run.facts.add("dir", config.run.dir);
  try_run_folder(config, run);
  const Result<bool> held = is_directory(paths.dir) ? RunLock::is_held(paths.dir) : false;
  if (!held) {
    run.problems.push_back(problem_of(held.error(), true));
  } else if (*held) {
    run.problems.push_back({.stops_training = true,
                            .what = fmt::format("another process is training in '{}'", paths.dir),
                            .hint = "wait for it, stop it, or choose another run.dir"});
  }
  run.facts.add("in_use", held ? Json(*held) : Json());
  std::vector<Finding> findings = {std::move(run)};
  for (const NvmeFolder& folder : store_folders(config)) {
    findings.push_back(examine_folder(config, folder));
  }
  return findings;
}

}  // namespace headrace::train
