#include "train/tokenize.hpp"

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "core/files.hpp"
#include "core/json.hpp"
#include "core/system.hpp"
#include "core/threads.hpp"
#include "model/tokenizer.hpp"
#include "train/chat_example.hpp"
#include "train/interrupt.hpp"
#include "train/text_input.hpp"

namespace headrace::train {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20U;
// A line, or a text without a place to cut, that is longer is refused.
constexpr std::size_t kHeldBytesMax = std::size_t{4} << 30U;
constexpr std::size_t kChunksPerThread = 2;
constexpr std::int64_t kThreadsMax = 4096;
constexpr std::uint64_t kConfigBytesMax = std::uint64_t{16} << 20U;
constexpr std::int64_t kVocabOf16Bits = 65536;

// What one encoding thread gets at a time.
struct Chunk {
  std::string text;
  std::size_t file = 0;
  bool lines = false;            // of JSON; each is a document
  std::uint64_t first_line = 1;  // of the file
  bool ends_document = false;    // a text, whose end this is
};

struct Encoded {
  Status status;
  std::string bytes;                   // of the tokens
  std::vector<std::uint32_t> lengths;  // of a chat file's examples, in tokens
  std::uint64_t learned = 0;
  std::uint64_t documents = 0;
  std::uint64_t text_bytes = 0;
};

bool holds_lines(std::string_view path) {
  path = without_packed_suffix(path);
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

// Reads the files one after the other and cuts them into chunks.
class Reader {
 public:
  Reader(const std::vector<std::string>& files, const model::Tokenizer& tokenizer)
      : files_(files), tokenizer_(tokenizer) {}

  // False: there is nothing more.
  Result<bool> next(Chunk& chunk) {
    while (input_ != nullptr || file_ < files_.size()) {
      if (input_ == nullptr) {
        HEADRACE_ASSIGN(input_, TextInput::open(files_[file_]));
        lines_ = holds_lines(files_[file_]);
        line_ = 1;
      }
      HEADRACE_ASSIGN(const std::size_t cut, fill());
      take(cut, chunk);
      if (at_end_ && held_.empty()) {
        chunk.ends_document = !lines_;
        input_ = nullptr;
        at_end_ = false;
        ++file_;
      }
      if (chunk.ends_document || !chunk.text.empty()) {
        return true;
      }
    }
    return false;
  }

 private:
  // Reads until a chunk can be cut off what is held; returns its bytes.
  Result<std::size_t> fill() {
    for (std::size_t wanted = kChunkBytes;; wanted *= 2) {
      HEADRACE_TRY(hold(wanted));
      if (at_end_) {
        return held_.size();
      }
      const std::size_t cut = lines_ ? held_.rfind('\n') + 1 : tokenizer_.last_cut(held_);
      if (cut > 0) {
        return cut;
      }
      if (wanted >= kHeldBytesMax) {
        return operating_error(fmt::format("'{}' has {} of more than {} bytes",
                                           files_[file_],
                                           lines_ ? "a line" : "a part that cannot be cut",
                                           kHeldBytesMax))
            .with_why("it would have to be held in memory whole")
            .with_hint("cut the file into documents");
      }
    }
  }

  Status hold(std::size_t wanted) {
    if (held_.size() >= wanted || at_end_) {
      return {};
    }
    const std::size_t before = held_.size();
    held_.resize(wanted);
    HEADRACE_ASSIGN(const std::size_t bytes, input_->read(std::span(held_).subspan(before)));
    held_.resize(before + bytes);
    at_end_ = held_.size() < wanted;
    return {};
  }

  void take(std::size_t cut, Chunk& chunk) {
    chunk.file = file_;
    chunk.lines = lines_;
    chunk.first_line = line_;
    std::string rest = held_.substr(cut);
    held_.resize(cut);
    chunk.text = std::exchange(held_, std::move(rest));
    if (lines_) {
      line_ += static_cast<std::uint64_t>(std::count(chunk.text.begin(), chunk.text.end(), '\n'));
    }
  }

  const std::vector<std::string>& files_;
  const model::Tokenizer& tokenizer_;
  std::size_t file_ = 0;
  std::unique_ptr<TextInput> input_;  // of files_[file_]; null: not open
  bool lines_ = false;
  bool at_end_ = false;
  std::uint64_t line_ = 1;
  std::string held_;
};

// What ends a document, or makes an example.
struct Endings {
  std::optional<std::int32_t> eos;
  const ChatEncoder* chat = nullptr;
};

// Turns chunks into bytes of tokens; const, for any thread.
class Encoder {
 public:
  Encoder(const model::Tokenizer& tokenizer,
          const TokenizeRequest& request,
          const std::vector<std::string>& files,
          const Endings& endings,
          int width)
      : tokenizer_(tokenizer),
        request_(request),
        files_(files),
        eos_(endings.eos),
        chat_(endings.chat),
        width_(width) {}

  [[nodiscard]] Encoded encode(const Chunk& chunk) const {
    Encoded encoded;
    encoded.text_bytes = chunk.text.size();
    if (chat_ != nullptr) {
      encoded.status = encode_examples(chunk, encoded);
      return encoded;
    }
    std::vector<std::int32_t> tokens;
    encoded.status = chunk.lines ? encode_lines(chunk, tokens, encoded.documents)
                                 : encode_text(chunk, tokens, encoded.documents);
    if (encoded.status) {
      pack(tokens, encoded.bytes);
    }
    return encoded;
  }

 private:
  Status encode_text(const Chunk& chunk,
                     std::vector<std::int32_t>& tokens,
                     std::uint64_t& documents) const {
    if (Status status = tokenizer_.encode(chunk.text, tokens); !status) {
      return at(std::move(status).error(), files_[chunk.file]);
    }
    if (chunk.ends_document) {
      end_document(tokens, documents);
    }
    return {};
  }

  // Each line that is not blank; its error gets its place.
  template <class F>
  [[nodiscard]] Status for_each_line(const Chunk& chunk, const F& encode_one) const {
    std::uint64_t number = chunk.first_line;
    for (std::string_view rest = chunk.text; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        continue;
      }
      Result<Json> json = parse_json(line);
      Status status = json ? encode_one(*json)
                           : std::move(json).error().with_hint("JSON lines are one object a line");
      if (!status) {
        return at(std::move(status).error(), fmt::format("{}:{}", files_[chunk.file], number));
      }
    }
    return {};
  }

  Status encode_lines(const Chunk& chunk,
                      std::vector<std::int32_t>& tokens,
                      std::uint64_t& documents) const {
    return for_each_line(chunk, [&](const Json& line) -> Status {
      HEADRACE_TRY(encode_line(line, tokens));
      end_document(tokens, documents);
      return {};
    });
  }

  Status encode_examples(const Chunk& chunk, Encoded& encoded) const {
    std::vector<std::uint32_t> words;
    Status status = for_each_line(chunk, [&](const Json& line) -> Status {
      const std::size_t before = words.size();
      HEADRACE_TRY(chat_->encode(line, words));
      encoded.lengths.push_back(static_cast<std::uint32_t>(words.size() - before));
      return {};
    });
    encoded.documents = encoded.lengths.size();
    for (const std::uint32_t word : words) {
      encoded.learned += word >= kLearnedBit ? 1 : 0;
    }
    encoded.bytes.assign(reinterpret_cast<const char*>(words.data()), words.size() * 4);
    return status;
  }

  Status encode_line(const Json& line, std::vector<std::int32_t>& tokens) const {
    if (request_.field == "text" && line.find("text") == nullptr &&
        (line.find("messages") != nullptr || line.find("completion") != nullptr)) {
      return usage_error("there is no \"text\", but a conversation")
          .with_hint("--chat makes a chat file of instruction data");
    }
    const Json* text = line.find(request_.field);
    if (text == nullptr || text->as_string() == nullptr) {
      return corrupt_error(text == nullptr ? fmt::format("there is no \"{}\"", request_.field)
                                           : fmt::format("\"{}\" is no text", request_.field))
          .with_hint("--field NAME says which member holds the text");
    }
    return tokenizer_.encode(*text->as_string(), tokens);
  }

  static Error at(Error error, const std::string& place) {
    error.what = fmt::format("{}: {}", place, error.what);
    return error;
  }

  void end_document(std::vector<std::int32_t>& tokens, std::uint64_t& documents) const {
    documents += 1;
    if (eos_) {
      tokens.push_back(*eos_);
    }
  }

  void pack(const std::vector<std::int32_t>& tokens, std::string& bytes) const {
    bytes.resize(tokens.size() * static_cast<std::size_t>(width_));
    if (width_ == 4) {
      std::memcpy(bytes.data(), tokens.data(), bytes.size());
      return;
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<std::uint16_t>(tokens[i]);
      std::memcpy(bytes.data() + 2 * i, &token, sizeof token);
    }
  }

  const model::Tokenizer& tokenizer_;
  const TokenizeRequest& request_;
  const std::vector<std::string>& files_;
  std::optional<std::int32_t> eos_;
  const ChatEncoder* chat_;  // null: no chat file
  int width_;
};

Error interrupted() {
  return make_error(ExitCode::kInterrupted, "interrupted")
      .with_why("SIGINT or SIGTERM came before the end; nothing was written");
}

Status read_next(Reader& reader, Chunk& chunk, bool& more) {
  HEADRACE_ASSIGN(more, reader.next(chunk));
  return {};
}

// The first error in the order of the text is the one that counts.
Status run_pipeline(Reader& reader,
                    const Encoder& encoder,
                    TokenWriter& writer,
                    std::size_t threads,
                    Tokenized& result) {
  using ChunkPointer = std::shared_ptr<Chunk>;
  using EncodedPointer = std::shared_ptr<Encoded>;
  Status reading;
  Status writing;
  std::atomic<bool> failed = false;  // the first filter runs beside the last
  const auto read = [&](tbb::flow_control& flow) -> ChunkPointer {
    auto chunk = std::make_shared<Chunk>();
    bool more = false;
    if (!failed) {
      reading = interrupt_requested() ? Status(interrupted()) : read_next(reader, *chunk, more);
    }
    if (!more) {
      flow.stop();
      return nullptr;
    }
    return chunk;
  };
  const auto encode = [&](const ChunkPointer& chunk) -> EncodedPointer {
    return std::make_shared<Encoded>(encoder.encode(*chunk));
  };
  const auto write = [&](const EncodedPointer& encoded) {
    if (!writing) {
      return;
    }
    writing = encoded->status ? writer.append(encoded->bytes) : encoded->status;
    if (writing) {
      writing = writer.end_examples(encoded->lengths);
    }
    failed = !writing;
    result.learned += encoded->learned;
    result.documents += encoded->documents;
    result.text_bytes += encoded->text_bytes;
  };
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  tbb::task_arena arena(static_cast<int>(threads));
  arena.execute([&] {
    tbb::parallel_pipeline(
        threads * kChunksPerThread,
        tbb::make_filter<void, ChunkPointer>(tbb::filter_mode::serial_in_order, read) &
            tbb::make_filter<ChunkPointer, EncodedPointer>(tbb::filter_mode::parallel, encode) &
            tbb::make_filter<EncodedPointer, void>(tbb::filter_mode::serial_in_order, write));
  });
  return writing ? std::move(reading) : std::move(writing);
}

Result<std::optional<std::int32_t>> eos_in_json(const std::string& path,
                                                const model::Tokenizer& tokenizer) {
  if (!is_regular_file(path)) {
    return std::optional<std::int32_t>();
  }
  HEADRACE_ASSIGN(const std::string text, read_file(path, kConfigBytesMax));
  Result<Json> json = parse_json(text);
  if (!json) {
    Error error = std::move(json).error();
    error.what = fmt::format("'{}': {}", path, error.what);
    return error;
  }
  const Json* token = json->find("eos_token");
  if (token != nullptr && token->as_object() != nullptr) {
    token = token->find("content");
  }
  if (token != nullptr && token->as_string() != nullptr) {
    return tokenizer.token_id(*token->as_string());
  }
  const Json* id = json->find("eos_token_id");
  if (id != nullptr && id->as_int() && *id->as_int() >= 0 && *id->as_int() < tokenizer.vocab()) {
    return std::optional(static_cast<std::int32_t>(*id->as_int()));
  }
  return std::optional<std::int32_t>();
}

// What the files beside a tokenizer.json call the end of a text.
Result<std::optional<std::int32_t>> eos_of_directory(const std::string& file,
                                                     const model::Tokenizer& tokenizer) {
  for (const char* name : {"tokenizer_config.json", "config.json"}) {
    HEADRACE_ASSIGN(const std::optional<std::int32_t> found,
                    eos_in_json(fmt::format("{}/{}", parent_path(file), name), tokenizer));
    if (found) {
      return found;
    }
  }
  return usage_error(fmt::format("which token ends a document of '{}' is not known", file))
      .with_why("neither tokenizer_config.json nor config.json beside it says so")
      .with_hint("--eos \"<|endoftext|>\", an id, or none");
}

Result<std::optional<std::int32_t>> eos_of(const TokenizeRequest& request,
                                           const model::Tokenizer& tokenizer) {
  const bool bytes = request.tokenizer == "bytes";
  if (!request.eos) {
    return bytes ? Result<std::optional<std::int32_t>>(std::nullopt)
                 : eos_of_directory(std::string(tokenizer.name()), tokenizer);
  }
  if (*request.eos == "none") {
    return std::optional<std::int32_t>();
  }
  std::int32_t id = 0;
  const char* end = request.eos->data() + request.eos->size();
  const auto [stop, code] = std::from_chars(request.eos->data(), end, id);
  if (code == std::errc() && stop == end) {
    // Bytes may be ended by the first token behind them.
    const std::int64_t limit = tokenizer.vocab() + (bytes ? 1 : 0);
    if (id < 0 || id >= limit) {
      return usage_error(fmt::format("--eos: {} is no token", id))
          .with_why(fmt::format("'{}' has the tokens 0 to {}", tokenizer.name(), limit - 1));
    }
    return std::optional(id);
  }
  const std::optional<std::int32_t> found = tokenizer.token_id(*request.eos);
  if (!found || bytes) {
    return usage_error(
               fmt::format("--eos: '{}' is no token of '{}'", *request.eos, tokenizer.name()))
        .with_hint("a token as tokenizer.json has it, an id, or none");
  }
  return found;
}

Result<std::vector<std::string>> files_of(const TokenizeRequest& request) {
  std::vector<std::string> files;
  for (const std::string& pattern : request.inputs) {
    HEADRACE_ASSIGN(const std::vector<std::string> found, expand_glob(pattern));
    files.insert(files.end(), found.begin(), found.end());
  }
  const auto place_of = [](const std::string& path) {
    return real_path(absolute_path(working_directory(), path));
  };
  const std::string target = place_of(request.target);
  const std::string partial = place_of(TokenWriter::partial_of(request.target));
  for (const std::string& file : files) {
    const std::string place = place_of(file);
    if (place == target) {
      return usage_error(fmt::format("'{}' is an input and the target", file))
          .with_hint("name another file with --to");
    }
    if (place == partial) {
      return usage_error(fmt::format("'{}' is an input, and where the target is written", file))
          .with_why("a run that was killed leaves it")
          .with_hint("remove it, or name another file with --to");
    }
  }
  return files;
}

Status check_lines(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (!holds_lines(file)) {
      return usage_error(fmt::format("'{}' is no file of JSON lines", file))
          .with_why(
              "--chat reads examples from .jsonl, .ndjson or .json, plain or with .gz or .zst")
          .with_hint("rename the file if it holds them");
    }
  }
  return {};
}

