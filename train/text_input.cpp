#include "train/text_input.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/unique.hpp"

namespace headrace::train {
namespace {

constexpr std::size_t kCompressedBytes = std::size_t{256} << 10U;
constexpr int kGzipWindow = 15 + 16;  // zlib's words for: gzip, with any window
// A frame that wants more is refused: its window would be the memory of this process.
constexpr int kZstdWindowLogMax = 27;

Error unreadable(const std::string& path, std::string why) {
  return corrupt_error(fmt::format("cannot read '{}'", path)).with_why(std::move(why));
}

class PlainInput final : public TextInput {
 public:
  PlainInput(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  Result<std::size_t> read(std::span<char> out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::read(file_.get(), out.data() + done, out.size() - done);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0) {
        return errno_error(fmt::format("cannot read '{}'", path_), errno);
      }
      if (got == 0) {
        break;
      }
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  UniqueFd file_;
  std::string path_;
};

// Compressed bytes, and what is left of them.
class CompressedBytes {
 public:
  CompressedBytes(UniqueFd file, std::string path)
      : source_(std::move(file), std::move(path)), buffer_(kCompressedBytes) {}

  // False at the end of the file. Call it when nothing is left.
  Result<bool> refill() {
    HEADRACE_ASSIGN(const std::size_t bytes, source_.read(buffer_));
    left_ = std::span(buffer_).first(bytes);
    return bytes > 0;
  }

  [[nodiscard]] std::span<char> left() const { return left_; }

  void take(std::size_t bytes) { left_ = left_.subspan(bytes); }

 private:
  PlainInput source_;
  std::vector<char> buffer_;
  std::span<char> left_;
};

class GzipInput final : public TextInput {
 public:
  GzipInput(UniqueFd file, const std::string& path) : path_(path), bytes_(std::move(file), path) {
    if (::inflateInit2(&stream_, kGzipWindow) != Z_OK) {
      throw std::bad_alloc();
    }
  }

  ~GzipInput() override { ::inflateEnd(&stream_); }

  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  Result<std::size_t> read(std::span<char> out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      if (bytes_.left().empty()) {
        HEADRACE_ASSIGN(const bool more, bytes_.refill());
        if (!more && inside_) {
          return unreadable(path_, "the gzip stream ends early: the file was cut short");
        }
        if (!more) {
          break;
        }
      }
      HEADRACE_ASSIGN(const std::size_t made, inflate_into(out.subspan(done)));
      done += made;
    }
    return done;
  }

 private:
  Result<std::size_t> inflate_into(std::span<char> out) {
    const std::span<char> left = bytes_.left();
    const std::size_t wanted = std::min<std::size_t>(out.size(), 1U << 30U);
    stream_.next_in = reinterpret_cast<Bytef*>(left.data());
    stream_.avail_in = static_cast<uInt>(left.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(wanted);
    inside_ = true;
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    bytes_.take(left.size() - stream_.avail_in);
    if (code == Z_STREAM_END) {
      inside_ = false;  // another member may follow
      ::inflateReset(&stream_);
    } else if (code == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      return unreadable(path_,
                        fmt::format("the gzip stream is damaged: {}",
                                    stream_.msg != nullptr ? stream_.msg : "no message"));
    }
    return wanted - stream_.avail_out;
  }

  std::string path_;
  CompressedBytes bytes_;
  z_stream stream_ = {};
  bool inside_ = true;  // of a member
};

class ZstdInput final : public TextInput {
 public:
  ZstdInput(UniqueFd file, const std::string& path)
      : path_(path), bytes_(std::move(file), path), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr || ZSTD_isError(ZSTD_DCtx_setParameter(
                                  stream_.get(), ZSTD_d_windowLogMax, kZstdWindowLogMax)) != 0U) {
      throw std::bad_alloc();
    }
  }

  Result<std::size_t> read(std::span<char> out) override {
    ZSTD_outBuffer target = {.dst = out.data(), .size = out.size(), .pos = 0};
    while (target.pos < target.size) {
      if (bytes_.left().empty() && !pending_) {
        HEADRACE_ASSIGN(const bool more, bytes_.refill());
        if (!more && inside_) {
          return unreadable(path_, "the zstd stream ends early: the file was cut short");
        }
        if (!more) {
          break;
        }
      }
      ZSTD_inBuffer source = {.src = bytes_.left().data(), .size = bytes_.left().size(), .pos = 0};
      const std::size_t hint = ZSTD_decompressStream(stream_.get(), &target, &source);
      bytes_.take(source.pos);
      if (ZSTD_isError(hint) != 0U) {
        return unreadable(path_,
                          fmt::format("the zstd stream is damaged: {}", ZSTD_getErrorName(hint)));
      }
      inside_ = hint != 0;
      pending_ = inside_ && target.pos == target.size;  // more may come of what it has
    }
    return target.pos;
  }

 private:
  struct FreeStream {
    void operator()(ZSTD_DStream* stream) const noexcept { ZSTD_freeDStream(stream); }
  };

  std::string path_;
  CompressedBytes bytes_;
  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
  bool inside_ = true;
  bool pending_ = false;
};

struct Refused {
  std::string_view magic;
  std::string_view what;
};

// What would otherwise be read as text.
constexpr std::array kRefused = {
    Refused{std::string_view("\xFD"
                             "7zXZ",
                             5),
            "compressed with xz"},
    Refused{"BZh", "compressed with bzip2"},
    Refused{std::string_view("PK\x03\x04", 4), "a zip archive"},
    Refused{"PAR1", "a Parquet file"},
    Refused{"ARROW1", "an Arrow file"},
};

}  // namespace

Result<std::unique_ptr<TextInput>> TextInput::open(const std::string& path) {
  HEADRACE_ASSIGN(UniqueFd file, open_regular_file(path));
  std::array<char, 8> head = {};
  const ssize_t got = ::pread(file.get(), head.data(), head.size(), 0);
  if (got < 0) {
    return errno_error(fmt::format("cannot read '{}'", path), errno);
  }
  const std::string_view start(head.data(), static_cast<std::size_t>(got));
  for (const Refused& refused : kRefused) {
    if (start.starts_with(refused.magic)) {
      return usage_error(fmt::format("'{}' is {}", path, refused.what))
          .with_why("text, JSON lines, and both in gzip or zstd are read")
          .with_hint("unpack it first");
    }
  }
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  if (start.starts_with("\x1F\x8B")) {
    return std::unique_ptr<TextInput>(std::make_unique<GzipInput>(std::move(file), path));
  }
  // A frame to skip comes first where the file was packed in parallel.
  const bool skippable =
      start.size() > 3 && (start[0] & '\xF0') == '\x50' && start.substr(1, 3) == "\x2A\x4D\x18";
  if (skippable || start.starts_with("\x28\xB5\x2F\xFD")) {
    return std::unique_ptr<TextInput>(std::make_unique<ZstdInput>(std::move(file), path));
  }
  if (without_packed_suffix(path) != path) {
    return unreadable(path, "its name says that it is compressed, and its first bytes do not")
        .with_hint("it may have been cut short as it was fetched; rename it if it is text");
  }
  return std::unique_ptr<TextInput>(std::make_unique<PlainInput>(std::move(file), path));
}

std::string_view without_packed_suffix(std::string_view path) {
  for (const std::string_view packed : {".gz", ".zst", ".zstd"}) {
    if (path.ends_with(packed)) {
      return path.substr(0, path.size() - packed.size());
    }
  }
  return path;
}

}  // namespace headrace::train
