// Names of Highway's targets and the override for tests.

#include "optim_cpu/targets.hpp"

#include "core/assert.hpp"
#include "optim_cpu/highway_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim_cpu/targets.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

std::int64_t compiled_target() {
  return HWY_TARGET;
}

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace headrace::optim {

HWY_EXPORT(compiled_target);

namespace {

std::string target_name(std::int64_t target) {
  switch (target) {
    case HWY_SSE4:
      return "sse4";
    case HWY_AVX2:
      return "avx2";
    case HWY_AVX3:
      return "avx512";
    case HWY_NEON:
      return "neon";
    case HWY_EMU128:
    case HWY_SCALAR:
      return "scalar";
    default:
      return hwy::TargetName(target);
  }
}

constexpr std::int64_t kScalarTargets = HWY_SCALAR | HWY_EMU128;

// A lower bit is a better target; the scalar one runs everywhere.
std::int64_t runnable_targets() {
  return (hwy::SupportedTargets() | kScalarTargets) & HWY_TARGETS;
}

}  // namespace

std::string active_target() {
  return target_name(HWY_DYNAMIC_DISPATCH(compiled_target)());
}

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (std::int64_t rest = runnable_targets(); rest != 0; rest &= rest - 1) {
    names.push_back(target_name(rest & -rest));
  }
  return names;
}

ForcedTarget::ForcedTarget(std::string_view name) {
  for (std::int64_t rest = runnable_targets(); rest != 0; rest &= rest - 1) {
    if (target_name(rest & -rest) == name) {
      hwy::GetChosenTarget().Update(rest & -rest);
      return;
    }
  }
  HEADRACE_ASSERT(false, "the target is one of available_targets()");
}

ForcedTarget::~ForcedTarget() {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace headrace::optim

#endif  // HWY_ONCE
