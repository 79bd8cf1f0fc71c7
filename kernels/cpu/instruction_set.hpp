// Chooses the instruction set of the vectorised functions: for tests, which run each of them.
#pragma once

#include <string>
#include <vector>

namespace headrace::kernels::cpu {

// Names of those that this build has and this machine can run.
[[nodiscard]] std::vector<std::string> instruction_sets();

// Every later kernel uses it; "" returns to the best. No kernel may be running.
void use_instruction_set(const std::string& name);

}  // namespace headrace::kernels::cpu
