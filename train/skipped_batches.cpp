#include "train/skipped_batches.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "train/token_writer.hpp"

namespace headrace::train {
namespace {

constexpr std::string_view kBegin = "step-";
constexpr std::string_view kEnd = ".bin";

// What a process that was killed left of one.
bool is_partial(std::string_view name) {
  return name.starts_with(kBegin) && name.ends_with(TokenWriter::partial_of(std::string(kEnd)));
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) {
    return std::nullopt;
  }
  name.remove_prefix(kBegin.size());
  name.remove_suffix(kEnd.size());
  std::int64_t step = 0;
  const auto [stop, code] = std::from_chars(name.data(), name.data() + name.size(), step);
  return code == std::errc() && stop == name.data() + name.size() ? std::optional(step)
                                                                  : std::nullopt;
}

// Steps whose batches are there, ascending, and their names.
Result<std::vector<std::pair<std::int64_t, std::string>>> saved_steps(const std::string& folder) {
  std::vector<std::pair<std::int64_t, std::string>> steps;
  HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(folder));
  for (const std::string& name : names) {
    if (const std::optional<std::int64_t> step = step_of(name)) {
      steps.emplace_back(*step, fmt::format("{}/{}", folder, name));
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Status remove_file(const std::string& path) {
  return ::unlink(path.c_str()) == 0
             ? Status()
             : Status(errno_error(fmt::format("cannot remove '{}'", path), errno));
}

// Up to the last target; one that is masked is the input that comes next.
std::vector<std::uint32_t> example_of(std::span<const std::int32_t> tokens,
                                      std::span<const std::int32_t> targets) {
  std::size_t count = targets.size();
  while (count > 0 && targets[count - 1] == kMaskedTarget) {
    --count;
  }
  std::vector<std::uint32_t> words;
  if (count == 0) {
    return words;
  }
  words.push_back(static_cast<std::uint32_t>(tokens[0]));
  for (std::size_t i = 0; i < count; ++i) {
    words.push_back(targets[i] == kMaskedTarget
                        ? static_cast<std::uint32_t>(tokens[i + 1])
                        : static_cast<std::uint32_t>(targets[i]) | kLearnedBit);
  }
  return words;
}

}  // namespace

Result<std::string> save_skipped_batch(const std::string& folder,
                                       std::int64_t step,
                                       const StepBatch& batch,
                                       std::int64_t seq_len) {
  HEADRACE_TRY(make_directory(folder, Parents::kMustExist));
  std::string path = fmt::format("{}/{}{:08}{}", folder, kBegin, step, kEnd);
  HEADRACE_ASSIGN(const std::unique_ptr<TokenWriter> writer,
                  TokenWriter::create(path, TokenFormat::kChat, 4));
  const auto row = static_cast<std::size_t>(seq_len);
  for (std::size_t at = 0; at < batch.tokens.size(); at += row) {
    const std::vector<std::uint32_t> words = example_of(std::span(batch.tokens).subspan(at, row),
                                                        std::span(batch.targets).subspan(at, row));
    if (!words.empty()) {
      HEADRACE_TRY(writer->append(
          {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]}));
      const auto length = static_cast<std::uint32_t>(words.size());
      HEADRACE_TRY(writer->end_examples({&length, 1}));
    }
  }
  HEADRACE_TRY(writer->finish());
  HEADRACE_ASSIGN(const auto saved, saved_steps(folder));
  for (std::size_t i = 0; i + kSkippedFilesMax < saved.size(); ++i) {
    HEADRACE_TRY(remove_file(saved[i].second));
  }
  return path;
}

Status drop_skipped_batches(const std::string& folder, std::int64_t step) {
  if (!is_directory(folder)) {
    return {};
  }
  HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(folder));
  for (const std::string& name : names) {
    if (is_partial(name)) {
      HEADRACE_TRY(remove_file(fmt::format("{}/{}", folder, name)));
    }
  }
  HEADRACE_ASSIGN(const auto saved, saved_steps(folder));
  for (const auto& [saved_step, path] : saved) {
    if (saved_step > step) {
      HEADRACE_TRY(remove_file(path));
    }
  }
  return {};
}

}  // namespace headrace::train
