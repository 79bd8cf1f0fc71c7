// The one file that includes oneDNN. Its exceptions end here.
//
// A prepared shape is a primitive with its memory objects; running it sets their addresses, so it
// is locked meanwhile. Entries live as long as the process (a shape costs some kilobytes of code).

#include "kernels/cpu/gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>

#include "kernels/cpu/common.hpp"

namespace headrace::kernels::cpu {

namespace {

using dnnl::memory;

// The size of the calling thread's OpenMP teams, until the end of the scope.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) {
      omp_set_num_threads(threads);
    }
  }

  ~TeamSize() {
    if (omp_get_max_threads() != before_) {
      omp_set_num_threads(before_);
    }
  }

  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
};

memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed) {
  const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
  return {memory::dims{rows, columns}, memory::data_type::f32, strides};
}

std::int64_t c_stride(const GemmShape& shape) {
  return shape.c_stride == 0 ? shape.n : shape.c_stride;
}

class PreparedGemm {
 public:
  // Throws dnnl::error.
  PreparedGemm(const GemmShape& shape, const dnnl::engine& engine) : stream_(engine) {
    const memory::desc a = matrix(shape.m, shape.k, shape.a_stride, shape.transpose_a);
    const memory::desc b = matrix(shape.k, shape.n, shape.b_stride, shape.transpose_b);
    const memory::desc c = matrix(shape.m, shape.n, c_stride(shape), false);
    const memory::desc bias = matrix(1, shape.n, shape.n, false);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (shape.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc operation =
        shape.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc description(operation, attributes, engine);
    primitive_ = dnnl::matmul(description);
    workspace_bytes_ =
        part_bytes<std::byte>(static_cast<std::int64_t>(description.scratchpad_desc().get_size()));
    a_ = memory(a, engine, nullptr);
    b_ = memory(b, engine, nullptr);
    c_ = memory(c, engine, nullptr);
    bias_ = memory(bias, engine, nullptr);
    scratch_ = memory(description.scratchpad_desc(), engine, nullptr);
    arguments_ = {{{DNNL_ARG_SRC, a_.get()},
                   {DNNL_ARG_WEIGHTS, b_.get()},
                   {DNNL_ARG_DST, c_.get()},
                   {DNNL_ARG_SCRATCHPAD, scratch_.get()},
                   {DNNL_ARG_BIAS, bias_.get()}}};
    argument_count_ = shape.bias ? 5 : 4;
  }

  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_bytes_; }

  // Throws dnnl::error.
  void run(const GemmOperands& operands) {
    const std::scoped_lock lock(mutex_);
    a_.set_data_handle(const_cast<float*>(operands.a));  // NOLINT: oneDNN has no const memory
    b_.set_data_handle(const_cast<float*>(operands.b));  // NOLINT
    c_.set_data_handle(operands.c);
    scratch_.set_data_handle(operands.workspace);
    if (argument_count_ == 5) {
      bias_.set_data_handle(const_cast<float*>(operands.bias));  // NOLINT
    }
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive_.get(), stream_.get(), argument_count_, arguments_.data()),
        "could not execute a matmul");
    stream_.wait();
  }

 private:
  std::mutex mutex_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  memory a_;
  memory b_;
  memory c_;
  memory bias_;
  memory scratch_;
  std::array<dnnl_exec_arg_t, 5> arguments_ = {};
  int argument_count_ = 0;
  std::size_t workspace_bytes_ = 0;
};

class GemmCache {
 public:
  // Throws dnnl::error.
  PreparedGemm& get(const GemmShape& shape, int threads) {
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<PreparedGemm>& entry = entries_[{shape, threads}];
    if (entry == nullptr) {
      // oneDNN plans for the team that the calling thread would have now.
      const TeamSize team(threads);
      entry = std::make_unique<PreparedGemm>(shape, engine_);
      ++prepared_;
    }
    return *entry;
  }

  [[nodiscard]] std::uint64_t prepared() {
    const std::scoped_lock lock(mutex_);
    return prepared_;
  }

