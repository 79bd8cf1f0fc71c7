// config.json of a Hugging Face directory: in, by a table of three lists of fields, and out.
//
// A field is used; or harmless (listed in a note); or it changes the numbers, and then it is an
// error unless its value is the neutral one. A field in no list is an error that names it. Dropout
// is trained as 0, with a note. model.ignore passes a field that is not used. Invariant: what is
// accepted is computed exactly; what would be approximated is refused. All problems of a file are
// reported at once. Thread: any. Failure: usage errors (exit code 2); text that is no JSON is
// corrupt data (4).
#pragma once

#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "model/architecture.hpp"

namespace headrace::model {

struct ConfigJsonSource {
  std::string path;                 // for messages
  std::vector<std::string> ignore;  // model.ignore
};

struct ParsedConfigJson {
  Architecture architecture;
  std::vector<std::string> notes;  // for the log: ignored fields, dropout; each one sentence
};

[[nodiscard]] Result<ParsedConfigJson> parse_config_json(std::string_view text,
                                                         const ConfigJsonSource& source);

// What transformers' AutoModelForCausalLM reads; `weights` is the dtype of the file beside it.
[[nodiscard]] Json config_to_json(const Architecture& architecture, Dtype weights);
[[nodiscard]] Json generation_config_to_json(const Architecture& architecture);

}  // namespace headrace::model
