// The only file that includes spdlog: one logger that is never destroyed (so that threads may log
// until the end), over a stderr sink and one for the file, which keeps lines until there is one.
#include "core/log.hpp"

#include <fmt/format.h>
#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace {

namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

// The file, and what was said before it was known.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void open(std::shared_ptr<spdlog::sinks::sink> file) {
    const std::lock_guard lock(mutex_);
    for (const spdlog::details::log_msg_buffer& line : kept_) {
      file->log(line);
    }
    file->flush();
    forget();
    file_ = std::move(file);
  }

  void close() {
    const std::lock_guard lock(mutex_);
    forget();
    file_.reset();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    if (file_ != nullptr) {
      file_->log(line);
    } else if (keeps_ && kept_.size() < kLogLinesKept) {
      kept_.emplace_back(line);
    }
  }

  void flush_() override {
    if (file_ != nullptr) {
      file_->flush();
    }
  }

  void forget() {
    kept_ = {};
    keeps_ = false;
  }

  std::shared_ptr<spdlog::sinks::sink> file_;
  std::vector<spdlog::details::log_msg_buffer> kept_;
  bool keeps_ = true;  // until the first file
};

struct Sinks {
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> standard_error =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::shared_ptr<FileSink> file = std::make_shared<FileSink>();
  spdlog::logger logger{"headrace", {standard_error, file}};

  Sinks() {
    standard_error->set_pattern("%H:%M:%S %^%l%$ %v");
    standard_error->set_level(spdlog::level::info);
    logger.set_level(spdlog::level::debug);
    logger.flush_on(spdlog::level::debug);
  }
};

Sinks& sinks() {
  static auto* instance = new Sinks();  // never destroyed
  return *instance;
}

}  // namespace

void log(LogLevel level, std::string_view text) noexcept {
  // spdlog's calls catch what they throw; making the sinks the first time may not be able to.
  try {
    sinks().logger.log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
  } catch (const std::exception&) {
    return;  // no memory for a log line is no reason to end a run
  }
}

void set_log_level(LogLevel level) noexcept {
  sinks().standard_error->set_level(spdlog_level(level));
}

Status set_log_file(const std::string& path) {
  try {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
    file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    sinks().file->open(std::move(file));
  } catch (const std::exception& error) {
    return operating_error(fmt::format("cannot open the log file '{}'", path))
        .with_why(error.what());
  }
  return {};
}

void close_log_file() noexcept {
  sinks().file->close();
}

void log_to_file(LogLevel level, std::string_view text) noexcept {
  try {
    const spdlog::string_view_t view(text.data(), text.size());
    sinks().file->log(spdlog::details::log_msg("headrace", spdlog_level(level), view));
    sinks().file->flush();
  } catch (const std::exception&) {
    return;  // as in log()
  }
}

}  // namespace headrace
