#include "train/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "core/config.hpp"
#include "core/random.hpp"
#include "model/tokenizer.hpp"
#include "train/chat_template.hpp"
#include "train/engine.hpp"
#include "train/interrupt.hpp"
#include "train/probe.hpp"
#include "train/session.hpp"
#include "train/stop_text.hpp"
#include "train/weights.hpp"

namespace headrace::train {
namespace {

constexpr std::int64_t kWindowGranule = 64;

struct Candidate {
  std::int32_t token = 0;
  double weight = 0;  // not normalised
};

// Of all tokens with exp((logit - largest) / temperature), most likely first.
std::vector<Candidate> ranked(std::span<const float> logits, double temperature) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  const double largest = logits[static_cast<std::size_t>(order.front())];
  std::vector<Candidate> candidates;
  candidates.reserve(order.size());
  for (const std::int32_t token : order) {
    const double logit = logits[static_cast<std::size_t>(token)];
    candidates.push_back({.token = token, .weight = std::exp((logit - largest) / temperature)});
  }
  return candidates;
}

double total_of(const std::vector<Candidate>& candidates) {
  return std::accumulate(
      candidates.begin(), candidates.end(), 0.0, [](double sum, const Candidate& candidate) {
        return sum + candidate.weight;
      });
}

void keep_top_p(double top_p, std::vector<Candidate>& candidates) {
  const double wanted = top_p * total_of(candidates);
  double sum = 0;
  std::size_t count = 0;
  while (count < candidates.size() && (count == 0 || sum < wanted)) {
    sum += candidates[count++].weight;
  }
  candidates.resize(count);
}

std::int64_t round_up(std::int64_t value, std::int64_t granule) {
  return (value + granule - 1) / granule * granule;
}

// The engine with the weights in it, for windows of the length that its plan has.
struct Generator {
  std::unique_ptr<Engine> engine;
  std::vector<std::int32_t> window;
};

Result<Generator> make_generator(Weights& weights, std::int64_t length) {
  HEADRACE_ASSIGN(RunConfig config, default_run_config({}));
  config.batch.micro_batch = 1;
  const std::int64_t longest = weights.architecture().max_seq_len;
  config.batch.seq_len = std::min(longest, round_up(std::min(length, longest), kWindowGranule));
  config.batch.accumulate = 1;
  config = resolve_config(std::move(config), std::nullopt);
  HEADRACE_ASSIGN(const plan::MachineProfile machine, known_machine());
  PlanRequest request;
  request.purpose = plan::Purpose::kGenerate;
  HEADRACE_ASSIGN(Planned planned, make_planned(config, weights.architecture(), machine, request));
  Generator generator;
  HEADRACE_ASSIGN(generator.engine, Engine::create(std::move(planned), nullptr));
  const plan::ModelSpec& spec = generator.engine->planned().spec;
  HEADRACE_TRY(generator.engine->executor().load(
      [&](int unit, std::int64_t begin, std::span<float> out) -> Status {
        return weights.read(spec, unit, begin, out);
      }));
  generator.window.resize(static_cast<std::size_t>(config.batch.seq_len));
  return generator;
}

// Logits of the token after `tokens`, of which the last that fit are seen.
Result<std::span<const float>> next_logits(Generator& generator,
                                           const std::vector<std::int32_t>& tokens) {
  const std::size_t seen = std::min(tokens.size(), generator.window.size());
  std::copy(
      tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end(), generator.window.begin());
  std::fill(
      generator.window.begin() + static_cast<std::ptrdiff_t>(seen), generator.window.end(), 0);
  return generator.engine->executor().logits(generator.window, static_cast<std::int64_t>(seen) - 1);
}

// A draw from NaN would look like text.
Status check_finite(std::span<const float> logits, const Weights& weights) {
  const auto found =
      std::find_if(logits.begin(), logits.end(), [](float logit) { return !std::isfinite(logit); });
  if (found == logits.end()) {
    return {};
  }
  return corrupt_error(fmt::format("{} gives no probabilities", weights.description()))
      .with_why(fmt::format("the logit of token {} is {}", found - logits.begin(), *found))
      .with_hint("its weights hold NaN or Inf, or lead to it: they cannot be used");
}

Result<std::unique_ptr<model::Tokenizer>> tokenizer_for(const std::string& dir,
                                                        const Weights& weights) {
  const std::string name = tokenizer_of_directory(dir, weights.architecture());
  if (name.empty()) {
    return usage_error(fmt::format("{} has no tokenizer", weights.description()))
        .with_hint("put its tokenizer.json beside its config.json");
  }
  return model::make_tokenizer(name);
}

// Tokens that could not be said: vocabularies are padded, and have gaps. An end need not be said.
std::vector<std::int32_t> unsaid_tokens(const model::Tokenizer& tokenizer,
                                        std::int64_t vocab,
                                        const std::vector<std::int64_t>& ends) {
  std::vector<std::int32_t> unsaid;
  for (std::int32_t token = 0; token < vocab; ++token) {
    if (!tokenizer.has_token(token) && std::find(ends.begin(), ends.end(), token) == ends.end()) {
      unsaid.push_back(token);
    }
  }
  return unsaid;
}

// What the model reads first, and which tokens end what follows.
struct Prompt {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> ends;
};

// The turn of a chat ends with one token, which a model's configuration need not name.
Result<Prompt> read_chat(const GenerateRequest& request,
                         const model::Tokenizer& tokenizer,
                         const Weights& weights) {
  if (tokenizer.name() == "bytes") {
    return usage_error(fmt::format("{} has no chat template", weights.description()))
        .with_why("its tokens are bytes")
        .with_hint("leave out --chat");
  }
  HEADRACE_ASSIGN(const ChatTemplate chat, ChatTemplate::beside(std::string(tokenizer.name())));
  std::vector<ChatMessage> messages;
  if (request.system) {
    messages.push_back({.role = "system", .content = *request.system});
  }
  messages.push_back({.role = "user", .content = request.prompt});
  HEADRACE_ASSIGN(const ChatText text, chat.render(messages, true));
  Prompt prompt;
  HEADRACE_TRY(tokenizer.encode(text.text, prompt.tokens));
  prompt.ends = weights.architecture().eos_tokens;
  const std::optional<std::int32_t> end = tokenizer.token_id(chat.turn_end());
  if (!end) {
    return usage_error(fmt::format("'{}' is no token of '{}'", chat.turn_end(), tokenizer.name()))
        .with_why("a turn of the model's chat template ends with it");
  }
  prompt.ends.push_back(*end);
  return prompt;
}

Result<Prompt> read_prompt(const GenerateRequest& request,
                           const model::Tokenizer& tokenizer,
                           const Weights& weights) {
  if (request.chat) {
    return read_chat(request, tokenizer, weights);
  }
  Prompt prompt;
  prompt.ends = weights.architecture().eos_tokens;
  HEADRACE_TRY(tokenizer.encode(request.prompt, prompt.tokens));
  if (prompt.tokens.empty()) {
    return usage_error("the prompt is empty").with_hint("--prompt TEXT: at least one character");
  }
  return prompt;
}

// The tokenizer of another model may have more tokens.
Status check_prompt(const std::vector<std::int32_t>& tokens,
                    const model::Tokenizer& tokenizer,
                    const Weights& weights) {
  const std::int64_t vocab = weights.architecture().vocab;
  for (const std::int32_t token : tokens) {
    if (token >= vocab) {
      return usage_error(fmt::format("the prompt has token {}, but the model's vocabulary has {}",
                                     token,
                                     vocab))
          .with_why(
              fmt::format("the tokenizer '{}' has {} tokens", tokenizer.name(), tokenizer.vocab()))
          .with_hint("use the tokenizer that the model was trained with");
    }
  }
  return {};
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits,
                          const SamplerSettings& settings,
                          std::int64_t index) {
  HEADRACE_ASSERT(!logits.empty(), "there is a vocabulary");
  if (settings.temperature <= 0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
  }
  std::vector<Candidate> candidates = ranked(logits, settings.temperature);
  if (settings.top_k) {
    candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(*settings.top_k)));
  }
  if (settings.top_p) {
    keep_top_p(*settings.top_p, candidates);
  }
  const RandomSource random(settings.seed, RandomStream::kSampling);
  const double drawn =
      random.uniform({.update = 0, .tensor = 0, .element = static_cast<std::uint64_t>(index)}) *
      total_of(candidates);
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
    if (drawn < sum) {
      return candidate.token;
    }
  }
  return candidates.back().token;
}

