#include "train/metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/log.hpp"

namespace headrace::train {
namespace {

constexpr std::size_t kScanBytes = std::size_t{64} << 10U;
constexpr std::size_t kRowBytesMax = std::size_t{1} << 20U;

struct Kept {
  std::uint64_t bytes = 0;  // of the rows that stay
  std::int64_t rows = 0;
  std::int64_t last_step = 0;
};

Error bad_row(const std::string& path, std::int64_t row, const std::string& why) {
  return corrupt_error(fmt::format("metrics: line {} of '{}' is not a step", row, path))
      .with_why(why)
      .with_hint("mend the line, or move the file away: the run goes on without the old rows");
}

// Finds where the rows of steps <= last_step end. A last line without a newline is the remains of a
// crash and counts as absent.
class RowScanner {
 public:
  RowScanner(std::string path, std::int64_t last_step)
      : path_(std::move(path)), last_step_(last_step) {}

  // Takes the next part of the file. False: the end of what is kept has been found.
  Result<bool> take(std::string_view part) {
    for (const char c : part) {
      if (c != '\n') {
        line_ += c;
        if (line_.size() > kRowBytesMax) {
          return bad_row(path_, kept_.rows + 1, "it is longer than a row can be");
        }
        continue;
      }
      HEADRACE_ASSIGN(const bool keep, take_row());
      if (!keep) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] const Kept& kept() const { return kept_; }

 private:
  Result<bool> take_row() {
    Result<Json> row = parse_json(line_);
    if (!row) {
      return bad_row(path_, kept_.rows + 1, row.error().what);
    }
    Result<std::int64_t> step = row->require_int("step");
    if (!step) {
      return bad_row(path_, kept_.rows + 1, step.error().what);
    }
    if (*step > last_step_) {
      return false;
    }
    if (*step <= kept_.last_step) {
      return bad_row(
          path_, kept_.rows + 1, fmt::format("step {} follows {}", *step, kept_.last_step));
    }
    kept_.bytes += line_.size() + 1;
    kept_.rows += 1;
    kept_.last_step = *step;
    line_.clear();
    return true;
  }

  std::string path_;
  std::int64_t last_step_;
  std::string line_;
  Kept kept_;
};

Result<Kept> scan_rows(int descriptor, const std::string& path, std::int64_t last_step) {
  HEADRACE_ASSIGN(const std::uint64_t size, file_size_bytes(path));
  RowScanner scanner(path, last_step);
  std::string part;
  for (std::uint64_t offset = 0; offset < size; offset += part.size()) {
    part.resize(std::min<std::uint64_t>(kScanBytes, size - offset));
    HEADRACE_TRY(read_exactly(descriptor, std::as_writable_bytes(std::span(part)), offset));
    HEADRACE_ASSIGN(const bool more, scanner.take(part));
    if (!more) {
      break;
    }
  }
  return scanner.kept();
}

Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

template <class Value>
Json object_of(const std::map<std::string, Value>& values) {
  Json object = Json::object();
  for (const auto& [key, value] : values) {
    object.add(key, value);
  }
  return object;
}

Json skipped_to_json(const std::optional<exec::NonFinite>& skipped) {
  if (!skipped) {
    return {};
  }
  Json object = Json::object();
  object.add("tensor", skipped->tensor);
  object.add("element", skipped->element);
  object.add("count", skipped->count);
  return object;
}

}  // namespace

double EvalResult::perplexity() const {
  return std::exp(loss);
}

Json metrics_to_json(const StepMetrics& metrics) {
  Json row = Json::object();
  row.add("step", metrics.step);
  row.add("loss", finite_or_null(metrics.loss));
  row.add("grad_norm", finite_or_null(metrics.grad_norm));
  row.add("lr", metrics.lr);
  row.add("tokens", metrics.tokens);
  row.add("skipped", skipped_to_json(metrics.skipped));
  row.add("step_s", metrics.step_s);
  row.add("tokens_per_s", finite_or_null(metrics.tokens_per_s));
  row.add("variant", metrics.variant);
  row.add("bound_s", metrics.bound_s);
  row.add("stall_s", object_of(metrics.stall_s));
  row.add("bytes", object_of(metrics.bytes));
  Json peak = Json::object();
  peak.add("device", metrics.peak.device);
  peak.add("host", metrics.peak.host);
  peak.add("pinned", metrics.peak.pinned);
  peak.add("process", metrics.peak.process);
  row.add("peak", std::move(peak));
  if (metrics.eval) {
    Json eval = Json::object();
    eval.add("loss", finite_or_null(metrics.eval->loss));
    eval.add("tokens", metrics.eval->tokens);
    eval.add("seconds", metrics.eval->seconds);
    row.add("eval", std::move(eval));
  }
  return row;
}

Result<std::int64_t> last_metrics_step(const std::string& path, std::int64_t step) {
  HEADRACE_ASSIGN(const UniqueFd descriptor, open_regular_file(path));
  HEADRACE_ASSIGN(const Kept kept, scan_rows(descriptor.get(), path, step));
  return kept.last_step;
}

Result<MetricsFile> MetricsFile::open(const std::string& path, std::int64_t last_step) {
  HEADRACE_ASSIGN(UniqueFd descriptor, open_file(path, O_RDWR | O_CREAT));
  Kept kept;
  if (last_step > 0) {
    HEADRACE_ASSIGN(kept, scan_rows(descriptor.get(), path, last_step));
    if (kept.last_step != last_step) {
      log_warning(
          fmt::format("metrics: '{}' ends at step {}, the commit is of step {}: rows are missing",
                      path,
                      kept.last_step,
                      last_step));
    }
  }
  if (::ftruncate(descriptor.get(), static_cast<off_t>(kept.bytes)) != 0) {
    return errno_error(fmt::format("metrics: cannot cut '{}' back", path), errno);
  }
  if (::lseek(descriptor.get(), 0, SEEK_END) < 0) {
    return errno_error(fmt::format("metrics: cannot go to the end of '{}'", path), errno);
  }
  return MetricsFile(path, std::move(descriptor));
}

Status MetricsFile::append(const StepMetrics& metrics) {
  const std::string line = metrics_to_json(metrics).dump() + "\n";
  Status status = write_all(descriptor_.get(), line);
  if (!status) {
    Error error = std::move(status).error();
    return operating_error(fmt::format("metrics: cannot write '{}'", path_))
        .with_why(error.why.empty() ? error.what : error.why);
  }
  return {};
}

Status MetricsFile::sync() {
  if (::fdatasync(descriptor_.get()) != 0) {
    return errno_error(fmt::format("metrics: cannot flush '{}'", path_), errno);
  }
  return {};
}

}  // namespace headrace::train
