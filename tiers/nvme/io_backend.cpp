// The choice between back ends of the system, and what is said of it. See io_backend.hpp.
#include "tiers/nvme/io_backend.hpp"

#include <fmt/format.h>

#include "core/log.hpp"
#include "core/quantity.hpp"

namespace headrace::tiers::nvme {

std::string describe(const BackendFacts& facts) {
  std::string text = facts.name;
  if (facts.registered_file) {
    text += fmt::format(" (file registered, {} of {} of buffers registered)",
                        format_bytes(facts.registered_bytes),
                        format_bytes(facts.buffer_bytes));
  }
  return text;
}

Result<std::unique_ptr<IoBackend>> make_system_backend(BlockFile& file,
                                                       const BackendOptions& options) {
  Result<std::unique_ptr<IoBackend>> ring = make_uring_backend(file, options);
  if (ring) {
    return ring;
  }
  Result<std::unique_ptr<IoBackend>> threads = make_thread_backend(file, options);
  if (threads) {
    log_warning(
        fmt::format("nvme tier: '{}': {} threads with preadv and pwritev instead of io_uring ({}); "
                    "to mend it: {}",
                    file.path(),
                    options.depth,
                    ring.error().why,
                    ring.error().hint));
  }
  return threads;
}

}  // namespace headrace::tiers::nvme
