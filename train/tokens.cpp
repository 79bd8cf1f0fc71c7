#include "train/tokens.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/unique.hpp"
#include "train/interrupt.hpp"
#include "train/token_writer.hpp"

namespace headrace::train {
namespace {

constexpr std::uint64_t kLargeFileBytes = std::uint64_t{1} << 30U;  // reading it takes a while
constexpr std::string_view kMegatronMagic = "MMIDIDX";

enum class FileKind : std::uint8_t { kText = 1, kTokens = 2, kChat = 3 };

struct TokenFile {
  std::string path;
  FileKind kind = FileKind::kText;
  int width = 1;                   // bytes of a token
  std::uint64_t header_bytes = 0;  // before the first token
  std::uint64_t file_bytes = 0;
  std::int64_t stored = 0;    // tokens in the file
  std::int64_t appended = 0;  // eos after it: 0 or 1
  std::int64_t begin = 0;     // of its first token in the concatenation
  std::int64_t examples = 0;  // of a chat file
  std::int64_t first_example = 0;
  timespec modified = {};

  [[nodiscard]] std::int64_t tokens() const { return stored + appended; }

  [[nodiscard]] std::uint64_t tokens_end() const {
    return header_bytes + static_cast<std::uint64_t>(stored) * static_cast<std::uint64_t>(width);
  }

