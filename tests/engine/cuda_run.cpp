// See cuda_run.hpp.
#include "tests/engine/cuda_run.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <utility>
#include <vector>

#include "core/float_environment.hpp"
#include "tiers/gpu/cuda_device.hpp"
#include "tiers/gpu/emulated/runtime.hpp"

namespace headrace::testing {

namespace emulated = tiers::gpu::emulated;
using plan::Home;
using plan::kBlockElements;

namespace {

// Two blocks, and tables of two tiles.
model::Architecture tiny(model::Architecture architecture) {
  architecture.layers = 2;
  architecture.hidden = 64;
  architecture.heads = 2;
  architecture.kv_heads = architecture.family == model::Family::kGpt2 ? 2 : 1;
  architecture.head_dim = 32;
  architecture.ffn = architecture.family == model::Family::kGpt2 ? 256 : 90;
  architecture.vocab = 1100;
  return architecture;
}

}  // namespace

RunOptions tiny_run(const model::Architecture& architecture) {
  RunOptions options;
  options.architecture = tiny(architecture);
  options.micro_batch = 1;
  options.seq_len = 8;
  options.accumulate = 2;
  options.steps = kStepsOnCuda;
  options.compute_threads = 1;
  options.optimizer_threads = 1;
  options.optim.lr = 1e-3;
  options.settings = ample_settings();
  return options;
}

RunOptions streaming_run() {
  RunOptions options = tiny_run(small_gpt2());
  options.settings.place = Home::kNvme;
  options.settings.grad = Dtype::kBf16;
  options.settings.tile_elements = kBlockElements;
  options.settings.lookahead = 1;
  return options;
}

RunOptions on_cuda(RunOptions options, std::uint64_t seed, std::size_t ring_capacity) {
  emulated::start({.seed = seed});
  options.settings.separate_device = true;
  options.make_device = [threads = options.compute_threads, ring_capacity](tiers::Runtime& runtime,
                                                                           tiers::Cores& cores) {
    emulated::use_cores(cores);
    tiers::gpu::CudaDeviceOptions device;
    device.ring_capacity = ring_capacity;
    device.slab_bytes = std::size_t{1} << 20;
    device.launch_body = &emulated::launch_body;
    // Kernels run on the poller's thread, with the team that the CPU's compute queue has.
    device.on_thread_start = [threads] {
      omp_set_dynamic(0);
      omp_set_num_threads(threads);
#pragma omp parallel
      set_flush_to_zero();
    };
    return tiers::gpu::make_cuda_device(runtime, device);
  };
  options.on_made = [] { emulated::freeze(); };
  options.on_end = [] { emulated::thaw(); };
  return options;
}

void expect_clean_machine(const std::string& what) {
  EXPECT_EQ(emulated::violations(), std::vector<std::string>{}) << what;
  EXPECT_EQ(emulated::leaks(), std::vector<std::string>{}) << what;
}

}  // namespace headrace::testing
