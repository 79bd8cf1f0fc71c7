// headrace tokenize: text files to a token file.
#include "train/tokenize.hpp"

#include <fmt/format.h>

#include "cli/command.hpp"
#include "core/quantity.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {
      .name = "tokenize",
      .summary = "Make a token file of text files",
      .positionals = {{.name = "INPUT",
                       .help = "Text, .jsonl, both plain or in gzip or zstd; files and patterns",
                       .repeated = true}},
      .options = {{.name = "--tokenizer",
                   .value = "FILE|DIR|bytes",
                   .help = "A tokenizer.json, a directory that holds one, or bytes (needed)"},
                  {.name = "--to", .value = "OUT.bin", .help = "The token file to make (needed)"},
                  {.name = "--chat",
                   .help = "Instruction data: lines of messages, or of prompt and completion"},
                  {.name = "--field",
                   .value = "NAME",
                   .help = "The member of a JSON line that holds the text; text without it"},
                  {.name = "--eos",
                   .value = "ID|TOKEN|none",
                   .help = "Put behind each document; without it what the tokenizer's directory "
                           "says"},
                  {.name = "--format",
                   .value = "FORMAT",
                   .help = "llm.c, with a header, or raw, as nanoGPT's; llm.c without it",
                   .choices = {"llm.c", "raw"}},
                  {.name = "--threads", .value = "N", .help = "As many as cores without it"},
                  {.name = "--overwrite", .help = "Replace OUT.bin"}}};
}

Result<train::TokenizeRequest> request_of(const Arguments& arguments) {
  if (!arguments.has("--tokenizer") || !arguments.has("--to")) {
    return usage_error("tokenize: --tokenizer FILE|DIR|bytes and --to OUT.bin are needed")
        .with_hint("headrace tokenize --help");
  }
  train::TokenizeRequest request;
  request.tokenizer = *arguments.text("--tokenizer");
  request.target = *arguments.text("--to");
  request.inputs = arguments.all("INPUT");
  request.field = arguments.text("--field").value_or(request.field);
  request.eos = arguments.text("--eos");
  if (arguments.text("--format").value_or("llm.c") == "raw") {
    request.format = train::TokenFormat::kRaw;
  }
  if (arguments.has("--chat")) {
    if (arguments.has("--field") || arguments.has("--format")) {
      return usage_error("tokenize: --field and --format do not go with --chat")
          .with_why("instruction data have fields and a format of their own")
          .with_hint("headrace tokenize --help");
    }
    request.format = train::TokenFormat::kChat;
  }
  HEADRACE_ASSIGN(const auto threads, arguments.integer("--threads", 1));
  request.threads = threads.value_or(0);
  request.overwrite = arguments.has("--overwrite");
  return request;
}

const char* format_name(train::TokenFormat format) {
  switch (format) {
    case train::TokenFormat::kRaw:
      return "raw";
    case train::TokenFormat::kChat:
      return "chat";
    case train::TokenFormat::kLlmc:
      break;
  }
  return "llm.c";
}

std::string in_words(const train::Tokenized& made, bool is_chat) {
  if (is_chat) {
    return fmt::format(
        "{} examples, {} tokens, {} of them to learn", made.documents, made.tokens, made.learned);
  }
  return fmt::format("{} tokens of {} bytes, {} documents, each ended by {}",
                     made.tokens,
                     made.token_bytes,
                     made.documents,
                     made.eos ? fmt::format("token {}", *made.eos) : "nothing");
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kPolled);
  HEADRACE_ASSIGN(const train::TokenizeRequest request, request_of(invocation.arguments));
  HEADRACE_ASSIGN(const train::Tokenized made, train::tokenize_files(request));
  const double rate = static_cast<double>(made.text_bytes) / made.seconds;
  Json json = Json::object();
  json.add("target", request.target);
  const bool is_chat = request.format == train::TokenFormat::kChat;
  json.add("format", format_name(request.format));
  json.add("token_bytes", made.token_bytes);
  json.add("tokens", made.tokens);
  json.add(is_chat ? "examples" : "documents", made.documents);
  if (is_chat) {
    json.add("learned", made.learned);
  }
  json.add("files", made.files);
  json.add("text_bytes", made.text_bytes);
  json.add("tokenizer", made.tokenizer);
  json.add("vocab", made.vocab);
  json.add("eos", made.eos);
  json.add("seconds", made.seconds);
  json.add("bytes_per_s", rate);
  invocation.output.result(json,
                           invocation.json,
                           fmt::format("{}: {}\n{} of text in {}, {}/s\n",
                                       request.target,
                                       in_words(made, is_chat),
                                       format_bytes(made.text_bytes),
                                       format_duration(made.seconds),
                                       format_bytes(static_cast<std::uint64_t>(rate))));
  return ExitCode::kOk;
}

}  // namespace

const Command kTokenizeCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
