// See gpu_link_bench.hpp.
#include "bench/gpu_link_bench.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "bench/gpu_owners.hpp"
#include "bench/gpu_pattern.hpp"
#include "core/quantity.hpp"
#include "tiers/memory.hpp"

namespace headrace::bench {
namespace {

using Clock = std::chrono::steady_clock;
using tiers::gpu::check;

constexpr std::size_t kSmallBytes = 4096;  // of the copies whose latency is measured

enum class Kind : std::uint8_t { kPageable, kRegistered, kRegisteredHuge, kPinned };
enum class Direction : std::uint8_t { kToDevice, kToHost, kBoth };

constexpr std::array<std::pair<Kind, const char*>, 4> kKinds = {{
    {Kind::kPageable, "pageable"},
    {Kind::kRegistered, "registered"},
    {Kind::kRegisteredHuge, "registered, huge pages"},
    {Kind::kPinned, "pinned"},
}};
constexpr std::array<std::pair<Direction, const char*>, 3> kDirections = {{
    {Direction::kToDevice, "h2d"},
    {Direction::kToHost, "d2h"},
    {Direction::kBoth, "both"},
}};

struct Mapping {
  void* address = nullptr;
  std::size_t bytes = 0;

  friend bool operator==(const Mapping&, const Mapping&) = default;
};

struct MappingTraits {
  using Handle = Mapping;
  static constexpr Handle kEmpty = {};

  static void close(Handle mapping) noexcept { ::munmap(mapping.address, mapping.bytes); }
};

// Memory of a kind: one half is copied from, the other one copied to.
struct HostMemory {
  Kind kind = Kind::kPageable;
  std::span<std::byte> source;
  std::span<std::byte> target;
  // Owners; the registration goes first.
  Unique<MappingTraits> mapping;
  std::unique_ptr<tiers::Arena> arena;
  PinnedMemory pinned;
  Registration registration;
};

// Ordinary pages, whatever the system would give by itself.
Result<Unique<MappingTraits>> map_ordinary_pages(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return errno_error(fmt::format("host memory: cannot take {}", format_bytes(bytes)), errno);
  }
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);  // refused where there are none
  return Unique<MappingTraits>(Mapping{memory, bytes});
}

