#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/output.hpp"
#include "core/quantity.hpp"

namespace headrace::cli {

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::show(std::int64_t done, std::int64_t total, double seconds_each) {
  if (!terminal_ || done >= total) {
    return;
  }
  write_error_text(fmt::format("\r\x1b[Kstep {}/{}, {} %, about {} left",
                               done + 1,
                               total,
                               100 * done / total,
                               format_duration(static_cast<double>(total - done) * seconds_each)));
  shown_ = true;
}

void Progress::clear() {
  if (shown_) {
    write_error_text("\r\x1b[K");
    shown_ = false;
  }
}

}  // namespace headrace::cli
