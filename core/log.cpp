// The only file that includes spdlog: one logger that is never destroyed (so that threads may log
// until the end), over a stderr sink and a list of at most one file sink.
#include "core/log.hpp"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>
#include <mutex>

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

struct Sinks {
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> standard_error =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::shared_ptr<spdlog::sinks::dist_sink_mt> files =
      std::make_shared<spdlog::sinks::dist_sink_mt>();
  spdlog::logger logger{"headrace", {standard_error, files}};
  std::mutex file_mutex;

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
    const std::lock_guard lock(sinks().file_mutex);
    sinks().files->set_sinks({std::move(file)});
  } catch (const std::exception& error) {
    return operating_error(fmt::format("cannot open the log file '{}'", path))
        .with_why(error.what());
  }
  return {};
}

void close_log_file() noexcept {
  const std::lock_guard lock(sinks().file_mutex);
  sinks().files->set_sinks({});
}

}  // namespace headrace
