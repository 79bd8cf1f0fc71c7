// Folders that hold stores: found or made, judged by their filesystem, entered without following
// links. Internal to tiers/nvme.
//
// Invariant: a name inside of a folder is opened relative to its descriptor and never through a
// symbolic link; only `<32 hex digits>/data` is ever touched. Thread: any. Failure: Errors of
// ExitCode::kUsage (the folder is not usable as one), kDoesNotFit (no space) or kOperating.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/unique.hpp"
#include "tiers/nvme/data_file.hpp"

namespace headrace::tiers::nvme {

inline constexpr const char* kDataName = "data";

struct Folder {
  UniqueFd fd;
  std::string path;
  bool made = false;  // by make_folder
};

// "nvme tier: cannot use '<path>'": what every refusal of a folder begins with.
[[nodiscard]] std::string cannot_use(const std::string& path);

// An Error of making or removing something at `path`, with a hint for the usual reasons.
[[nodiscard]] Error writing_error(const std::string& path, int errno_value);

// Opens the folder; makes it (mode 0700) where only it is missing. Refuses filesystems that live in
// memory; warns of overlays.
[[nodiscard]] Result<Folder> make_folder(const std::string& path);
// Opens an existing folder.
[[nodiscard]] Result<Folder> open_folder(const std::string& path);

// Refuses where the bytes are more than the user allows or the filesystem has.
[[nodiscard]] Status check_space(const std::string& folder,
                                 std::uint64_t bytes,
                                 std::optional<std::uint64_t> space_bytes_max);

// Refuses a folder that is named twice, by whatever path.
[[nodiscard]] Status check_distinct(const std::vector<std::string>& folders);
// The number of its filesystem's device.
[[nodiscard]] Result<std::uint64_t> device_of(const Folder& folder);

// The id's directory within the folder. Errors: not an id, missing, a link.
[[nodiscard]] Result<Folder> enter_store(const Folder& folder, const std::string& id);

// After it, what was made or removed in the folder stays so through a power cut.
[[nodiscard]] Status sync_directory(const Folder& folder);

}  // namespace headrace::tiers::nvme