Result<ChatTemplate> template_beside(const model::Tokenizer& tokenizer) {
  if (tokenizer.name() == "bytes") {
    return usage_error("bytes have no chat template")
        .with_hint("lines of texts {\"prompt\": ..., \"completion\": ...} need none");
  }
  return ChatTemplate::beside(std::string(tokenizer.name()));
}

Status check_target(const TokenizeRequest& request) {
  if (is_directory(request.target)) {
    return usage_error(fmt::format("'{}' is a directory", request.target))
        .with_hint("--to FILE: the token file to make");
  }
  if (path_exists(request.target) && !is_regular_file(request.target)) {
    return usage_error(fmt::format("'{}' is no regular file", request.target))
        .with_why("the token file would take its place")
        .with_hint("--to FILE: the token file to make");
  }
  if (path_exists(request.target) && !request.overwrite) {
    return usage_error(fmt::format("'{}' exists", request.target))
        .with_hint("--overwrite replaces it");
  }
  return {};
}

}  // namespace

Result<Tokenized> tokenize_files(const TokenizeRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  HEADRACE_TRY(check_target(request));
  HEADRACE_ASSIGN(const std::vector<std::string> files, files_of(request));
  HEADRACE_ASSIGN(const auto tokenizer, model::make_tokenizer(request.tokenizer));
  Tokenized result;
  result.tokenizer = tokenizer->name();
  const bool is_chat = request.format == TokenFormat::kChat;
  Result<std::optional<std::int32_t>> eos = eos_of(request, *tokenizer);
  if (!eos && (!is_chat || request.eos)) {
    return std::move(eos).error();
  }
  std::optional<ChatEncoder> chat;
  if (is_chat) {
    HEADRACE_TRY(check_lines(files));
    chat.emplace(*tokenizer, template_beside(*tokenizer), eos);
  }
  result.eos = eos ? *eos : std::nullopt;
  result.vocab = std::max<std::int64_t>(tokenizer->vocab(), result.eos.value_or(-1) + 1);
  result.token_bytes = result.vocab <= kVocabOf16Bits && !is_chat ? 2 : 4;
  result.files = files.size();
  const std::int64_t threads = request.threads > 0 ? request.threads : usable_cores();
  if (threads > kThreadsMax) {
    return usage_error(fmt::format("--threads: at most {}", kThreadsMax));
  }
  HEADRACE_TRY(check_threads(static_cast<int>(threads)));
  HEADRACE_ASSIGN(const std::unique_ptr<TokenWriter> writer,
                  TokenWriter::create(request.target, request.format, result.token_bytes));
  Reader reader(files, *tokenizer);
  const Encoder encoder(*tokenizer,
                        request,
                        files,
                        {.eos = result.eos, .chat = chat ? &*chat : nullptr},
                        result.token_bytes);
  HEADRACE_TRY(run_pipeline(reader, encoder, *writer, static_cast<std::size_t>(threads), result));
  if (interrupt_requested()) {
    return interrupted();
  }
  HEADRACE_TRY(writer->finish());
  result.tokens = writer->tokens();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace headrace::train
