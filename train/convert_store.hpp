// A run's store from one optimizer-state format to another (`headrace store convert`).
//
// The run's last commit is written into a new store in the same folders, which is read back and
// then takes the old one's place. Invariant: at any instant, a kill -9 and a power cut included,
// the run's folder names one store, and that one is whole: the old one until the new one's commit
// has been read back, then the new one (store.json is renamed into its place and flushed). What a
// conversion that was cut short has left is noted (CreationNote, `replaces`), and goes with the
// next `train` or conversion of the run. A conversion that fails leaves the run as it was. Two
// conversions of one commit give the same bytes. Thread: main's. Failure: Result.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace headrace::train {

struct ConvertRequest {
  std::string run_dir;
  std::string state;  // "fp32", "bf16" or "q8"
};

struct Converted {
  std::string run_dir;  // absolute
  std::string state_before;
  std::string state;
  std::int64_t step = 0;
  std::string store;  // <folder>/<id> that the run has now
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes = 0;   // of the store's files
  bool converted = false;    // false: it was in this format
  std::string old_store;     // <folder>/<id> of the store that was converted; "": none was
  bool old_removed = false;  // otherwise it was in use, and the next start removes it
};

// Errors: not the directory of a run, a store of another run (kUsage); in use, no commit, written
// since it (kOperating); no room beside the old store (kDoesNotFit); damaged (kCorrupt).
[[nodiscard]] Result<Converted> convert_store(const ConvertRequest& request);

}  // namespace headrace::train
