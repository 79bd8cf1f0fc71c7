#include "train/probe_host.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/hash.hpp"
#include "core/system.hpp"
#include "optim_cpu/convert.hpp"
#include "optim_cpu/gradient.hpp"
#include "scheduler/exec/state_format.hpp"

namespace headrace::train {
namespace {

// Of the memory that is passed over: twice the caches, so that they hold little of it from one
// round to the next, within these bounds and an eighth of what is free.
constexpr std::uint64_t kMemoryBytesMin = kKernelMemoryBytesMin;
constexpr std::uint64_t kMemoryBytesMax = std::uint64_t{1} << 30U;
constexpr std::int64_t kFloatBytes = 4;
constexpr float kValue = 0.001F;

std::uint64_t memory_bytes_passed() {
  const Result<HostMemory> memory = host_memory();
  const std::uint64_t free_bytes = memory ? memory->available_bytes : 0;
  const std::uint64_t most = std::clamp(free_bytes / 8, kMemoryBytesMin, kMemoryBytesMax);
  const std::uint64_t wanted = 2 * last_level_cache_bytes();
  constexpr std::uint64_t kUnit = 16 * std::uint64_t{optim::kBlockElements};  // a block an array
  return std::clamp(wanted, kMemoryBytesMin, most) / kUnit * kUnit;
}

// With all threads; as many floats as are whole blocks.
void fill_floats(std::span<float> values, float value, optim::Threads& team) {
  constexpr std::size_t kBlock = optim::kBlockElements;
  team.parallel_for(static_cast<std::int64_t>(values.size() / kBlock), [&](std::int64_t block) {
    const std::span<float> part = values.subspan(static_cast<std::size_t>(block) * kBlock, kBlock);
    std::fill(part.begin(), part.end(), value);
  });
}

}  // namespace

UpdateBench::UpdateBench(const plan::StateFormat& format,
                         std::span<std::byte> memory,
                         optim::Threads& team)
    : team_(team), optimizer_(exec::optimizer_of(format)) {
  const double parameter_bytes = format.bytes_per_parameter() + kFloatBytes +
                                 static_cast<double>(format.decoded ? kFloatBytes : 0);
  params_ = static_cast<std::int64_t>(static_cast<double>(memory.size()) / parameter_bytes) /
            optim::kBlockElements * optim::kBlockElements;
  // Zero weights and moments, in every format.
  fill_floats({reinterpret_cast<float*>(memory.data()), memory.size() / kFloatBytes}, 0, team);
  const auto take = [&](std::int64_t bytes) {
    const std::span<std::byte> part = memory.first(static_cast<std::size_t>(bytes));
    memory = memory.subspan(part.size());
    return part.data();
  };
  auto* gradient = reinterpret_cast<float*>(take(params_ * kFloatBytes));
  fill_floats({gradient, static_cast<std::size_t>(params_)}, kValue, team);
  // fp32 as precision.grad is by default; gradients in bf16 spare two bytes a parameter.
  segment_ = {.elements = params_,
              .gradient = gradient,
              .gradient_dtype = Dtype::kF32,
              .scalars = {.lr = 1e-4}};
  tile_ = {.param = take(params_ * optimizer_.param_element_bytes()),
           .state = take(optimizer_.state_bytes(params_)),
           .tile_elements = params_,
           .segments = {&segment_, 1}};
  weights_ = format.decoded ? reinterpret_cast<float*>(take(params_ * kFloatBytes)) : nullptr;
  stats_.resize(static_cast<std::size_t>(optim::count_blocks(params_)));
}

Load UpdateBench::update() {
  return [this]() -> Result<double> {
    tile_.decoded = nullptr;
    optim::update_tile(optimizer_, tile_, stats_, team_);
    return static_cast<double>(params_);
  };
}

Load UpdateBench::update_decoded() {
  return [this]() -> Result<double> {
    tile_.decoded = weights_;
    optim::update_tile(optimizer_, tile_, stats_, team_);
    return static_cast<double>(params_);
  };
}

Load UpdateBench::decode() {
  return [this]() -> Result<double> {
    optim::read_weights(optimizer_,
                        {.param = tile_.param, .state = tile_.state, .tile_elements = params_},
                        weights_,
                        team_);
    return static_cast<double>(params_);
  };
}

Result<std::unique_ptr<HostBench>> HostBench::create(int threads) {
  std::unique_ptr<HostBench> bench(new HostBench);
  const std::uint64_t bytes = memory_bytes_passed();
  HEADRACE_ASSIGN(bench->arena_, tiers::Arena::create(tiers::Tier::kHost, "probe", bytes));
  bench->memory_ = {bench->arena_->data(), bytes};
  HEADRACE_ASSIGN(bench->team_, optim::Threads::create(threads));
  HEADRACE_ASSIGN(bench->kernels_, KernelBench::create(bench->memory_, threads));
  bench->fill(kValue);
  bench->sums_.resize(static_cast<std::size_t>(
      optim::count_blocks(static_cast<std::int64_t>(bench->quarter(0).size()))));
  return bench;
}

void HostBench::fill(float value) {
  fill_floats(
      {reinterpret_cast<float*>(memory_.data()), memory_.size() / sizeof(float)}, value, *team_);
}

KernelBench& HostBench::kernels() {
  fill(kValue);
  return *kernels_;
}

std::span<float> HostBench::quarter(std::size_t index) const {
  const std::size_t floats = memory_.size() / 4 / sizeof(float);
  return {reinterpret_cast<float*>(memory_.data()) + index * floats, floats};
}

Load HostBench::stream() {
  fill(kValue);
  return [this, param = quarter(0), gradient = quarter(1), m = quarter(2), v = quarter(3)]()
             -> Result<double> {
    const auto blocks = static_cast<std::int64_t>(param.size()) / optim::kBlockElements;
    team_->parallel_for_ranges(blocks, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin * optim::kBlockElements);
           i < static_cast<std::size_t>(end * optim::kBlockElements);
           ++i) {
        m[i] = 0.9F * m[i] + gradient[i];
        v[i] = 0.9F * v[i] + gradient[i];
        param[i] = param[i] - 0.001F * m[i];
      }
    });
    return 7.0 * static_cast<double>(param.size_bytes());
  };
}