namespace {

// What stays the same from token to token.
struct Continuing {
  const GenerateRequest& request;
  const Weights& weights;
  const model::Tokenizer& tokenizer;
  const std::vector<std::int64_t>& ends;
  const std::function<bool(std::string_view)>& on_text;
};

// `tokens` grows by those that are made.
Status continue_text(const Continuing& with,
                     Generator& generator,
                     std::vector<std::int32_t>& tokens,
                     Generated& generated) {
  const std::vector<std::int32_t> unsaid =
      unsaid_tokens(with.tokenizer, with.weights.architecture().vocab, with.ends);
  std::vector<float> sayable;  // logits of one step
  StopText stop(with.request.stops);
  const auto show = [&](const std::string& text) {
    generated.text += text;
    return with.on_text(text);
  };
  generated.end = "length";
  while (generated.tokens < with.request.tokens) {
    if (interrupt_requested()) {
      generated.end = "interrupt";
      break;
    }
    HEADRACE_ASSIGN(const std::span<const float> logits, next_logits(generator, tokens));
    HEADRACE_TRY(check_finite(logits, with.weights));
    sayable.assign(logits.begin(), logits.end());
    for (const std::int32_t token : unsaid) {
      sayable[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
    const std::int32_t token = sample_token(sayable, with.request.sampler, generated.tokens);
    if (std::find(with.ends.begin(), with.ends.end(), token) != with.ends.end()) {
      generated.end = "eos";
      break;
    }
    tokens.push_back(token);
    generated.tokens += 1;
    std::string text;
    HEADRACE_TRY(with.tokenizer.decode({&token, 1}, text));
    if (!show(stop.push(text))) {
      generated.end = "closed";
      return {};
    }
    if (stop.stopped()) {
      generated.end = "stop";
      return {};
    }
  }
  if (const std::string rest = stop.rest(); !rest.empty() && !show(rest)) {
    generated.end = "closed";
  }
  return {};
}

}  // namespace

Result<Generated> generate(const GenerateRequest& request,
                           const std::function<bool(std::string_view)>& on_text) {
  HEADRACE_ASSIGN(const std::unique_ptr<Weights> weights, open_weights(request.dir, {}));
  HEADRACE_ASSIGN(const std::unique_ptr<model::Tokenizer> tokenizer,
                  tokenizer_for(request.dir, *weights));
  HEADRACE_ASSIGN(Prompt prompt, read_prompt(request, *tokenizer, *weights));
  std::vector<std::int32_t>& tokens = prompt.tokens;
  HEADRACE_TRY(check_prompt(tokens, *tokenizer, *weights));
  HEADRACE_ASSIGN(
      Generator generator,
      make_generator(*weights,
                     static_cast<std::int64_t>(tokens.size()) +
                         std::min(request.tokens, weights->architecture().max_seq_len)));
  Generated generated;
  generated.model = weights->description();
  HEADRACE_TRY(continue_text({.request = request,
                              .weights = *weights,
                              .tokenizer = *tokenizer,
                              .ends = prompt.ends,
                              .on_text = on_text},
                             generator,
                             tokens,
                             generated));
  HEADRACE_TRY(generator.engine->check_races());
  return generated;
}

}  // namespace headrace::train
