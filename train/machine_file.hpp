// machine.toml: a machine profile as a file (docs/machine.md has the schema).
//
// Invariant: one table in machine_file.cpp reads, writes and checks every key; an unknown key, a
// missing one and a value out of range are errors (but a file of an older schema may lack what came
// later: 0, not measured); numbers read back bit for bit. Thread: any. Failure: a usage error with
// every problem of the file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "scheduler/plan/machine.hpp"

namespace headrace::train {

inline constexpr int kMachineSchema = 5;
inline constexpr int kMachineSchemaOldest = 3;  // that is read

struct MachineFile {
  plan::MachineProfile profile;
  std::string nvme_device;  // "259:1": major and minor number of the drive measured; "": none was
};

// Whether it is of an older schema, which had no rates that the present one has. Such a file is
// planned with where it is given, and measured again where it is the cache.
[[nodiscard]] inline bool lacks_rates(const MachineFile& machine) {
  return machine.profile.schema < kMachineSchema;
}

[[nodiscard]] std::string machine_to_toml(const MachineFile& machine);

// `name` begins the places of messages.
[[nodiscard]] Result<MachineFile> machine_from_toml(std::string_view text, const std::string& name);

[[nodiscard]] Result<MachineFile> read_machine_file(const std::string& path);

// Makes the folder. Written beside the target, then renamed.
[[nodiscard]] Status write_machine_file(const std::string& path, const MachineFile& machine);

// $XDG_CACHE_HOME/headrace/machine.toml, else ~/.cache/headrace/machine.toml; "" where neither
// variable is set.
[[nodiscard]] std::string machine_cache_path();

// The fingerprint of the machine at hand; rates are 0.
[[nodiscard]] Result<plan::MachineProfile> this_machine();

// What of the fingerprint differs, as sentences: "cpu: 'A' in the profile, 'B' here".
[[nodiscard]] std::vector<std::string> fingerprint_differences(const plan::MachineProfile& profile,
                                                               const plan::MachineProfile& here);

}  // namespace headrace::train