  // Where a part of it ends: header, tokens, index of the examples.
  [[nodiscard]] std::uint64_t part_end(std::uint64_t offset) const {
    return offset < header_bytes ? header_bytes : offset < tokens_end() ? tokens_end() : file_bytes;
  }
};

struct OpenFile {
  std::size_t file = 0;
  std::uint64_t last_use = 0;
  UniqueFd descriptor;
};

Status read_data(int descriptor,
                 const std::string& path,
                 std::uint64_t offset_bytes,
                 std::span<std::byte> out) {
  Status status = read_exactly(descriptor, out, offset_bytes);
  if (status) {
    return {};
  }
  Error error = std::move(status).error();
  return operating_error(fmt::format("data: cannot read '{}' at byte {}", path, offset_bytes))
      .with_why(error.why.empty() ? error.what : error.why)
      .with_hint("data files must not change during a run; start it again");
}

std::uint32_t word_at(const std::byte* data, int width) {
  if (width == 1) {
    return std::to_integer<std::uint32_t>(*data);
  }
  if (width == 2) {
    std::uint16_t value = 0;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
  std::uint32_t value = 0;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// The token alone, of any kind of file.
std::uint32_t token_at(const std::byte* data, const TokenFile& file) {
  const std::uint32_t word = word_at(data, file.width);
  return file.kind == FileKind::kChat ? word & ~kLearnedBit : word;
}

Status check_llmc_size(const TokenFile& file, std::int32_t count) {
  const std::uint64_t expected =
      kLlmcHeaderBytes + static_cast<std::uint64_t>(file.width) * static_cast<std::uint32_t>(count);
  if (count >= 0 && file.file_bytes == expected) {
    return {};
  }
  return corrupt_error(fmt::format("data: '{}' has the wrong size", file.path))
      .with_why(
          fmt::format("its header says {} tokens of {} bytes: {} bytes in all, but the file has {}",
                      count,
                      file.width,
                      expected,
                      file.file_bytes))
      .with_hint("it was cut short or is still being written; make it again");
}

// Recognises llm.c's header. False: it is not one.
Result<bool> read_llmc_header(TokenFile& file, std::span<const std::byte> head) {
  std::array<std::int32_t, 3> words = {};
  if (head.size() < sizeof words) {
    return false;
  }
  std::memcpy(words.data(), head.data(), sizeof words);
  if (words[0] != kLlmcMagicU16 && words[0] != kLlmcMagicU32) {
    return false;
  }
  const bool wide = words[0] == kLlmcMagicU32;
  const std::int32_t version = wide ? kLlmcVersionU32 : kLlmcVersionU16;
  if (words[1] != version) {
    return usage_error(
               fmt::format("data: '{}' is an llm.c token file of version {}", file.path, words[1]))
        .with_hint(
            fmt::format("files that begin with {} are read in version {}", words[0], version));
  }
  file.kind = FileKind::kTokens;
  file.width = wide ? 4 : 2;
  file.header_bytes = kLlmcHeaderBytes;
  file.stored = words[2];
  HEADRACE_TRY(check_llmc_size(file, words[2]));
  return true;
}

// Recognises a chat file's header. False: it is not one.
Result<bool> read_chat_header(TokenFile& file, std::span<const std::byte> head) {
  ChatHeader header;
  const std::int32_t magic = header.magic;
  const std::int32_t version = header.version;
  if (head.size() < sizeof header) {
    return false;
  }
  std::memcpy(&header, head.data(), sizeof header);
  if (header.magic != magic) {
    return false;
  }
  if (header.version != version) {
    return usage_error(
               fmt::format("data: '{}' is a chat file of version {}", file.path, header.version))
        .with_hint(fmt::format("version {} is read: make it again with headrace tokenize --chat",
                               version));
  }
  const auto bytes = static_cast<std::int64_t>(file.file_bytes);
  constexpr std::int64_t kHeader = kChatHeaderBytes;
  const bool possible = header.examples >= 0 && header.examples <= bytes / 8 &&
                        header.tokens >= 0 && header.tokens <= bytes / 4;
  if (!possible || bytes != kHeader + 4 * header.tokens + 8 * header.examples) {
    return corrupt_error(fmt::format("data: '{}' has the wrong size", file.path))
        .with_why(fmt::format("its header says {} tokens of 4 bytes and {} examples of 8 bytes, "
                              "but the file has {}",
                              header.tokens,
                              header.examples,
                              bytes))
        .with_hint("it was cut short or is still being written; make it again");
  }
  file.kind = FileKind::kChat;
  file.width = 4;
  file.header_bytes = kChatHeaderBytes;
  file.stored = header.tokens;
  file.examples = header.examples;
  return true;
}

Status read_raw_layout(TokenFile& file, int width) {
  file.kind = FileKind::kTokens;
  file.width = width;
  if (file.file_bytes % static_cast<std::uint64_t>(width) != 0) {
    return corrupt_error(fmt::format("data: '{}' is not a whole number of tokens", file.path))
        .with_why(
            fmt::format("{} bytes, {} bytes a token (data.token_width)", file.file_bytes, width));
  }
  file.stored = static_cast<std::int64_t>(file.file_bytes / static_cast<std::uint64_t>(width));
  return {};
}

// Quoted for a shell where it must be.
std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string word = "'";
  for (const char character : text) {
    word += character == '\'' ? std::string("'\\''") : std::string(1, character);
  }
  return word + "'";
}

// JSON lines of instruction data, by the first of them.
Result<bool> begins_with_example(const TokenFile& file, int descriptor) {
  constexpr std::uint64_t kLookBytes = 4096;
  std::string start(std::min(kLookBytes, file.file_bytes), '\0');
  HEADRACE_TRY(read_data(
      descriptor, file.path, 0, std::as_writable_bytes(std::span(start.data(), start.size()))));
  return start.starts_with('{') && (start.find("\"messages\"") != std::string::npos ||
                                    start.find("\"completion\"") != std::string::npos);
}

// What makes a token file of a text.
std::string tokenize_command(const std::string& path, const TokenOptions& options, bool is_chat) {
  return fmt::format(
      "headrace tokenize {}--tokenizer {} --to {} {}{}\n        makes one: name it instead",
      is_chat ? "--chat " : "",
      shell_word(options.tokenizer),
      shell_word(path + ".bin"),
      options.eos ? fmt::format("--eos {} ", *options.eos) : "",
      shell_word(path));
}

Status classify(TokenFile& file, int descriptor, const TokenOptions& options) {
  std::array<std::byte, sizeof(ChatHeader)> head = {};
  const std::size_t head_bytes = std::min<std::size_t>(head.size(), file.file_bytes);
  const std::span<std::byte> start = std::span(head).first(head_bytes);
  HEADRACE_TRY(read_data(descriptor, file.path, 0, start));
  HEADRACE_ASSIGN(const bool is_llmc, read_llmc_header(file, start));
  HEADRACE_ASSIGN(const bool is_chat, read_chat_header(file, start));
  if (is_llmc || is_chat) {
    return {};
  }
  if (head_bytes >= kMegatronMagic.size() &&
      std::memcmp(head.data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0) {
    return usage_error(
               fmt::format("data: '{}' is a Megatron index, which is not read here", file.path))
        .with_hint("name the .bin file and set data.token_width = 2 or 4");
  }
  if (options.token_width) {
    return read_raw_layout(file, *options.token_width);
  }
  if (!options.tokenizer.empty() && options.tokenizer != "bytes") {
    HEADRACE_ASSIGN(const bool is_example, begins_with_example(file, descriptor));
    return usage_error(fmt::format("data: '{}' is no token file", file.path))
        .with_why(
            "a training run reads tokens at any place, and text by a tokenizer.json has no "
            "such places")
        .with_hint(tokenize_command(file.path, options, is_example))
        .with_where(options.where);
  }
  if (!options.tokenizer.empty()) {
    file.kind = FileKind::kText;
    file.stored = static_cast<std::int64_t>(file.file_bytes);
    file.appended = options.eos ? 1 : 0;
    return {};
  }
  return usage_error(fmt::format("data: cannot tell what '{}' is", file.path))
      .with_why("it has no llm.c header, and neither data.tokenizer nor data.token_width is set")
      .with_hint(
          "for text set data.tokenizer = \"bytes\", or make tokens of it with headrace tokenize; "
          "for "
          "raw tokens set data.token_width = 2 or 4")
      .with_where(options.where);
}

Result<UniqueFd> open_data(const std::string& path) {
  Result<UniqueFd> descriptor = open_regular_file(path);
  if (!descriptor) {
    Error error = std::move(descriptor).error();
    error.what = fmt::format("data: cannot open '{}'", path);
    if (path_exists(path) && !is_regular_file(path)) {
      error.code = ExitCode::kUsage;
    }
    return error;
  }
  return descriptor;
}

Error bad_index(const TokenFile& file) {
  return corrupt_error(fmt::format("data: the index of examples in '{}' is damaged", file.path))
      .with_hint("make it again with headrace tokenize --chat");
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

struct TokenSource::State {
  std::mutex mutex;  // of what follows, once open has returned
  std::vector<TokenFile> files;
  std::vector<OpenFile> open_files;
  std::vector<std::byte> buffer = std::vector<std::byte>(kTokenBufferBytes);
  std::optional<std::int64_t> eos;
  std::int64_t vocab = 0;
  std::int64_t tokens = 0;
  std::int64_t examples = 0;
  std::uint64_t uses = 0;
  DataIdentity identity;

  Status add(const std::string& path, const TokenOptions& options, Hasher& hasher);
  Status scan(const TokenFile& file, int descriptor, Hasher& hasher);
  [[nodiscard]] Status check_tokens(const TokenFile& file,
                                    std::uint64_t offset,
                                    std::size_t bytes) const;
  [[nodiscard]] Status check_index(const TokenFile& file,
                                   std::size_t bytes,
                                   std::int64_t& end) const;
  [[nodiscard]] Status check_kinds(const TokenOptions& options) const;
  [[nodiscard]] const TokenFile& file_of_example(std::int64_t index) const;
  Result<int> descriptor_of(std::size_t index);
  Status read_index(const TokenFile& file, std::int64_t first, std::span<DataRange> out);
  Status read_stored(std::size_t index, std::int64_t first, std::span<std::int32_t> out);
};

// Every byte of the file goes into the hash, every token is compared with the vocabulary.
Status TokenSource::State::scan(const TokenFile& file, int descriptor, Hasher& hasher) {
  const std::array<std::uint64_t, 3> head = {static_cast<std::uint64_t>(file.kind),
                                             static_cast<std::uint64_t>(file.width),
                                             file.file_bytes};
  hasher.update(std::as_bytes(std::span(head)));
  if (file.file_bytes >= kLargeFileBytes) {
    log_info(fmt::format("reading '{}', {}, once: its hash, and tokens within the vocabulary",
                         file.path,
                         format_bytes(file.file_bytes)));
  }
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::int64_t example_end = 0;
  for (std::uint64_t offset = 0; offset < file.file_bytes;) {
    // Header, tokens and index are chunks of their own, so that nothing straddles two.
    const std::size_t bytes =
        std::min<std::uint64_t>(buffer.size(), file.part_end(offset) - offset);
    const std::span<std::byte> chunk = std::span(buffer).first(bytes);
    if (interrupt_requested()) {
      return make_error(ExitCode::kInterrupted, "interrupted")
          .with_why("SIGINT or SIGTERM came while the data were read for the first time");
    }
    HEADRACE_TRY(read_data(descriptor, file.path, offset, chunk));
    hasher.update(chunk);
    if (offset >= file.tokens_end()) {
      HEADRACE_TRY(check_index(file, bytes, example_end));
    } else if (offset >= file.header_bytes) {
      HEADRACE_TRY(check_tokens(file, offset, bytes));
    }
    offset += bytes;
  }
  if (file.kind == FileKind::kChat && example_end != file.stored) {
    return bad_index(file);
  }
  return {};
}

// `end`: of the example before, and then of the last one.
Status TokenSource::State::check_index(const TokenFile& file,
                                       std::size_t bytes,
                                       std::int64_t& end) const {
  for (std::size_t at = 0; at < bytes; at += sizeof end) {
    std::int64_t next = 0;
    std::memcpy(&next, buffer.data() + at, sizeof next);
    if (next > file.stored || next < end + 2) {
      return bad_index(file);
    }
    end = next;
  }
  return {};
}

Status TokenSource::State::check_kinds(const TokenOptions& options) const {
  const auto is_chat = [](const TokenFile& file) { return file.kind == FileKind::kChat; };
  const auto chat = std::find_if(files.begin(), files.end(), is_chat);
  const auto other = std::find_if_not(files.begin(), files.end(), is_chat);
  if (chat == files.end() || other == files.end()) {
    return {};
  }
  return usage_error(
             fmt::format("data: '{}' is a chat file and '{}' is none", chat->path, other->path))
      .with_why("examples go into rows of their own, other tokens into windows")
      .with_hint("train on one after the other")
      .with_where(options.where);
}

const TokenFile& TokenSource::State::file_of_example(std::int64_t index) const {
  const auto after = std::upper_bound(
      files.begin(), files.end(), index, [](std::int64_t at, const TokenFile& candidate) {
        return at < candidate.first_example;
      });
  return *(after - 1);
}

Status TokenSource::State::check_tokens(const TokenFile& file,
                                        std::uint64_t offset,
                                        std::size_t bytes) const {
  if (file.width == 1 && vocab >= 256) {
    return {};
  }
  const auto step = static_cast<std::size_t>(file.width);
  std::uint32_t highest = 0;
  for (std::size_t at = 0; at < bytes; at += step) {
    highest = std::max(highest, token_at(buffer.data() + at, file));
  }
  if (static_cast<std::int64_t>(highest) < vocab) {
    return {};
  }
  std::size_t at = 0;
  while (static_cast<std::int64_t>(token_at(buffer.data() + at, file)) < vocab) {
    at += step;
  }
  return usage_error(fmt::format("data: '{}' holds token {}, but the vocabulary has {}",
                                 file.path,
                                 token_at(buffer.data() + at, file),
                                 vocab))
      .with_why(fmt::format("token {} of the file, at byte {}",
                            (offset - file.header_bytes + at) / step,
                            offset + at))
      .with_hint("the data was made with another tokenizer, or model.vocab is too small");
}

Status TokenSource::State::add(const std::string& path,
                               const TokenOptions& options,
                               Hasher& hasher) {
  HEADRACE_ASSIGN(const UniqueFd descriptor, open_data(path));
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) {
    return errno_error(fmt::format("data: cannot look at '{}'", path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return usage_error(fmt::format("data: '{}' is not a file", path))
        .with_hint("name files or patterns; a folder's files are \"folder/**/*\"")
        .with_where(options.where);
  }
  TokenFile file;
  file.path = path;
  file.file_bytes = static_cast<std::uint64_t>(status.st_size);
  file.modified = status.st_mtim;
  HEADRACE_TRY(classify(file, descriptor.get(), options));
  HEADRACE_TRY(scan(file, descriptor.get(), hasher));
  file.begin = tokens;
  file.first_example = examples;
  tokens += file.tokens();
  examples += file.examples;
  identity.files += 1;
  identity.bytes += file.file_bytes;
  files.push_back(std::move(file));
  return {};
}

// A descriptor of the file, opened now if it is not among the last kOpenFilesMax used.
Result<int> TokenSource::State::descriptor_of(std::size_t index) {
  uses += 1;
  for (OpenFile& open : open_files) {
    if (open.file == index) {
      open.last_use = uses;
      return open.descriptor.get();
    }
  }
  const TokenFile& file = files[index];
  HEADRACE_ASSIGN(UniqueFd descriptor, open_data(file.path));
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) {
    return errno_error(fmt::format("data: cannot look at '{}'", file.path), errno);
  }
  if (static_cast<std::uint64_t>(status.st_size) != file.file_bytes ||
      !same_time(status.st_mtim, file.modified)) {
    return operating_error(fmt::format("data: '{}' changed while the run reads it", file.path))
        .with_hint("data files must not change during a run; start it again");
  }
  const int handle = descriptor.get();
  if (open_files.size() < kOpenFilesMax) {
    open_files.push_back({index, uses, std::move(descriptor)});
    return handle;
  }
  const auto oldest = std::min_element(
      open_files.begin(), open_files.end(), [](const OpenFile& a, const OpenFile& b) {
        return a.last_use < b.last_use;
      });
  *oldest = {index, uses, std::move(descriptor)};
  return handle;
}

Status TokenSource::State::read_stored(std::size_t index,
                                       std::int64_t first,
                                       std::span<std::int32_t> out) {
  HEADRACE_ASSIGN(const int descriptor, descriptor_of(index));
  const TokenFile& file = files[index];
  const auto width = static_cast<std::size_t>(file.width);
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t count = std::min(buffer.size() / width, out.size() - done);
    const std::uint64_t offset =
        file.header_bytes + (static_cast<std::uint64_t>(first) + done) * width;
    HEADRACE_TRY(read_data(descriptor, file.path, offset, std::span(buffer).first(count * width)));
    for (std::size_t i = 0; i < count; ++i) {
      out[done + i] = static_cast<std::int32_t>(word_at(buffer.data() + i * width, file.width));
    }
    done += count;
  }
  return {};
}

// An example begins where the one before it ends.
Status TokenSource::State::read_index(const TokenFile& file,
                                      std::int64_t first,
                                      std::span<DataRange> out) {
  HEADRACE_ASSIGN(const int descriptor,
                  descriptor_of(static_cast<std::size_t>(&file - files.data())));
  std::vector<std::int64_t> ends(out.size() + 1);
  const std::size_t skipped = first == 0 ? 1 : 0;
  const std::uint64_t offset =
      file.tokens_end() + sizeof(std::int64_t) * (static_cast<std::uint64_t>(first) + skipped - 1);
  HEADRACE_TRY(read_data(
      descriptor, file.path, offset, std::as_writable_bytes(std::span(ends).subspan(skipped))));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (ends[i] < 0 || ends[i + 1] < ends[i] + 2 || ends[i + 1] > file.stored) {
      return bad_index(file);
    }
    out[i] = {.first = file.begin + ends[i], .count = ends[i + 1] - ends[i]};
  }
  return {};
}

TokenSource::TokenSource(std::unique_ptr<State> state) : state_(std::move(state)) {}

TokenSource::~TokenSource() = default;

Result<std::unique_ptr<TokenSource>> TokenSource::open(const std::vector<std::string>& files,
                                                       const TokenOptions& options) {
  HEADRACE_ASSERT(options.vocab > 0, "the vocabulary is known before data is opened");
  if (options.tokenizer == "bytes" && options.token_width) {
    return usage_error("data.tokenizer and data.token_width exclude each other")
        .with_why("text is cut by the tokenizer, raw token files by token_width")
        .with_where(options.where);
  }
  if (options.eos && (*options.eos < 0 || *options.eos >= options.vocab)) {
    return usage_error(
               fmt::format("data.eos = {}, but the vocabulary has {}", *options.eos, options.vocab))
        .with_hint("raise model.vocab, so that the end of a text has a token of its own")
        .with_where(options.where);
  }
  auto state = std::make_unique<State>();
  state->eos = options.eos;
  state->vocab = options.vocab;
  Hasher hasher;
  for (const std::string& path : files) {
    HEADRACE_TRY(state->add(path, options, hasher));
  }
  HEADRACE_TRY(state->check_kinds(options));
  const std::int64_t eos = options.eos.value_or(-1);
  hasher.update(std::as_bytes(std::span(&eos, 1)));
  state->identity.tokens = static_cast<std::uint64_t>(state->tokens);
  state->identity.hash = hasher.digest();
  return std::unique_ptr<TokenSource>(new TokenSource(std::move(state)));
}

std::int64_t TokenSource::tokens() const {
  return state_->tokens;
}

bool TokenSource::is_chat() const {
  return !state_->files.empty() && state_->files.front().kind == FileKind::kChat;
}

DataRange TokenSource::whole() const {
  return {.first = 0, .count = is_chat() ? state_->examples : state_->tokens};
}

std::string TokenSource::example_name(std::int64_t index) const {
  const TokenFile& file = state_->file_of_example(index);
  return fmt::format("example {} of '{}'", index - file.first_example + 1, file.path);
}

Result<DataRange> TokenSource::example(std::int64_t index) {
  DataRange range;
  HEADRACE_TRY(examples(index, {&range, 1}));
  return range;
}

Status TokenSource::examples(std::int64_t first, std::span<DataRange> out) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  HEADRACE_ASSERT(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= state.examples,
                  "examples are those of the data");
  while (!out.empty()) {
    const TokenFile& file = state.file_of_example(first);
    const std::int64_t within = first - file.first_example;
    const auto count = std::min(out.size(), static_cast<std::size_t>(file.examples - within));
    HEADRACE_TRY(state.read_index(file, within, out.first(count)));
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
  return {};
}

const DataIdentity& TokenSource::identity() const {
  return state_->identity;
}

Status TokenSource::read(std::int64_t first, std::span<std::int32_t> out) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  HEADRACE_ASSERT(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= state.tokens,
                  "a token range lies within the data");
  // The last file that begins at or before `first` (files without tokens begin where the next
  // does).
  auto file = std::upper_bound(
      state.files.begin(),
      state.files.end(),
      first,
      [](std::int64_t at, const TokenFile& candidate) { return at < candidate.begin; });
  std::size_t index = static_cast<std::size_t>(file - state.files.begin());
  index -= index > 0 ? 1 : 0;
  for (std::size_t done = 0; done < out.size(); ++index) {
    const TokenFile& current = state.files[index];
    const std::int64_t within = first + static_cast<std::int64_t>(done) - current.begin;
    const std::int64_t stored = std::min(static_cast<std::int64_t>(out.size() - done),
                                         std::max<std::int64_t>(0, current.stored - within));
    if (stored > 0) {
      HEADRACE_TRY(
          state.read_stored(index, within, out.subspan(done, static_cast<std::size_t>(stored))));
      done += static_cast<std::size_t>(stored);
    }
    if (done < out.size() && current.appended > 0) {
      out[done++] = static_cast<std::int32_t>(*state.eos);
    }
  }
  return {};
}

}  // namespace headrace::train
