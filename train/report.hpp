// What a run says to people: the table of settings, the step line, the summary. Text only; cli/
// prints it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/metrics.hpp"

namespace headrace::train {

struct Setting {
  std::string name;
  std::string value;
};

// A table of two columns, lines ended; long values are cut in lines.
[[nodiscard]] std::string format_settings(const std::vector<Setting>& settings);

// "step  12/200 | loss 3.1234 | norm 1.2345 | lr 3.00e-04 | 812 ms | 1261 tok/s | 83 % of bound |
// stall nvme_read 12 ms", without an end of line. A skipped step names the tensor instead.
[[nodiscard]] std::string format_step(const StepMetrics& metrics, std::int64_t steps);

// Percent of the bound that the step reached: bound / measured; 0 where there is no bound.
[[nodiscard]] double percent_of_bound(const StepMetrics& metrics);

}  // namespace headrace::train
