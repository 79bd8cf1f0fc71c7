// Internal to the planner: fills what the budgets leave with what is worth most per byte. Threads:
// any. Failure: none.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/plan/residency.hpp"

namespace headrace::plan {

// In which order what the budgets leave is given away.
struct FillingOrder {
  bool state_first = false;  // before weights
  double staged_first = 0;   // share of tiles that get room to be on their way before all else
  bool best_set = false;     // of units: the most elements that fit, not the first
};

class Filling {
 public:
  Filling(const ModelSpec& model, const PlanSettings& settings, Choices& choices);

  // Turns on what still fits.
  void run(const FillingOrder& order);

  // More tiles on their way, up to a share of those that stream: read before the step that needs
  // them, written after it.
  void deepen_staging(double share);

  // Activations of as many of the last blocks as fit. True: of more than before.
  bool keep_activations();

  // From everything down, what is worth least first, until it fits.
  void empty(bool state_first);

 private:
  [[nodiscard]] Plan laid_out() const;
  [[nodiscard]] bool fits_now() const;
  void raise(int Choices::*count, int most);
  void turn_on(const UnitChange& change);
  void turn_on_run(const UnitChange& change, std::size_t begin, std::size_t end);
  void turn_on_best(const UnitChange& change);

  [[nodiscard]] const UnitSpec& unit_at(std::size_t i) const { return model_.units[order_[i]]; }

  const ModelSpec& model_;
  const PlanSettings& settings_;
  Choices& choices_;
  std::vector<std::size_t> order_;
};

}  // namespace headrace::plan
