#include "scheduler/plan/rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace::plan {

namespace {

constexpr double kMemoryBytesPerS = 15e9;
constexpr double kUpdateParamsPerS = 400e6;
constexpr double kFloatBytes = 4;

constexpr double kGemmFlopsPerS = 50e9;

// Bytes that an operation moves for each of its elements, where its own rate was not measured.
constexpr std::array<double, kElementOperations> kElementBytes = {
    12, 8, 16, 8, 12, 12, 20, 8, 4, 8};

double gemm_rate(const MachineProfile& machine) {
  return rate_or(machine.gemm_fp32_flops_per_s, kGemmFlopsPerS);
}

UpdateRates measured(const MachineProfile& machine, const std::string& state) {
  const auto found = machine.update_rates.find(state);
  return found == machine.update_rates.end() ? UpdateRates{} : found->second;
}

}  // namespace

double memory_rate(const MachineProfile& machine) {
  return rate_or(machine.memory_bytes_per_s, kMemoryBytesPerS);
}

double rate_at(const SizedRates& measured, double size) {
  const std::vector<double>& sizes = measured.sizes;
  const std::vector<double>& rates = measured.rates;
  const std::size_t count = std::min(sizes.size(), rates.size());
  if (count == 0) {
    return 0;
  }
  std::size_t above = 0;
  while (above < count && sizes[above] < size) {
    ++above;
  }
  if (above == 0 || above == count) {
    return rates[above == 0 ? 0 : count - 1];
  }
  const double low = rates[above - 1];
  const double high = rates[above];
  if (low <= 0 || high <= 0) {
    return std::max(low, high);
  }
  const double part = std::log(size / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1]);
  return low * std::pow(high / low, part);
}

double seconds_of(const Work& work, const MachineProfile& machine) {
  const double gemm = gemm_rate(machine);
  double seconds = static_cast<double>(work.operations) * machine.operation_s;
  for (const Product& product : work.products) {
    const SizedRates& rates =
        machine
            .gemm[static_cast<std::size_t>(product.pass)][static_cast<std::size_t>(product.layout)];
    seconds += product.flops() / rate_or(rate_at(rates, static_cast<double>(product.rows)), gemm);
  }
  const auto sequence = static_cast<double>(work.sequence);
  seconds +=
      work.attention_forward_flops / rate_or(rate_at(machine.attention_forward, sequence), gemm);
  seconds +=
      work.attention_backward_flops / rate_or(rate_at(machine.attention_backward, sequence), gemm);
  const double memory = memory_rate(machine);
  for (std::size_t i = 0; i < kElementOperations; ++i) {
    seconds += work.elements[i] / rate_or(machine.elements_per_s[i], memory / kElementBytes[i]);
  }
  return seconds;
}

double collect_seconds(const MachineProfile& machine, double elements) {
  return elements / rate_or(machine.collect_params_per_s, memory_rate(machine) / (2 * kFloatBytes));
}

std::string missing_compute_rates(const MachineProfile& machine) {
  const bool has_gemm = std::all_of(machine.gemm.begin(), machine.gemm.end(), [](const auto& of) {
    return std::all_of(of.begin(), of.end(), [](const SizedRates& rates) {
      return !rates.rates.empty() &&
             std::all_of(rates.rates.begin(), rates.rates.end(), [](double r) { return r > 0; });
    });
  });
  return has_gemm ? ""
                  : "the machine profile has no rates of products by rows and layout: they are "
                    "priced as its one GEMM";
}

UpdateRates update_rates(const MachineProfile& machine, const StateFormat& format) {
  const double memory = memory_rate(machine);
  const double fp32 =
      rate_or(measured(machine, StateFormat{}.name).update_params_per_s, kUpdateParamsPerS);
  UpdateRates rates = measured(machine, format.name);
  rates.update_params_per_s = rate_or(rates.update_params_per_s, fp32);
  rates.update_decoded_params_per_s =
      rate_or(rates.update_decoded_params_per_s,
              1 / (1 / rates.update_params_per_s + kFloatBytes / memory));
  rates.decode_params_per_s = rate_or(rates.decode_params_per_s, rates.update_params_per_s);
  return rates;
}

std::vector<std::string> missing_update_rates(const MachineProfile& machine,
                                              const StateFormat& format) {
  const StateFormat fp32;
  const UpdateRates rates = measured(machine, format.name);
  std::vector<std::string> missing;
  if (rates.update_params_per_s <= 0) {
    const bool borrowed = measured(machine, fp32.name).update_params_per_s > 0;
    missing.push_back(fmt::format(
        "the machine profile has no rate of updates in state \"{}\": they are priced {}",
        format.name,
        borrowed ? fmt::format("as in \"{}\"", fp32.name) : "as a modest desktop's"));
  }
  if (format.decoded &&
      (rates.update_decoded_params_per_s <= 0 || rates.decode_params_per_s <= 0)) {
    missing.push_back(
        fmt::format("the machine profile has no rate of decoding state \"{}\": it is priced as an "
                    "update; where an update writes floats, what memory takes for them is added",
                    format.name));
  }
  return missing;
}

}  // namespace headrace::plan
