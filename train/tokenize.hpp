// headrace tokenize: text files to one token file, on all cores.
//
// Texts, JSON lines, both plain or compressed; or JSON lines of instruction data to a chat file.
// One thread reads and cuts, each core encodes, one writes in order. A text is cut only where its
// tokens stay the same (Tokenizer::last_cut); one for which no such place is known is held whole.
// Invariant: the file does not depend on the number of threads; without such a text, memory does
// not grow with the input. Thread: main's; it starts oneTBB's. Failure: Result, with file and line;
// nothing is left behind, but by SIGKILL or a second interrupt the .partial file (TokenWriter),
// which the next run to that target takes over. An interrupt is an error with exit code 130.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "train/token_writer.hpp"

namespace headrace::train {

struct TokenizeRequest {
  std::string tokenizer;            // "bytes", a tokenizer.json or its directory
  std::string target;               // the token file
  std::vector<std::string> inputs;  // files and patterns
  std::string field = "text";       // of a JSON line
  std::optional<std::string> eos;   // an id, a token's text, or "none"; what the directory says
  TokenFormat format = TokenFormat::kLlmc;  // kChat: lines of train/chat_example.hpp
  std::int64_t threads = 0;                 // 0: as many as cores
  bool overwrite = false;
};

struct Tokenized {
  std::string tokenizer;
  std::int64_t vocab = 0;
  std::optional<std::int32_t> eos;
  int token_bytes = 0;
  std::uint64_t files = 0;
  std::uint64_t documents = 0;   // examples of a chat file
  std::uint64_t text_bytes = 0;  // unpacked, as read
  std::uint64_t tokens = 0;
  std::uint64_t learned = 0;  // of a chat file
  double seconds = 0;
};

[[nodiscard]] Result<Tokenized> tokenize_files(const TokenizeRequest& request);

}  // namespace headrace::train