Result<HostMemory> take_host_memory(Kind kind, int device, std::size_t half_bytes) {
  HostMemory memory;
  memory.kind = kind;
  const std::size_t bytes = 2 * half_bytes;
  void* data = nullptr;
  if (kind == Kind::kPinned) {
    HEADRACE_ASSIGN(memory.pinned, take_pinned_memory(device, bytes));
    data = memory.pinned.get();
  } else if (kind == Kind::kRegisteredHuge) {
    HEADRACE_ASSIGN(memory.arena, tiers::Arena::create(tiers::Tier::kHost, "links", bytes));
    data = memory.arena->data();
  } else {
    HEADRACE_ASSIGN(memory.mapping, map_ordinary_pages(bytes));
    data = memory.mapping.get().address;
  }
  const std::span<std::byte> all(static_cast<std::byte*>(data), bytes);
  if (kind == Kind::kRegistered || kind == Kind::kRegisteredHuge) {
    HEADRACE_ASSIGN(memory.registration, register_memory(device, all));
  }
  memory.source = all.first(half_bytes);
  memory.target = all.last(half_bytes);
  return memory;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Links {
 public:
  static Result<std::unique_ptr<Links>> create(const LinkOptions& options) {
    HEADRACE_TRY(check(cudaSetDevice(options.device), "cudaSetDevice", options.device));
    HEADRACE_ASSIGN(Lane h2d, Lane::create(options.device));
    HEADRACE_ASSIGN(Lane d2h, Lane::create(options.device));
    std::unique_ptr<Links> links(new Links(options, std::move(h2d), std::move(d2h)));
    const std::size_t bytes = options.bytes_max;
    HEADRACE_ASSIGN(links->device_in_, take_device_memory(options.device, bytes));
    HEADRACE_ASSIGN(links->device_out_, take_device_memory(options.device, bytes));
    HEADRACE_ASSIGN(links->pattern_, DevicePattern::create(options.device));
    for (const auto& [kind, name] : kKinds) {
      HEADRACE_ASSIGN(HostMemory memory, take_host_memory(kind, options.device, bytes));
      fill_on_host(memory.source, kHostSeed);
      links->memories_.push_back(std::move(memory));
    }
    HEADRACE_TRY(links->pattern_->fill(links->out(), bytes, kDeviceSeed));
    return links;
  }

  // All kinds and directions of one size.
  Status measure(std::size_t bytes, bool is_warm_up) {
    const std::size_t copies = std::max<std::size_t>(1, options_.round_bytes / bytes);
    for (HostMemory& memory : memories_) {
      for (const auto& [direction, name] : kDirections) {
        HEADRACE_TRY(make_targets_wrong(memory, bytes));
        HEADRACE_ASSIGN(const double seconds, transfer(memory, direction, bytes, copies));
        HEADRACE_TRY(check_targets(memory, direction, bytes));
        const double moved = static_cast<double>(bytes) * static_cast<double>(copies) *
                             (direction == Direction::kBoth ? 2 : 1);
        if (!is_warm_up) {
          rates_[{bytes, memory.kind, direction}].push_back(moved / seconds);
        }
      }
    }
    return {};
  }

  Status measure_latencies() {
    const HostMemory& memory = memories_.at(static_cast<std::size_t>(Kind::kRegisteredHuge));
    const std::size_t bytes = std::min(kSmallBytes, options_.bytes_max);
    for (int i = 0; i < options_.latency_samples; ++i) {
      HEADRACE_TRY(sample("an event on an idle stream", h2d_, [] { return Status(); }));
      HEADRACE_TRY(sample("4 KiB to the device", h2d_, [&] {
        return h2d_.copy(in(), memory.source.data(), bytes, cudaMemcpyHostToDevice);
      }));
      HEADRACE_TRY(sample("4 KiB to the host", d2h_, [&] {
        return d2h_.copy(memory.target.data(), out(), bytes, cudaMemcpyDeviceToHost);
      }));
    }
    return {};
  }

  void report(LinkReport& report) const {
    for (const auto& [key, values] : rates_) {
      const auto& [bytes, kind, direction] = key;
      report.rates.push_back(
          {.memory = kKinds.at(static_cast<std::size_t>(kind)).second,
           .bytes = bytes,
           .direction = kDirections.at(static_cast<std::size_t>(direction)).second,
           .bytes_per_s = spread_of(values)});
    }
    for (const auto& [what, values] : latencies_) {
      report.latencies.push_back({.what = what, .seconds = spread_of(values)});
    }
    report.checked = pattern_->how();
    report.checked_bytes = checked_bytes_;
    const tiers::Arena& arena =
        *memories_.at(static_cast<std::size_t>(Kind::kRegisteredHuge)).arena;
    report.huge_share =
        static_cast<double>(arena.stats().huge_page_bytes) / static_cast<double>(arena.bytes());
  }

 private:
  static constexpr std::uint64_t kHostSeed = 1;    // of what the host sends
  static constexpr std::uint64_t kDeviceSeed = 2;  // of what the device sends
  static constexpr std::uint64_t kWrongSeed = 3;   // of targets, beforehand

  Links(const LinkOptions& options, Lane h2d, Lane d2h)
      : options_(options), h2d_(std::move(h2d)), d2h_(std::move(d2h)) {}

  [[nodiscard]] std::byte* in() const { return static_cast<std::byte*>(device_in_.get()); }

  [[nodiscard]] std::byte* out() const { return static_cast<std::byte*>(device_out_.get()); }

  Status make_targets_wrong(const HostMemory& memory, std::size_t bytes) {
    fill_on_host(memory.target.first(bytes), kWrongSeed);
    return pattern_->fill(in(), bytes, kWrongSeed);
  }

  Status check_targets(const HostMemory& memory, Direction direction, std::size_t bytes) {
    std::uint64_t wrong = 0;
    if (direction != Direction::kToHost) {
      HEADRACE_ASSIGN(wrong, pattern_->count_wrong(in(), bytes, kHostSeed));
      checked_bytes_ += bytes;
    }
    if (direction != Direction::kToDevice) {
      wrong += count_wrong_on_host(memory.target.first(bytes), kDeviceSeed);
      checked_bytes_ += bytes;
    }
    if (wrong == 0) {
      return {};
    }
    return corrupt_error(fmt::format("cuda:{}: {} of {} words did not arrive as they were sent",
                                     options_.device,
                                     wrong,
                                     bytes / kPatternWordBytes))
        .with_why(fmt::format("host memory: {}; direction: {}",
                              kKinds.at(static_cast<std::size_t>(memory.kind)).second,
                              kDirections.at(static_cast<std::size_t>(direction)).second))
        .with_hint("look at the driver's messages (`dmesg`), and at the memory of GPU and host");
  }

  [[nodiscard]] Status send(const HostMemory& memory, std::size_t bytes) const {
    return h2d_.copy(in(), memory.source.data(), bytes, cudaMemcpyHostToDevice);
  }

  [[nodiscard]] Status fetch(const HostMemory& memory, std::size_t bytes) const {
    return d2h_.copy(memory.target.data(), out(), bytes, cudaMemcpyDeviceToHost);
  }

  // The seconds that `copies` of them took in each direction that is asked for.
  Result<double> transfer(const HostMemory& memory,
                          Direction direction,
                          std::size_t bytes,
                          std::size_t copies) {
    if (memory.kind == Kind::kPageable && direction == Direction::kBoth) {
      return transfer_by_two(memory, bytes, copies);
    }
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < copies; ++i) {
      HEADRACE_TRY(direction == Direction::kToHost ? Status() : send(memory, bytes));
      HEADRACE_TRY(direction == Direction::kToDevice ? Status() : fetch(memory, bytes));
    }
    HEADRACE_TRY(h2d_.record());
    HEADRACE_TRY(d2h_.record());
    HEADRACE_TRY(h2d_.wait());
    HEADRACE_TRY(d2h_.wait());
    return seconds_since(begin);
  }

  // A call that copies pageable memory returns late: one thread a direction.
  Result<double> transfer_by_two(const HostMemory& memory, std::size_t bytes, std::size_t copies) {
    const auto all = [&](const Lane& lane, const std::function<Status()>& copy) -> Status {
      HEADRACE_TRY(check(cudaSetDevice(options_.device), "cudaSetDevice", options_.device));
      for (std::size_t i = 0; i < copies; ++i) {
        HEADRACE_TRY(copy());
      }
      HEADRACE_TRY(lane.record());
      return lane.wait();
    };
    std::array<Status, 2> ends;
    const auto begin = Clock::now();
    {
      std::thread sender([&] { ends[0] = all(h2d_, [&] { return send(memory, bytes); }); });
      std::thread fetcher([&] { ends[1] = all(d2h_, [&] { return fetch(memory, bytes); }); });
      sender.join();
      fetcher.join();
    }
    const double seconds = seconds_since(begin);
    for (Status& end : ends) {
      HEADRACE_TRY(std::move(end));
    }
    return seconds;
  }

  template <class Submit>
  Status sample(const char* what, const Lane& lane, const Submit& submit) {
    const auto begin = Clock::now();
    HEADRACE_TRY(submit());
    HEADRACE_TRY(lane.record());
    HEADRACE_TRY(lane.wait());
    latencies_[what].push_back(seconds_since(begin));
    return {};
  }

  LinkOptions options_;
  DeviceMemory device_in_, device_out_;
  std::vector<HostMemory> memories_;  // by Kind
  std::unique_ptr<DevicePattern> pattern_;
  Lane h2d_, d2h_;  // destroyed first
  std::map<std::tuple<std::size_t, Kind, Direction>, std::vector<double>> rates_;
  std::map<std::string, std::vector<double>> latencies_;
  std::uint64_t checked_bytes_ = 0;
};

