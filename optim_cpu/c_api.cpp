// include/headrace/optim.h over this folder: arguments are checked here, so that what would abort
// in the engine is an error code to others. Exceptions of the standard library end here.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/optim.h"
#include "optim_cpu/convert.hpp"
#include "optim_cpu/gradient.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/threads.hpp"

struct headrace_optim_context {  // NOLINT(readability-identifier-naming): the C header's name
  std::unique_ptr<headrace::optim::Threads> threads;
  std::vector<headrace::optim::UpdateStats> stats;
  std::vector<double> sums;
  std::string explanation;
};

namespace headrace::optim {

namespace {

const char* state_name(headrace_state_format format) {
  switch (format) {
    case HEADRACE_STATE_FP32:
      return "fp32";
    case HEADRACE_STATE_BF16:
      return "bf16";
    case HEADRACE_STATE_Q8:
      return "q8";
  }
  return "";
}

bool is_dtype(headrace_dtype dtype) {
  return dtype == HEADRACE_F32 || dtype == HEADRACE_BF16;
}

Dtype dtype_of(headrace_dtype dtype) {
  return dtype == HEADRACE_BF16 ? Dtype::kBf16 : Dtype::kF32;
}

// Null if there is no such format.
const Optimizer* format_of(headrace_state_format format, headrace_dtype weight) {
  if (!is_dtype(weight) || (format == HEADRACE_STATE_Q8 && weight != HEADRACE_BF16)) {
    return nullptr;
  }
  return find_optimizer("adamw", state_name(format), dtype_of(weight));
}

bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

std::size_t element_bytes(headrace_dtype dtype) {
  return dtype_bytes(dtype_of(dtype));
}

// What is wrong with a tensor's buffers, "" if nothing. The gradient is not looked at.
const char* objection(const headrace_tensor* tensor) {
  if (tensor == nullptr || tensor->struct_size < sizeof(headrace_tensor)) {
    return "tensor is null or of another struct_size";
  }
  if (format_of(tensor->format, tensor->weight_dtype) == nullptr) {
    return "no such combination of format and weight_dtype";
  }
  if (tensor->elements < 0) {
    return "elements is negative";
  }
  if (tensor->elements > 0 && (tensor->weight == nullptr || tensor->state == nullptr)) {
    return "weight or state is null";
  }
  if (!is_aligned(tensor->weight, element_bytes(tensor->weight_dtype)) ||
      !is_aligned(tensor->state, alignof(float))) {
    return "weight or state is not aligned";
  }
  if (tensor->weight_f32 != nullptr && tensor->format != HEADRACE_STATE_Q8) {
    return "weight_f32 is for HEADRACE_STATE_Q8";
  }
  return is_aligned(tensor->weight_f32, alignof(float)) ? "" : "weight_f32 is not aligned";
}

const char* gradient_objection(const void* grad, headrace_dtype dtype, std::int64_t elements) {
  if (!is_dtype(dtype)) {
    return "no such dtype of a gradient";
  }
  if (elements < 0 || (elements > 0 && grad == nullptr)) {
    return "grad is null or elements negative";
  }
  return is_aligned(grad, element_bytes(dtype)) ? "" : "grad is not aligned";
}

bool is_decay_rate(double beta) {
  return beta >= 0.0 && beta < 1.0;
}

const char* settings_objection(const headrace_adamw* settings) {
  if (settings == nullptr || settings->struct_size < sizeof(headrace_adamw)) {
    return "settings is null or of another struct_size";
  }
  if (!is_decay_rate(settings->beta1) || !is_decay_rate(settings->beta2)) {
    return "betas lie in [0, 1)";
  }
  if (settings->step < 1) {
    return "step counts from 1";
  }
  const bool finite = std::isfinite(settings->lr) && std::isfinite(settings->eps) &&
                      std::isfinite(settings->weight_decay) && std::isfinite(settings->grad_scale);
  if (!finite) {
    return "a setting is not finite";
  }
  return settings->lr < 0.0 || settings->eps < 0.0 ? "lr and eps are not negative" : "";
}

int invalid(headrace_optim_context& context, const char* text) {
  context.explanation = text;
  return HEADRACE_INVALID_ARGUMENT;
}

// Runs `body`, which returns a code, where arguments are as they should be.
template <class Body>
int guarded(headrace_optim_context* context,
            std::initializer_list<const char*> objections,
            const Body& body) {
  if (context == nullptr) {
    return HEADRACE_INVALID_ARGUMENT;
  }
  try {
    context->explanation.clear();
    for (const char* text : objections) {
      if (*text != '\0') {
        return invalid(*context, text);
      }
    }
    return body();
  } catch (const std::exception&) {
    return HEADRACE_OUT_OF_RESOURCES;
  }
}

TileMemory memory_of(const headrace_tensor& tensor) {
  return {.param = static_cast<std::byte*>(tensor.weight),
          .state = static_cast<std::byte*>(tensor.state),
          .tile_elements = tensor.elements};
}

UpdateScalars scalars_of(const headrace_adamw& settings) {
  return {.lr = settings.lr,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .eps = settings.eps,
          .weight_decay = settings.weight_decay,
          .update_count = settings.step,
          .clip_scale = settings.grad_scale,
          .seed = settings.seed};
}

int update(headrace_optim_context& context,
           const headrace_adamw& settings,
           const headrace_tensor& tensor,
           headrace_update_stats* stats) {
  const TileSegment segment{.elements = tensor.elements,
                            .gradient = tensor.grad,
                            .gradient_dtype = dtype_of(tensor.grad_dtype),
                            .scalars = scalars_of(settings),
                            .tensor = tensor.id};
  context.stats.resize(static_cast<std::size_t>(count_blocks(tensor.elements)));
  update_tile(*format_of(tensor.format, tensor.weight_dtype),
              {.param = static_cast<std::byte*>(tensor.weight),
               .state = static_cast<std::byte*>(tensor.state),
               .tile_elements = tensor.elements,
               .segments = {&segment, 1},
               .decoded = tensor.weight_f32},
              context.stats,
              *context.threads);
  const UpdateStats sum = sum_stats(context.stats);
  if (stats != nullptr) {
    *stats = {.sum_squares = sum.sum_squares,
              .non_finite_count = sum.non_finite_count,
              .first_non_finite = sum.first_non_finite};
  }
  return sum.non_finite_count > 0 ? HEADRACE_NON_FINITE : HEADRACE_OK;
}

// Calls visit(begin, elements) for blocks of a tensor on the context's threads. Throws where a
// visit has no memory.
template <class Visit>
void for_each_block(headrace_optim_context& context, std::int64_t elements, const Visit& visit) {
  std::atomic<bool> out_of_memory{false};
  context.threads->parallel_for(count_blocks(elements), [&](std::int64_t block) {
    const std::int64_t begin = block * kBlockElements;
    try {
      visit(begin, std::min(kBlockElements, elements - begin));
    } catch (const std::bad_alloc&) {
      out_of_memory.store(true);
    }
  });
  if (out_of_memory.load()) {
    throw std::bad_alloc();
  }
}

std::span<float> part(float* values, std::int64_t begin, std::int64_t elements) {
  return values == nullptr ? std::span<float>()
                           : std::span(values + begin, static_cast<std::size_t>(elements));
}

void import_weights(headrace_optim_context& context,
                    const headrace_tensor& tensor,
                    const float* source) {
  const Optimizer& format = *format_of(tensor.format, tensor.weight_dtype);
  for_each_block(context, tensor.elements, [&](std::int64_t begin, std::int64_t elements) {
    // On the stack: an import that has begun does not fail.
    constexpr std::int64_t kPart = 2048;
    std::array<float, kPart> weights;
    std::array<float, kPart> zeros = {};
    for (std::int64_t at = begin; at < begin + elements; at += kPart) {
      const auto count = static_cast<std::size_t>(std::min(kPart, begin + elements - at));
      std::copy_n(source + at, count, weights.data());
      const std::span<float> none = std::span(zeros).first(count);
      write_state(format,
                  memory_of(tensor),
                  at,
                  {.param = std::span(weights).first(count), .m = none, .v = none});
    }
  });
}

// A bf16 gradient block by block as floats, which the sums are made of.
int sum_squares(headrace_optim_context& context,
                const void* grad,
                headrace_dtype dtype,
                std::int64_t elements,
                headrace_update_stats& result) {
  std::vector<UpdateStats>& blocks = context.stats;
  blocks.assign(static_cast<std::size_t>(count_blocks(elements)), {});
  for_each_block(context, elements, [&](std::int64_t begin, std::int64_t count) {
    thread_local std::vector<float> widened;
    const float* incoming = nullptr;
    if (dtype == HEADRACE_F32) {
      incoming = static_cast<const float*>(grad) + begin;
    } else {
      const auto* values = static_cast<const std::uint16_t*>(grad) + begin;
      widened.resize(static_cast<std::size_t>(kBlockElements));
      std::transform(values, values + count, widened.begin(), float_from_bf16);
      incoming = widened.data();
    }
    const BlockSum sum =
        collect_block({.incoming = incoming, .kind = GradientTarget::kNone, .elements = count});
    blocks[static_cast<std::size_t>(begin / kBlockElements)] = {
        .sum_squares = sum.sum_squares,
        .non_finite_count = sum.non_finite_count,
        .first_non_finite = sum.first_non_finite};
  });
  const UpdateStats sum = sum_stats(blocks);
  result = {.sum_squares = sum.sum_squares,
            .non_finite_count = sum.non_finite_count,
            .first_non_finite = sum.first_non_finite};
  return sum.non_finite_count > 0 ? HEADRACE_NON_FINITE : HEADRACE_OK;
}

}  // namespace

}  // namespace headrace::optim

