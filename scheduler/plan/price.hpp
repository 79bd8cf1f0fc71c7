// Internal to the planner: how long an instruction takes by itself, from the machine's rates. What
// it takes while others run beside it is the simulator's business (simulate.cpp).
//
// A rate that was not measured is taken as a modest desktop's (plan.notes says so). Threads: any.
// Failure: none.
#pragma once

#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

class Pricer {
 public:
  // All outlive it. Of the plan, `update_rates` are read.
  Pricer(const ModelSpec& model,
         const PlanSettings& settings,
         const MachineProfile& machine,
         const Plan& plan)
      : model_(model), settings_(settings), machine_(machine), plan_(plan) {}

  // Sets seconds, kernels and link_bytes. Of compute without operands: the least that it takes,
  // since what is added to gradients is not known.
  void price(Instruction& instruction) const;

 private:
  [[nodiscard]] double link_rate(const Instruction& instruction) const;
  [[nodiscard]] double gather_seconds(const Instruction& instruction) const;
  [[nodiscard]] double spread_seconds(const Instruction& instruction) const;
  [[nodiscard]] double adding_seconds(const Instruction& instruction, std::size_t gradient) const;
  [[nodiscard]] double compute_seconds(const Instruction& instruction) const;
  [[nodiscard]] int kernel_count(const Instruction& instruction) const;

  const ModelSpec& model_;
  const PlanSettings& settings_;
  const MachineProfile& machine_;
  const Plan& plan_;
};

}  // namespace headrace::plan
