// Standard input, output and error, where the caller has closed them.
#pragma once

namespace headrace::cli {

// Puts /dev/null in the place of those that are closed, so that no file that is opened later gets
// their number and with it what is meant for them. Reading gives the end, writing to standard
// output stays an error (EBADF) as it would have been, and what goes to standard error is dropped.
// False: that cannot be done, and nothing else should be.
[[nodiscard]] bool open_missing_standard_files();

}  // namespace headrace::cli
