// A tokenizer.json of the Hugging Face kind, byte-level BPE: GPT-2, Llama 3, Qwen2, SmolLM2 and
// others like them.
//
// Tokens are those of Hugging Face's encode(text, add_special_tokens=False). What would give other
// tokens is refused by its field. Bytes that are not UTF-8 become the tokens of single bytes, which
// Hugging Face has no word for. Thread: const, any. Failure: Result, with file and field.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "model/tokenizer.hpp"

namespace headrace::model {

// `name`: the file, in messages and as the tokenizer's name.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text,
                                                                      const std::string& name);

}  // namespace headrace::model
