#include "scheduler/plan/rates.hpp"

#include <fmt/format.h>

namespace headrace::plan {

namespace {

constexpr double kMemoryBytesPerS = 15e9;
constexpr double kUpdateParamsPerS = 400e6;
constexpr double kFloatBytes = 4;

UpdateRates measured(const MachineProfile& machine, const std::string& state) {
  const auto found = machine.update_rates.find(state);
  return found == machine.update_rates.end() ? UpdateRates{} : found->second;
}

}  // namespace

double memory_rate(const MachineProfile& machine) {
  return rate_or(machine.memory_bytes_per_s, kMemoryBytesPerS);
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
