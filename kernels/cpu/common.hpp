// What the CPU kernels share: checks of arguments, spans for the race checker, the workspace, and
// the one way to run over an OpenMP team. Included by kernels/cpu/*.cpp only.
//
// Invariant: work is cut by shape, never by thread count, so who runs a part does not show in it.
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"

namespace headrace::kernels::cpu {

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

// Bytes of `count` elements of T in a workspace, padded so that the next part is aligned too.
template <class T>
[[nodiscard]] constexpr std::size_t part_bytes(std::int64_t count) {
  constexpr auto kAlignment = static_cast<std::int64_t>(kWorkspaceAlignmentBytes);
  return static_cast<std::size_t>(
      round_up(count * static_cast<std::int64_t>(sizeof(T)), kAlignment));
}

// The fp32 elements of a tensor that must be there.
[[nodiscard]] inline const float* elements_of(const ConstTensor& tensor) {
  HEADRACE_ASSERT(tensor.dtype == Dtype::kF32, "the CPU's kernels take fp32 tensors");
  return static_cast<const float*>(tensor.data);
}

[[nodiscard]] inline float* elements_of(const Tensor& tensor) {
  HEADRACE_ASSERT(tensor.dtype == Dtype::kF32, "the CPU's kernels take fp32 tensors");
  return static_cast<float*>(tensor.data);
}

// The same of rows, and the floats from the first to the last used one.
struct RowsView {
  float* data = nullptr;
  std::int64_t stride = 0;
};

struct ConstRowsView {
  const float* data = nullptr;
  std::int64_t stride = 0;
};

[[nodiscard]] inline ConstRowsView view_of(const ConstRows& rows) {
  HEADRACE_ASSERT(rows.dtype == Dtype::kF32, "the CPU's kernels take fp32 tensors");
  return {static_cast<const float*>(rows.data), rows.stride};
}

[[nodiscard]] inline RowsView view_of(const Rows& rows) {
  HEADRACE_ASSERT(rows.dtype == Dtype::kF32, "the CPU's kernels take fp32 tensors");
  return {static_cast<float*>(rows.data), rows.stride};
}

// The spans that an operation declares. Empty ones are left out.
class Spans {
 public:
  template <class T>
  Spans& add(const T* data, std::int64_t count) {
    HEADRACE_ASSERT(count >= 0, "a size is negative");
    if (count > 0) {
      HEADRACE_ASSERT(data != nullptr, "an operand is missing");
      HEADRACE_ASSERT(used_ < spans_.size(), "more spans than an operation of this folder has");
      spans_[used_++] = tiers::MemorySpan(data, static_cast<std::size_t>(count) * sizeof(T));
    }
    return *this;
  }

  // `count` rows of `width` elements, `stride` apart: from the first element to the last.
  template <class View>
  Spans& add_rows(const View& view, std::int64_t count, std::int64_t width) {
    HEADRACE_ASSERT(count <= 1 || view.stride >= width, "rows overlap: stride below width");
    return add(view.data, count > 0 && width > 0 ? (count - 1) * view.stride + width : 0);
  }

  [[nodiscard]] std::span<const tiers::MemorySpan> get() const { return {spans_.data(), used_}; }

 private:
  std::array<tiers::MemorySpan, 10> spans_;
  std::size_t used_ = 0;
};

// The first `bytes` of the context's workspace, checked.
[[nodiscard]] inline std::byte* workspace_of(const Context& context, std::size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  HEADRACE_ASSERT(context.workspace.size() >= bytes, "the workspace is too small");
  const auto address = reinterpret_cast<std::uintptr_t>(context.workspace.data());
  HEADRACE_ASSERT(address % kWorkspaceAlignmentBytes == 0, "the workspace is not aligned");
  return context.workspace.data();
}

// Cuts a workspace into aligned parts, in order.
class Carver {
 public:
  explicit Carver(std::byte* data) : next_(data) {}

  template <class T>
  [[nodiscard]] T* take(std::int64_t count) {
    auto* part = reinterpret_cast<T*>(next_);
    next_ += part_bytes<T>(count);
    return part;
  }

  [[nodiscard]] std::byte* take_bytes(std::size_t bytes) {
    return take<std::byte>(static_cast<std::int64_t>(bytes));
  }

 private:
  std::byte* next_;
};

// Submits `body` under `name` with the spans.
template <class F>
void submit(
    const Context& context, const char* name, const Spans& reads, const Spans& writes, F body) {
  HEADRACE_ASSERT(context.threads >= 1, "a kernel needs a thread");
  context.queue.submit(
      {.name = name, .reads = reads.get(), .writes = writes.get(), .id = context.id}, body);
}

// Calls body(part) for each part in [0, parts), on a team of `threads`. Parts of similar cost.
// (Never on a smaller team: libgomp ends the threads that a smaller team leaves over, and starts
// new ones.)
template <class F>
void parallel_for(int threads, std::int64_t parts, const F& body) {
  if (threads == 1 || parts <= 1) {
    for (std::int64_t part = 0; part < parts; ++part) {
      body(part);
    }
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t part = 0; part < parts; ++part) {
    body(part);
  }
}

// Calls body(part, thread) with thread in [0, threads): for parts of unequal cost and per-thread
// scratch.
template <class F>
void parallel_for_dynamic(int threads, std::int64_t parts, const F& body) {
  if (threads == 1 || parts <= 1) {
    for (std::int64_t part = 0; part < parts; ++part) {
      body(part, 0);
    }
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (std::int64_t part = 0; part < parts; ++part) {
    body(part, omp_get_thread_num());
  }
}

// target = sum or target += sum: the end of the gradient rule for vectors.
inline void put_gradient(GradientMode mode, const float* sum, float* target, std::int64_t count) {
  if (mode == GradientMode::kStore) {
    std::copy_n(sum, count, target);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    target[i] += sum[i];
  }
}

}  // namespace headrace::kernels::cpu
