// The built-in probe: about five seconds that measure the rates of a machine profile.
//
// What is measured is what the engine uses: its own kernels, AdamW and checksums, a stream over
// memory of AdamW's shape, one thread's memcpy, and direct reads and writes of incompressible data
// in the store's folder (a nameless file that is gone whatever happens). Rates are the median of
// several rounds; what cannot be measured is 0, with a line in the log. It never changes numbers of
// a run: predictions and placement only. Thread: main's, before a run's own threads exist. Failure:
// no memory; a drive that reads back something else than was written is corrupt data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "train/machine_file.hpp"
#include "train/probe_nvme.hpp"

namespace headrace::train {

inline constexpr std::uint64_t kProbeFileBytes = std::uint64_t{256} << 20U;

// `store_folder` need not exist: its nearest existing parent is on the same drive.
[[nodiscard]] Result<MachineFile> probe_machine(const std::string& store_folder);

struct FoundMachine {
  // Its nvme rates are those of all folders together.
  plan::MachineProfile profile;
  // Of each folder, in the order asked: reads and writes together. Folders on one drive share it.
  std::vector<double> folder_bytes_per_s;
  std::vector<DriveRequests> folder_requests;  // that its drive needs
};

// The profile to plan with: `given` where not empty (a fingerprint that differs is a warning in the
// log; its drive counts as the only one); else the user's cache, where it is of this machine; else
// a fresh probe, which is kept in the cache. Drives that the cache does not have are measured for
// this run.
[[nodiscard]] Result<FoundMachine> find_machine(const std::string& given,
                                                const std::vector<std::string>& store_folders);

// The same without measuring: an empty profile where neither is there. For commands whose plan is
// about memory only.
[[nodiscard]] Result<plan::MachineProfile> known_machine();

}  // namespace headrace::train
