#include "train/token_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"

namespace headrace::train {
namespace {

constexpr std::size_t kEndsTogether = std::size_t{1} << 16U;  // of examples, held in memory

Error writing_error(const std::string& path, int errno_value) {
  Error error = errno_error(fmt::format("cannot write '{}'", path), errno_value);
  if (errno_value == ENOSPC || errno_value == EDQUOT) {
    error.hint = "free space there, or name another place";
  }
  return error;
}

// Whether the file still has this name: who held the lock may have given it its last one meanwhile.
bool is_at(int fd, const std::string& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

TokenWriter::TokenWriter(std::string path, TokenFormat format, int width)
    : path_(std::move(path)), partial_(partial_of(path_)), format_(format), width_(width) {}

TokenWriter::~TokenWriter() {
  if (file_) {
    // Whoever gave up has the reason; this is what it left.
    static_cast<void>(::unlink(partial_.c_str()));
  }
}

Result<std::unique_ptr<TokenWriter>> TokenWriter::create(const std::string& path,
                                                         TokenFormat format,
                                                         int width) {
  auto writer = std::unique_ptr<TokenWriter>(new TokenWriter(path, format, width));
  HEADRACE_TRY(writer->begin());
  return writer;
}

Status TokenWriter::begin() {
  HEADRACE_ASSIGN(UniqueFd file, open_file(partial_, O_RDWR | O_CREAT));
  const bool locked = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno != EWOULDBLOCK) {
    return writing_error(partial_, errno);
  }
  if (!locked || !is_at(file.get(), partial_)) {
    return operating_error(fmt::format("'{}' is being written", path_))
        .with_why("another process has its .partial file locked, or had until now")
        .with_hint("wait for it, or name another file");
  }
  if (::ftruncate(file.get(), 0) != 0) {
    return writing_error(partial_, errno);
  }
  file_ = std::move(file);
  static_assert(kLlmcHeaderBytes == kChatHeaderBytes);
  if (format_ != TokenFormat::kRaw) {
    return write_all(file_.get(), std::string(kLlmcHeaderBytes, '\0'));
  }
  return {};
}

Status TokenWriter::append(std::string_view bytes) {
  tokens_ += bytes.size() / static_cast<std::size_t>(width_);
  constexpr std::uint64_t kCountMax = std::numeric_limits<std::int32_t>::max();
  if (format_ == TokenFormat::kLlmc && tokens_ > kCountMax) {
    return operating_error(fmt::format("'{}' would hold more than {} tokens", path_, kCountMax))
        .with_why("the header of llm.c's files counts them in 31 bits")
        .with_hint("write several files, or use --format raw");
  }
  if (Status status = write_all(file_.get(), bytes); !status) {
    Error error = std::move(status).error();
    error.what = fmt::format("'{}': {}", partial_, error.what);
    return error;
  }
  return {};
}

Status TokenWriter::end_examples(std::span<const std::uint32_t> lengths) {
  for (const std::uint32_t length : lengths) {
    last_end_ += length;
    ends_.push_back(last_end_);
    examples_ += 1;
    if (ends_.size() == kEndsTogether) {
      HEADRACE_TRY(write_ends());
    }
  }
  return {};
}

// Behind those that are in the file without a name.
Status TokenWriter::write_ends() {
  const std::string path = partial_ + ".ends";
  if (!ends_file_) {
    HEADRACE_ASSIGN(UniqueFd file, open_file(path, O_RDWR | O_CREAT | O_TRUNC));
    if (::unlink(path.c_str()) != 0) {
      return writing_error(path, errno);
    }
    ends_file_ = std::move(file);
  }
  if (Status status =
          write_all(ends_file_.get(),
                    {reinterpret_cast<const char*>(ends_.data()), ends_.size() * sizeof ends_[0]});
      !status) {
    Error error = std::move(status).error();
    error.what = fmt::format("'{}': {}", path, error.what);
    return error;
  }
  ends_.clear();
  return {};
}

// Behind the tokens.
Status TokenWriter::append_ends() {
  const auto append_words = [&](const std::vector<std::uint64_t>& ends) -> Status {
    Status status = write_all(
        file_.get(), {reinterpret_cast<const char*>(ends.data()), ends.size() * sizeof ends[0]});
    if (!status) {
      Error error = std::move(status).error();
      error.what = fmt::format("'{}': {}", partial_, error.what);
      return error;
    }
    return {};
  };
  const std::uint64_t written = examples_ - ends_.size();
  std::vector<std::uint64_t> part(written > 0 ? kEndsTogether : 0);
  for (std::uint64_t at = 0; at < written; at += kEndsTogether) {
    HEADRACE_TRY(read_exactly(
        ends_file_.get(), std::as_writable_bytes(std::span(part)), at * sizeof(std::uint64_t)));
    HEADRACE_TRY(append_words(part));
  }
  return append_words(ends_);
}

Status TokenWriter::write_header() {
  std::string bytes;
  const auto add = [&](const auto& header) {
    bytes.assign(reinterpret_cast<const char*>(&header), sizeof header);
  };
  if (format_ == TokenFormat::kChat) {
    HEADRACE_ASSERT(tokens_ == last_end_, "every token is of an example");
    add(ChatHeader{.tokens = static_cast<std::int64_t>(tokens_),
                   .examples = static_cast<std::int64_t>(examples_)});
  } else if (format_ == TokenFormat::kLlmc) {
    const bool wide = width_ == 4;
    add(std::array<std::int32_t, 3>{wide ? kLlmcMagicU32 : kLlmcMagicU16,
                                    wide ? kLlmcVersionU32 : kLlmcVersionU16,
                                    static_cast<std::int32_t>(tokens_)});
  }
  if (::pwrite(file_.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return writing_error(partial_, errno);
  }
  return {};
}

Status TokenWriter::finish() {
  HEADRACE_TRY(append_ends());
  HEADRACE_TRY(write_header());
  if (::fsync(file_.get()) != 0 || std::rename(partial_.c_str(), path_.c_str()) != 0) {
    return writing_error(path_, errno);
  }
  file_ = UniqueFd();
  // The new name is on the disk once the folder is.
  HEADRACE_ASSIGN(const UniqueFd folder, open_file(parent_path(path_), O_RDONLY | O_DIRECTORY));
  if (::fsync(folder.get()) != 0) {
    return writing_error(path_, errno);
  }
  return {};
}

}  // namespace headrace::train