std::string rate_text(const Spread& rate) {
  constexpr double kGigabyte = 1e9;
  return fmt::format("{:.1f} ({:.1f} to {:.1f})",
                     rate.median / kGigabyte,
                     rate.p5 / kGigabyte,
                     rate.p95 / kGigabyte);
}

std::string link_text(const LinkReport& report) {
  if (!report.nvml) {
    return "its link is not known (no NVML)";
  }
  const tiers::gpu::NvmlFacts& facts = *report.nvml;
  const auto number = [](const std::optional<int>& value) {
    return value ? fmt::format("{}", *value) : std::string("?");
  };
  return fmt::format("driver {}, PCIe {}.0 x{} (at most {}.0 x{})",
                     facts.driver_version.empty() ? "?" : facts.driver_version,
                     number(facts.pcie_generation),
                     number(facts.pcie_width),
                     number(facts.pcie_generation_max),
                     number(facts.pcie_width_max));
}

Json spread_to_json(const Spread& spread) {
  Json json = Json::object();
  json.add("median", spread.median);
  json.add("p5", spread.p5);
  json.add("p95", spread.p95);
  return json;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::sort(values.begin(), values.end());
  const auto at = [&values](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    return values[static_cast<std::size_t>(std::lround(place))];
  };
  constexpr double kMedian = 0.5;
  constexpr double kLow = 0.05;
  constexpr double kHigh = 0.95;
  return {.median = at(kMedian), .p5 = at(kLow), .p95 = at(kHigh)};
}

