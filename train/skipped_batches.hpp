// The batches of skipped steps, kept for whoever looks for what is wrong with them.
//
// Each is a chat file of its rows (train/token_writer.hpp), where what is learned is what had an
// unmasked target: `headrace eval --data` and a run read it. The newest kSkippedFilesMax stay.
// Thread: one. Failure: Status; a run goes on without.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "train/data.hpp"

namespace headrace::train {

inline constexpr std::size_t kSkippedFilesMax = 16;

// `folder` is made where it is missing. Returns the file.
[[nodiscard]] Result<std::string> save_skipped_batch(const std::string& folder,
                                                     std::int64_t step,
                                                     const StepBatch& batch,
                                                     std::int64_t seq_len);
// Takes away those of steps after `step`, which a run that begins there makes anew, and what a kill
// left of one. The caller holds the run's lock.
[[nodiscard]] Status drop_skipped_batches(const std::string& folder, std::int64_t step);

}  // namespace headrace::train
