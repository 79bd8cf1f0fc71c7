#include "scheduler/exec/state_format.hpp"

#include <fmt/format.h>

#include "core/assert.hpp"
#include "core/dtype.hpp"

namespace headrace::exec {

namespace {

constexpr std::string_view kOptimizerName = "adamw";
constexpr Dtype kCompute = Dtype::kF32;

// Of "q8" until 30 Nov 2026: records of 32 elements, codes of m by softsign.
constexpr std::string_view kFormerQ8Tag = "bf16/q8";

std::string tag_of(const optim::Optimizer& optimizer) {
  return fmt::format("{}/{}", dtype_name(optimizer.param_dtype), optimizer.layout);
}

bool is_ours(const optim::Optimizer& optimizer) {
  return optim::find_optimizer(kOptimizerName, optimizer.state, kCompute) == &optimizer;
}

}  // namespace

plan::StateFormat state_format(std::string_view name) {
  const optim::Optimizer* optimizer = optim::find_optimizer(kOptimizerName, name, kCompute);
  HEADRACE_ASSERT(optimizer != nullptr, "a state format of the optimizer's table");
  const std::int64_t group = optimizer->group_elements;
  return {.name = std::string(name),
          .param_bytes = optimizer->param_element_bytes(),
          .group_bytes = optimizer->state_bytes(group),
          .group_elements = group,
          .decoded = optimizer->param_dtype != kCompute};
}

std::vector<plan::StateFormat> state_formats() {
  std::vector<plan::StateFormat> formats;
  for (const optim::Optimizer& optimizer : optim::optimizers()) {
    if (is_ours(optimizer)) {
      formats.push_back(state_format(optimizer.state));
    }
  }
  return formats;
}

const optim::Optimizer& optimizer_of(const plan::StateFormat& format) {
  const optim::Optimizer* optimizer = optim::find_optimizer(kOptimizerName, format.name, kCompute);
  HEADRACE_ASSERT(optimizer != nullptr, "a state format of the optimizer's table");
  return *optimizer;
}

std::string layout_tag(const plan::StateFormat& format) {
  return tag_of(optimizer_of(format));
}

bool is_former_tag(std::string_view tag) {
  return tag == kFormerQ8Tag;
}

std::string_view state_of_tag(std::string_view tag) {
  for (const optim::Optimizer& optimizer : optim::optimizers()) {
    if (is_ours(optimizer) && tag == tag_of(optimizer)) {
      return optimizer.state;
    }
  }
  return {};
}

}  // namespace headrace::exec
