// headrace generate: continues a prompt, to standard output as it goes.
#include "train/generate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/command.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {.name = "generate",
          .summary = "Continue a prompt",
          .options = {
              {.name = "--model",
               .value = "DIR",
               .help = "A Hugging Face directory, or the directory of a run (needed)"},
              {.name = "--prompt", .value = "TEXT", .help = "Where to begin (needed)"},
              {.name = "--chat", .help = "The prompt is a user's turn; writes the assistant's"},
              {.name = "--system",
               .value = "TEXT",
               .help = "With --chat: a system message in place of the template's"},
              {.name = "--stop", .value = "TEXT", .help = "End before this text", .repeated = true},
              {.name = "--tokens", .value = "N", .help = "At most so many tokens; 200"},
              {.name = "--temperature",
               .value = "T",
               .help = "0: always the likeliest token; 1 without it"},
              {.name = "--top-k", .value = "K", .help = "Draw from the K likeliest tokens"},
              {.name = "--top-p",
               .value = "P",
               .help = "Draw from the fewest tokens that have probability P together"},
              {.name = "--seed",
               .value = "S",
               .help = "Of the draws; the same seed gives the same text; 1337"}}};
}

Result<train::GenerateRequest> request_of(const Arguments& arguments) {
  if (!arguments.has("--model") || !arguments.has("--prompt")) {
    return usage_error("generate: --model DIR and --prompt TEXT are needed")
        .with_hint("headrace generate --help");
  }
  train::GenerateRequest request;
  request.dir = *arguments.text("--model");
  request.prompt = *arguments.text("--prompt");
  request.chat = arguments.has("--chat");
  request.system = arguments.text("--system");
  if (request.system && !request.chat) {
    return usage_error("generate: --system goes with --chat")
        .with_hint("a system message is a part of a chat");
  }
  request.stops = arguments.all("--stop");
  if (std::find(request.stops.begin(), request.stops.end(), "") != request.stops.end()) {
    return usage_error("--stop: the text is empty").with_hint("as in --stop '###'");
  }
  HEADRACE_ASSIGN(const auto tokens, arguments.integer("--tokens", 0));
  request.tokens = tokens.value_or(request.tokens);
  HEADRACE_ASSIGN(const auto temperature, arguments.number("--temperature", 0));
  request.sampler.temperature = temperature.value_or(request.sampler.temperature);
  HEADRACE_ASSIGN(request.sampler.top_k, arguments.integer("--top-k", 1));
  HEADRACE_ASSIGN(request.sampler.top_p, arguments.number("--top-p", 0));
  if (request.sampler.top_p && (*request.sampler.top_p <= 0 || *request.sampler.top_p > 1)) {
    return usage_error(
               fmt::format("--top-p: {} is not a probability above 0", *request.sampler.top_p))
        .with_hint("as in --top-p 0.9; 1 keeps every token");
  }
  HEADRACE_ASSIGN(const auto seed, arguments.integer("--seed", 0));
  request.sampler.seed = seed ? static_cast<std::uint64_t>(*seed) : request.sampler.seed;
  return request;
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kPolled);
  HEADRACE_ASSIGN(const train::GenerateRequest request, request_of(invocation.arguments));
  // A chat's answer stands alone.
  const std::string before = request.chat ? "" : request.prompt;
  bool begun = false;
  const auto on_text = [&](std::string_view text) {
    if (!invocation.json) {
      invocation.output.write(begun ? std::string(text) : before + std::string(text));
      begun = true;
    }
    return !invocation.output.closed();
  };
  HEADRACE_ASSIGN(const train::Generated generated, train::generate(request, on_text));
  Json json = Json::object();
  json.add("model", generated.model);
  json.add("prompt", request.prompt);
  json.add("text", generated.text);
  json.add("tokens", generated.tokens);
  json.add("end", generated.end);
  json.add("seed", request.sampler.seed);
  invocation.output.result(json, invocation.json, begun ? "\n" : before + "\n");
  return generated.end == "interrupt" ? ExitCode::kInterrupted : ExitCode::kOk;
}

}  // namespace

const Command kGenerateCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
