// Initial weights (initialize.hpp).
#include "model/initialize.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/assert.hpp"
#include "core/random.hpp"

namespace headrace::model {

namespace {

bool ends_in_residual_stream(std::string_view name) {
  return name.ends_with(".c_proj.weight") || name.ends_with(".o_proj.weight") ||
         name.ends_with(".down_proj.weight");
}

// The tensor's number in the model's order: part of its random numbers.
std::uint32_t model_index(const plan::ModelSpec& spec, std::size_t unit, std::size_t tensor) {
  std::size_t index = tensor;
  for (std::size_t i = 0; i < unit; ++i) {
    index += spec.units[i].tensors.size();
  }
  return static_cast<std::uint32_t>(index);
}

}  // namespace

void initialize_range(const plan::ModelSpec& spec,
                      const Architecture& architecture,
                      const InitializeRange& range,
                      std::span<float> out) {
  const auto unit_index = static_cast<std::size_t>(range.unit);
  const plan::UnitSpec& unit = spec.units.at(unit_index);
  const auto end = range.begin + static_cast<std::int64_t>(out.size());
  HEADRACE_ASSERT(range.begin >= 0 && end <= unit.elements, "the range is not inside the unit");
  const RandomSource random(range.seed, RandomStream::kInit);
  const double residual_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(architecture.layers));
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const plan::TensorSpec& tensor = unit.tensors[i];
    const std::int64_t from = std::max(range.begin, tensor.offset);
    const std::int64_t to = std::min(end, tensor.offset + tensor.elements);
    if (from >= to) {
      continue;
    }
    const std::span<float> part = out.subspan(static_cast<std::size_t>(from - range.begin),
                                              static_cast<std::size_t>(to - from));
    if (tensor.shape.size() >= 2) {
      const double stddev = architecture.initializer_range *
                            (ends_in_residual_stream(tensor.name) ? residual_scale : 1.0);
      random.fill_normal(part,
                         {.tensor = model_index(spec, unit_index, i),
                          .element = static_cast<std::uint64_t>(from - tensor.offset)},
                         stddev);
    } else if (std::string_view(tensor.name).ends_with(".weight")) {
      std::fill(part.begin(), part.end(), 1.0F);  // the gain of a norm
    }
  }
}

}  // namespace headrace::model