namespace ho = headrace::optim;

extern "C" {

int headrace_optim_create(int threads, headrace_optim_context** context) {
  if (context == nullptr || threads < 1 || threads > ho::Threads::kCountMax) {
    return HEADRACE_INVALID_ARGUMENT;
  }
  try {
    auto team = ho::Threads::create(threads);
    if (!team) {
      return HEADRACE_OUT_OF_RESOURCES;
    }
    auto made = std::make_unique<headrace_optim_context>();
    made->threads = std::move(*team);
    *context = made.release();
    return HEADRACE_OK;
  } catch (const std::exception&) {
    return HEADRACE_OUT_OF_RESOURCES;
  }
}

void headrace_optim_destroy(headrace_optim_context* context) {
  const std::unique_ptr<headrace_optim_context> owned(context);
}

const char* headrace_optim_explain(const headrace_optim_context* context) {
  return context == nullptr ? "context is null" : context->explanation.c_str();
}

const char* headrace_optim_target(void) {
  static const std::string target = ho::active_target();
  return target.c_str();
}

size_t headrace_optim_state_bytes(headrace_state_format format,
                                  headrace_dtype weight,
                                  int64_t elements) {
  const ho::Optimizer* optimizer = ho::format_of(format, weight);
  constexpr std::int64_t kElementsMax = std::int64_t{1} << 50;
  if (optimizer == nullptr || elements < 0 || elements > kElementsMax) {
    return 0;
  }
  return static_cast<size_t>(optimizer->state_bytes(elements));
}

int headrace_adamw_update(headrace_optim_context* context,
                          const headrace_adamw* settings,
                          const headrace_tensor* tensor,
                          headrace_update_stats* stats) {
  const char* tensor_text = ho::objection(tensor);
  const char* grad_text =
      *tensor_text != '\0'
          ? ""
          : ho::gradient_objection(tensor->grad, tensor->grad_dtype, tensor->elements);
  return ho::guarded(context, {ho::settings_objection(settings), tensor_text, grad_text}, [&] {
    return ho::update(*context, *settings, *tensor, stats);
  });
}

int headrace_optim_import(headrace_optim_context* context,
                          const headrace_tensor* tensor,
                          const float* source) {
  const char* source_text = source == nullptr ? "source is null" : "";
  return ho::guarded(context, {ho::objection(tensor), source_text}, [&] {
    ho::import_weights(*context, *tensor, source);
    return static_cast<int>(HEADRACE_OK);
  });
}

int headrace_optim_export(headrace_optim_context* context,
                          const headrace_tensor* tensor,
                          float* weights,
                          float* m,
                          float* v) {
  const char* target_text = weights == nullptr || (m == nullptr) != (v == nullptr)
                                ? "weights is null, or only one of m and v"
                                : "";
  return ho::guarded(context, {ho::objection(tensor), target_text}, [&] {
    const ho::Optimizer& format = *ho::format_of(tensor->format, tensor->weight_dtype);
    ho::for_each_block(*context, tensor->elements, [&](std::int64_t begin, std::int64_t elements) {
      ho::read_state(format,
                     ho::memory_of(*tensor),
                     begin,
                     {.param = ho::part(weights, begin, elements),
                      .m = ho::part(m, begin, elements),
                      .v = ho::part(v, begin, elements)});
    });
    return static_cast<int>(HEADRACE_OK);
  });
}

int headrace_grad_sum_squares(headrace_optim_context* context,
                              const void* grad,
                              headrace_dtype dtype,
                              int64_t elements,
                              double* sum_squares,
                              int64_t* first_non_finite) {
  const char* result_text =
      sum_squares == nullptr || first_non_finite == nullptr ? "a result's pointer is null" : "";
  return ho::guarded(context, {ho::gradient_objection(grad, dtype, elements), result_text}, [&] {
    headrace_update_stats result = {};
    const int code = ho::sum_squares(*context, grad, dtype, elements, result);
    *sum_squares = result.sum_squares;
    *first_non_finite = result.first_non_finite;
    return code;
  });
}

}  // extern "C"
