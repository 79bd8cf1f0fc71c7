// The host's part of the probe: one memory that everything passes over (twice the caches, within
// bounds), the kernels and the optimizer's threads over it, and loads of what a step does there.
//
// Invariant: one load at a time writes the memory. Thread: main's. Failure: no memory, no threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/threads.hpp"
#include "optim_cpu/update.hpp"
#include "scheduler/plan/state_format.hpp"
#include "tiers/memory.hpp"
#include "train/probe_beside.hpp"
#include "train/probe_kernels.hpp"
#include "train/probe_nvme.hpp"

namespace headrace::train {

// Updates and decoding of one tile that fills the memory, in one state format. Work in parameters.
class UpdateBench {
 public:
  UpdateBench(const plan::StateFormat& format, std::span<std::byte> memory, optim::Threads& team);
  UpdateBench(const UpdateBench&) = delete;
  UpdateBench& operator=(const UpdateBench&) = delete;

  [[nodiscard]] Load update();
  // Of formats that are decoded.
  [[nodiscard]] Load update_decoded();
  [[nodiscard]] Load decode();

 private:
  optim::Threads& team_;
  const optim::Optimizer& optimizer_;
  std::int64_t params_ = 0;
  optim::TileSegment segment_;
  optim::TileUpdate tile_;
  float* weights_ = nullptr;
  std::vector<optim::UpdateStats> stats_;
};

class HostBench {
 public:
  [[nodiscard]] static Result<std::unique_ptr<HostBench>> create(int threads);
  HostBench(const HostBench&) = delete;
  HostBench& operator=(const HostBench&) = delete;

  // Fills the memory with finite floats, and the kernels over it.
  [[nodiscard]] KernelBench& kernels();

  [[nodiscard]] std::unique_ptr<UpdateBench> updates(const plan::StateFormat& format) {
    return std::make_unique<UpdateBench>(format, memory_, *team_);
  }

  // Bytes read and written by a pass over four arrays, three of them in place.
  [[nodiscard]] Load stream();
  [[nodiscard]] Load copy();      // bytes, by one thread
  [[nodiscard]] Load checksum();  // bytes, by one thread
  [[nodiscard]] Load collect();   // gradients

 private:
  HostBench() = default;
  [[nodiscard]] std::span<float> quarter(std::size_t index) const;
  void fill(float value);

  std::unique_ptr<tiers::Arena> arena_;
  std::span<std::byte> memory_;
  std::unique_ptr<optim::Threads> team_;
  std::unique_ptr<KernelBench> kernels_;
  std::vector<double> sums_;
  std::uint64_t hash_ = 0;
};

// What passes over the drive as a load (train/measure.hpp): bytes.
[[nodiscard]] Load drive_load(DriveBench& drive, DriveMix mix);

// The shares of the profile: of computing, updates, copies and the drive beside one another.
// `drive` may be null: its shares are left as they are.
[[nodiscard]] Status beside_rates(HostBench& host,
                                  CopyBench& copies,
                                  DriveBench* drive,
                                  std::chrono::milliseconds time,
                                  plan::MachineProfile& profile);

}  // namespace headrace::train