Load HostBench::copy() {
  return [source = quarter(0), target = quarter(2)]() -> Result<double> {
    std::memcpy(target.data(), source.data(), source.size_bytes());
    return static_cast<double>(source.size_bytes());
  };
}

Load HostBench::checksum() {
  return [this, values = quarter(0)]() -> Result<double> {
    hash_ ^= hash_bytes(std::as_bytes(values));
    return static_cast<double>(values.size_bytes());
  };
}

Load HostBench::collect() {
  fill(kValue);
  return [this, gradient = quarter(1)]() -> Result<double> {
    static_cast<void>(
        optim::collect_blocks({.incoming = gradient.data(),
                               .target = gradient.data(),
                               .elements = static_cast<std::int64_t>(gradient.size())},
                              sums_,
                              *team_));
    return static_cast<double>(gradient.size());
  };
}

Load drive_load(DriveBench& drive, DriveMix mix) {
  return [&drive, mix]() -> Result<double> {
    constexpr std::chrono::milliseconds kTime{60};
    return drive.pass_bytes(mix, kTime);
  };
}

Status beside_rates(HostBench& host,
                    CopyBench& copies,
                    DriveBench* drive,
                    std::chrono::milliseconds time,
                    plan::MachineProfile& profile) {
  const auto shares =
      [&](const Load& one, const Load& other, double& of_one, double& of_other) -> Status {
    HEADRACE_ASSIGN(const double one_alone, run_alone(time, one));
    HEADRACE_ASSIGN(const double other_alone, run_alone(time, other));
    HEADRACE_ASSIGN(const Together both, run_together(time, one, other));
    of_one = share_of(both.first, one_alone);
    of_other = share_of(both.second, other_alone);
    return {};
  };
  KernelBench& kernels = host.kernels();
  const Load compute = kernels.load(kernels.product(kLargeProduct));
  HEADRACE_TRY(shares(compute,
                      copies.load(CopyWay::kBoth),
                      profile.compute_beside_copy,
                      profile.copy_beside_compute));
  if (drive == nullptr) {
    return {};
  }
  const Load mixed = drive_load(*drive, DriveMix::kBoth);
  HEADRACE_TRY(shares(compute, mixed, profile.compute_beside_nvme, profile.nvme_beside_compute));
  const std::unique_ptr<UpdateBench> updates = host.updates({});
  return shares(updates->update(), mixed, profile.update_beside_nvme, profile.nvme_beside_update);
}

}  // namespace headrace::train
