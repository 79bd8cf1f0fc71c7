// Text from a model, token by token.
//
// There is no cache of keys and values in this version: each token is one pass over a window of
// fixed length, planned once, that slides when it is full. Greedy at temperature 0; otherwise a
// draw from softmax(logits / temperature), cut to the top_k most likely and then to the least
// number of them whose probabilities reach top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2020). Draws are a function of (seed, number of the token).
// Thread: main's. Failure: Result; an interrupt ends it early, as asked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace headrace::train {

struct SamplerSettings {
  double temperature = 1.0;
  std::optional<std::int64_t> top_k = {};
  std::optional<double> top_p = {};  // (0, 1]
  std::uint64_t seed = 1337;
};

// The token number `index` of a sequence. Ties go to the lower token.
[[nodiscard]] std::int32_t sample_token(std::span<const float> logits,
                                        const SamplerSettings& settings,
                                        std::int64_t index);

struct GenerateRequest {
  std::string dir;
  std::string prompt;
  // The prompt is what a user says; what follows is the assistant's turn, without what ends it.
  bool chat = false;
  std::optional<std::string> system = {};  // with chat: a system message before it
  std::vector<std::string> stops = {};     // texts that end what follows, and are no part of it
  std::int64_t tokens = 200;
  SamplerSettings sampler;
};

struct Generated {
  std::string model;
  std::string text;  // without the prompt
  std::int64_t tokens = 0;
  std::string end;  // "length" | "eos" | "stop" | "interrupt" | "closed"
};

// `on_text` gets each token's bytes as they are made (not always whole characters), but what may
// begin one of `stops` once it is known not to; false ends it.
[[nodiscard]] Result<Generated> generate(const GenerateRequest& request,
                                         const std::function<bool(std::string_view)>& on_text);

}  // namespace headrace::train