Result<LinkReport> measure_links(const LinkOptions& options) {
  LinkReport report;
  HEADRACE_ASSIGN(const auto devices, tiers::gpu::list_cuda_devices());
  const auto device = std::find_if(devices.begin(), devices.end(), [&](const auto& candidate) {
    return candidate.ordinal == options.device;
  });
  if (device == devices.end()) {
    return make_error(ExitCode::kHardwareAbsent,
                      fmt::format("cuda:{}: there is no such GPU", options.device))
        .with_why(tiers::gpu::describe_cuda());
  }
  report.device = *device;
  report.cuda = tiers::gpu::describe_cuda();
  report.rounds = options.rounds;
  HEADRACE_ASSIGN(const std::unique_ptr<Links> links, Links::create(options));
  for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
    for (std::size_t bytes = options.bytes_min; bytes <= options.bytes_max; bytes *= 4) {
      HEADRACE_TRY(links->measure(bytes, round < 0));
    }
    if (round >= 0) {
      HEADRACE_TRY(links->measure_latencies());
    }
  }
  // Now, while the link is still awake.
  HEADRACE_ASSIGN(report.nvml, tiers::gpu::nvml_facts(options.nvml, device->pci_id));
  links->report(report);
  return report;
}

std::string report_to_markdown(const LinkReport& report) {
  std::string text = fmt::format(
      "{} (cuda:{}), {}; {}. Medians of {} rounds (5 % to 95 %) in GB/s (10^9 bytes); of "
      "\"both\" the sum. {:.0f} % of the memory with huge pages has them. {} arrived as sent, on "
      "the "
      "device checked {}.\n\n"
      "| host memory | bytes a copy | to the device | to the host | both at once |\n"
      "|---|---|---|---|---|\n",
      report.device.name,
      report.device.ordinal,
      link_text(report),
      report.cuda.substr(0, report.cuda.find(": ")),
      report.rounds,
      100 * report.huge_share,
      format_bytes(report.checked_bytes),
      report.checked);
  // Three in a row are the directions of one size and kind.
  for (std::size_t i = 0; i + 2 < report.rates.size(); i += 3) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n",
                        report.rates[i].memory,
                        format_bytes(report.rates[i].bytes),
                        rate_text(report.rates[i].bytes_per_s),
                        rate_text(report.rates[i + 1].bytes_per_s),
                        rate_text(report.rates[i + 2].bytes_per_s));
  }
  text +=
      "\n| latency, until the host sees its event | median (5 % to 95 %), microseconds "
      "|\n|---|---|\n";
  for (const LinkLatency& latency : report.latencies) {
    constexpr double kMicro = 1e6;
    text += fmt::format("| {} | {:.1f} ({:.1f} to {:.1f}) |\n",
                        latency.what,
                        latency.seconds.median * kMicro,
                        latency.seconds.p5 * kMicro,
                        latency.seconds.p95 * kMicro);
  }
  return text;
}

Json report_to_json(const LinkReport& report) {
  Json json = Json::object();
  json.add("device", report.device.name);
  json.add("ordinal", report.device.ordinal);
  json.add("pci_id", report.device.pci_id);
  json.add("memory_bytes", report.device.memory_bytes);
  json.add("cuda", report.cuda);
  json.add("driver", report.nvml ? Json(report.nvml->driver_version) : Json());
  json.add("pcie_generation", report.nvml ? Json(report.nvml->pcie_generation) : Json());
  json.add("pcie_width", report.nvml ? Json(report.nvml->pcie_width) : Json());
  json.add("rounds", report.rounds);
  json.add("huge_share", report.huge_share);
  json.add("checked_bytes", report.checked_bytes);
  json.add("checked", report.checked);
  Json rates = Json::array();
  for (const LinkRate& rate : report.rates) {
    Json entry = Json::object();
    entry.add("memory", rate.memory);
    entry.add("bytes", rate.bytes);
    entry.add("direction", rate.direction);
    entry.add("bytes_per_s", spread_to_json(rate.bytes_per_s));
    rates.push_back(std::move(entry));
  }
  json.add("rates", std::move(rates));
  Json latencies = Json::array();
  for (const LinkLatency& latency : report.latencies) {
    Json entry = Json::object();
    entry.add("what", latency.what);
    entry.add("seconds", spread_to_json(latency.seconds));
    latencies.push_back(std::move(entry));
  }
  json.add("latencies", std::move(latencies));
  return json;
}

}  // namespace headrace::bench