 private:
  std::mutex mutex_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::map<std::pair<GemmShape, int>, std::unique_ptr<PreparedGemm>> entries_;
  std::uint64_t prepared_ = 0;
};

// Never destroyed: queues of other static objects may still run at exit.
GemmCache& gemm_cache() {
  static auto& cache = *new GemmCache;
  return cache;
}

Error gemm_error(const GemmShape& shape, const char* why) {
  return operating_error("oneDNN cannot multiply [" + std::to_string(shape.m) + ", " +
                         std::to_string(shape.k) + "] by [" + std::to_string(shape.k) + ", " +
                         std::to_string(shape.n) + "]")
      .with_why(why);
}

bool empty(const GemmShape& shape) {
  return shape.m == 0 || shape.n == 0 || shape.k == 0;
}

// What a product without terms is.
void store_empty_product(const GemmShape& shape, const GemmOperands& operands) {
  if (shape.accumulate) {
    return;
  }
  for (std::int64_t row = 0; row < shape.m; ++row) {
    float* c = operands.c + row * c_stride(shape);
    std::fill_n(c, shape.n, 0.0F);
    if (shape.bias) {
      std::copy_n(operands.bias, shape.n, c);
    }
  }
}

// oneDNN 2.6 reads a b of rows that are a multiple of 512 floats long at half the speed, where
// there are many of them and they are not of a length that it copies; in panels of columns it does
// not (kernels/README.md has figures).
std::int64_t panel_columns(const GemmShape& shape) {
  constexpr std::int64_t kPanelColumns = 1536;
  constexpr std::int64_t kSlowMultiple = 512;
  constexpr std::int64_t kCopiedMultiple = 4096;
  constexpr std::int64_t kFastColumnsMax = 2048;
  constexpr std::int64_t kEven = 64;
  if (shape.transpose_b || shape.n <= kFastColumnsMax || shape.n % kSlowMultiple != 0 ||
      shape.n % kCopiedMultiple == 0) {
    return shape.n;
  }
  const std::int64_t panels = ceil_div(shape.n, kPanelColumns);
  return ceil_div(ceil_div(shape.n, panels), kEven) * kEven;
}

// The columns from `begin` on, at most a panel of them.
GemmShape panel_at(const GemmShape& shape, std::int64_t begin) {
  GemmShape panel = shape;
  panel.n = std::min(panel_columns(shape), shape.n - begin);
  panel.c_stride = c_stride(shape);
  return panel;
}

}  // namespace

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads) {
  if (empty(shape)) {
    return 0;
  }
  try {
    std::size_t bytes = 0;
    for (std::int64_t begin = 0; begin < shape.n; begin += panel_columns(shape)) {
      const GemmShape panel = panel_at(shape, begin);
      bytes = std::max(bytes, gemm_cache().get(panel, threads).workspace_bytes());
    }
    return bytes;
  } catch (const dnnl::error&) {
    return 0;  // gemm says so, as an Error, when it is to run
  }
}

Status gemm(const GemmShape& shape, int threads, const GemmOperands& operands) {
  HEADRACE_ASSERT(omp_in_parallel() == 0, "a GEMM runs on its own team, not inside another");
  if (empty(shape)) {
    store_empty_product(shape, operands);
    return {};
  }
  try {
    const TeamSize team(threads);
    for (std::int64_t begin = 0; begin < shape.n; begin += panel_columns(shape)) {
      GemmOperands panel = operands;
      panel.b += begin * (shape.transpose_b ? shape.b_stride : 1);
      panel.bias = shape.bias ? operands.bias + begin : nullptr;
      panel.c += begin;
      gemm_cache().get(panel_at(shape, begin), threads).run(panel);
    }
  } catch (const dnnl::error& error) {
    return gemm_error(shape, error.what());
  }
  return {};
}

}  // namespace headrace::kernels::cpu

namespace headrace::kernels {

std::uint64_t gemms_prepared() {
  return cpu::gemm_cache().prepared();
}

}  // namespace headrace::kernels
