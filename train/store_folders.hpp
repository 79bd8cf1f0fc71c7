// The folders of a run's store: whether it can be made there, where it stays, what earlier starts
// have left, and whether it is still there.
//
// Invariant: nothing of another run is touched, and no commit is removed. Thread: main's. Failure:
// Result; what only clears up warns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "tiers/nvme/store.hpp"
#include "train/run_dir.hpp"

namespace headrace::train {

// Removes the stores of this run that starts before it have left in these folders when they were
// killed, all but `keep_id`. One that holds a commit stays, with a warning, and all others then
// too: somebody may want it. Of a conversion that was killed (convert_store.hpp) the store that the
// run does not name goes all the same, since the other one holds that commit. What cannot be
// removed is a warning, and stays noted.
void reclaim_leftovers(const std::vector<std::string>& folders,
                       const RunPaths& paths,
                       const std::string& keep_id);

// Removes all that is there of a store of this run, however far its making or an earlier removal
// had come. True: there was something. Errors: it is in use, or cannot be removed.
[[nodiscard]] Result<bool> remove_rest(const std::vector<std::string>& folders,
                                       const std::string& id);

// It is what a conversion that is under way, or was cut short, will have removed of a run's two
// stores. False also where the run's folder cannot be read: only tells.
[[nodiscard]] bool is_left_of_conversion(const std::string& run_dir, const std::string& id);

// In any order, links followed.
[[nodiscard]] bool same_folders(const std::vector<std::string>& one,
                                const std::vector<std::string>& other);

// That the files of a store that is open are still those at its paths, at their full length: what
// is written to a file that was removed is lost. `bytes` are file_lengths() when it was opened.
[[nodiscard]] Result<std::vector<std::uint64_t>> file_lengths(const tiers::nvme::Store& store);
[[nodiscard]] Status check_in_place(const tiers::nvme::Store& store,
                                    const std::vector<std::uint64_t>& bytes);

// A store stays in the folders where it was made: others are refused where the settings ask for
// them (kUsage), and the default gives way.
[[nodiscard]] Status keep_folders(RunConfig& config, const std::vector<std::string>& made_in);

// What a start would refuse of the folders of a new store, as far as looking can tell; it makes
// nothing.
[[nodiscard]] Status check_can_be_made(const RunConfig& config);
// Of the store's files.
[[nodiscard]] Result<std::vector<std::uint64_t>> bytes_by_folder(const tiers::nvme::Store& store);

// What a store may take there: what is free, and what it has in each folder already, within the
// folder's `space`.
[[nodiscard]] Result<std::uint64_t> room_in(const std::vector<NvmeFolder>& folders,
                                            const std::vector<std::uint64_t>& own_bytes = {});
// That a store of so many bytes fits into the folders. Errors: kDoesNotFit.
[[nodiscard]] Status check_room(const std::vector<NvmeFolder>& folders, std::uint64_t bytes);

}  // namespace headrace::train
