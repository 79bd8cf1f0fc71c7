// How fast text becomes tokens on one core: MB/s of a file, the median of several rounds.
//
// The file is encoded in documents of 64 KiB or so, cut at line feeds, as tokenizer_peers.py does
// for the peer. The first round fills the caches and does not count. Thread: main's.
//
//   tokenizer_bench TOKENIZER FILE [rounds [TOKENS]]    prints RESULT {"mb_per_s":..., ...}
//
// TOKENS: a file for the tokens, 32 bits each.

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "model/tokenizer.hpp"

namespace headrace::model {
namespace {

constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 32U;
constexpr std::size_t kDocumentBytes = std::size_t{64} << 10U;

std::vector<std::string_view> documents_of(std::string_view text) {
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n', kDocumentBytes);
    const std::size_t bytes = newline == std::string_view::npos ? text.size() : newline + 1;
    documents.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return documents;
}

int rounds_of(std::string_view text) {
  int rounds = 0;
  std::from_chars(text.data(), text.data() + text.size(), rounds);
  return std::max(1, rounds);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Measure {
  std::string tokenizer;
  std::string path;
  int rounds = 5;
  std::string tokens;  // where they go; "": nowhere
};

Result<std::string> measure(const Measure& wanted) {
  const double begin = seconds_now();
  HEADRACE_ASSIGN(const auto tokenizer, make_tokenizer(wanted.tokenizer));
  const double load_seconds = seconds_now() - begin;
  HEADRACE_ASSIGN(const std::string text, read_file(wanted.path, kFileBytesMax));
  std::vector<double> rates;
  std::vector<std::int32_t> tokens;
  for (int round = 0; round <= wanted.rounds; ++round) {
    tokens.clear();
    const double start = seconds_now();
    for (const std::string_view document : documents_of(text)) {
      HEADRACE_TRY(tokenizer->encode(document, tokens));
    }
    if (round > 0) {
      rates.push_back(static_cast<double>(text.size()) / (seconds_now() - start) / 1e6);
    }
  }
  if (!wanted.tokens.empty()) {
    HEADRACE_TRY(write_file_atomically(
        wanted.tokens,
        {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(std::int32_t)}));
  }
  std::sort(rates.begin(), rates.end());
  return fmt::format(
      "RESULT {{\"mb_per_s\":{:.2f},\"slowest\":{:.2f},\"fastest\":{:.2f},\"load_s\":{:.3f},"
      "\"bytes\":{},\"tokens\":{}}}\n",
      rates[rates.size() / 2],
      rates.front(),
      rates.back(),
      load_seconds,
      text.size(),
      tokens.size());
}

}  // namespace
}  // namespace headrace::model

int main(int count, char** values) {
  if (count < 3) {
    fmt::print(stderr, "usage: tokenizer_bench TOKENIZER FILE [rounds [TOKENS]]\n");
    return 2;
  }
  const auto line =
      headrace::model::measure({.tokenizer = values[1],
                                .path = values[2],
                                .rounds = count > 3 ? headrace::model::rounds_of(values[3]) : 5,
                                .tokens = count > 4 ? values[4] : ""});
  if (!line) {
    fmt::print(stderr, "{}", headrace::format_error(line.error(), true));
    return static_cast<int>(line.error().code);
  }
  fmt::print("{}", *line);
  return 0;
}
