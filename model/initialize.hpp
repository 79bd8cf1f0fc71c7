// Initial weights, as GPT-2 (Radford et al. 2019): matrices and tables are normal with standard
// deviation initializer_range, those that end in the residual stream divided by sqrt(2 * layers);
// norm gains are 1, biases 0. Llama likewise, with o_proj and down_proj as the residual ones.
//
// Invariant: an element's value is a function of (seed, tensor, element), whoever asks for it and
// in whatever ranges; padding is 0. Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "model/architecture.hpp"
#include "scheduler/plan/model_spec.hpp"

namespace headrace::model {

struct InitializeRange {
  std::uint64_t seed = 0;
  int unit = 0;
  std::int64_t begin = 0;  // elements from the unit's start
};

// Fills `out` with the unit's elements [begin, begin + out.size()).
void initialize_range(const plan::ModelSpec& spec,
                      const Architecture& architecture,
                      const InitializeRange& range,
                      std::span<float> out);

}  // namespace headrace::model
