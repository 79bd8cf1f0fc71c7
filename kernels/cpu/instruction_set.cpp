// Highway's table of targets, behind names.

#include "kernels/cpu/instruction_set.hpp"

#include <hwy/targets.h>

#include <cstdint>

namespace headrace::kernels::cpu {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

void use_instruction_set(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  if (!name.empty()) {
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      if (name == hwy::TargetName(target)) {
        hwy::SetSupportedTargetsForTest(target);
      }
    }
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace headrace::kernels::cpu
