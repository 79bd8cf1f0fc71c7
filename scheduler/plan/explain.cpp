#include "scheduler/plan/explain.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/nearest_name.hpp"
#include "core/quantity.hpp"
#include "scheduler/plan/report.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kInputOperand = 1;  // of kForward (program.hpp)
constexpr std::size_t kSavedOperand = 3;
constexpr double kGainMin = 0.005;  // of a step; what is less is none

const char* what_of(const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::kReadParam:
      return "read weights";
    case InstructionKind::kReadState:
      return "read state";
    case InstructionKind::kWriteParam:
      return "write weights";
    case InstructionKind::kWriteState:
      return "write state";
    case InstructionKind::kReadSaved:
      return "read activations";
    case InstructionKind::kWriteSaved:
      return "write activations";
    case InstructionKind::kCopy:
      return instruction.queue == QueueKind::kH2d ? "copy to device" : "copy to host";
    case InstructionKind::kUpdate:
      return "update";
    case InstructionKind::kDecode:
      return "decode weights";
    case InstructionKind::kAccumulate:
    case InstructionKind::kCollect:
      return "keep gradients";
    case InstructionKind::kGather:
    case InstructionKind::kScatter:
    case InstructionKind::kSpread:
      return "rows of the table";
    default:
      return "kernels";
  }
}

bool begins_backward(const Instruction& instruction) {
  return instruction.kind == InstructionKind::kBackward ||
         instruction.kind == InstructionKind::kHeadGradient;
}

// The programs of a step with when each instruction runs, one after the other.
struct Timeline {
  struct Part {
    const Program* program;
    std::vector<SimulatedSpan> spans;
    bool updates_only;
  };

  std::vector<Part> parts;
  double seconds = 0;
};

Timeline simulate_step(const Plan& plan, const Contention& contention) {
  Timeline timeline;
  const auto add = [&](const Program& program, bool updates_only) {
    if (program.instructions.empty()) {
      return;
    }
    Simulation simulation = simulate(program, contention);
    for (SimulatedSpan& span : simulation.spans) {
      span.ready += timeline.seconds;
      span.begin += timeline.seconds;
      span.end += timeline.seconds;
    }
    timeline.seconds += simulation.prediction.seconds;
    timeline.parts.push_back({&program, std::move(simulation.spans), updates_only});
  };
  if (plan.compute.instructions.empty()) {
    add(plan.evaluation, false);
    return timeline;
  }
  add(steady_program(plan), false);
  if (plan.update == Update::kAfterBackward) {
    add(plan.drain, true);
  }
  return timeline;
}

void add_moments(const Timeline::Part& part, int unit, Explanation& explanation) {
  const std::vector<Instruction>& instructions = part.program->instructions;
  double backward_begin = part.spans.empty() ? 0 : part.spans.back().end;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    if (begins_backward(instructions[i])) {
      backward_begin = std::min(backward_begin, part.spans[i].begin);
    }
  }
  std::map<std::pair<std::string, std::string>, UnitMoment> moments;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& instruction = instructions[i];
    if (instruction.unit != unit) {
      continue;
    }
    const SimulatedSpan& span = part.spans[i];
    const std::string phase = part.updates_only              ? "update"
                              : span.begin >= backward_begin ? "backward"
                                                             : "forward";
    UnitMoment& moment = moments[{phase, what_of(instruction)}];
    if (moment.times == 0) {
      moment = {.phase = phase,
                .what = what_of(instruction),
                .times = 0,
                .begin = span.begin,
                .end = span.end,
                .busy_seconds = 0,
                .link_bytes = 0};
    }
    ++moment.times;
    moment.begin = std::min(moment.begin, span.begin);
    moment.end = std::max(moment.end, span.end);
    moment.busy_seconds += span.end - span.begin;
    moment.link_bytes += instruction.link_bytes;
  }
  for (auto& [key, moment] : moments) {
    explanation.moments.push_back(std::move(moment));
  }
}

// How long the device stands still before kernels of the unit, and for what longest.
void add_waits(const Timeline::Part& part, int unit, std::map<std::string, double>& waits) {
  double device_free = part.spans.empty() ? 0 : part.spans.front().begin;
  const std::vector<Instruction>& instructions = part.program->instructions;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& instruction = instructions[i];
    if (instruction.queue != QueueKind::kCompute) {
      continue;
    }
    const SimulatedSpan& span = part.spans[i];
    if (instruction.unit == unit && span.begin > device_free) {
      int last = -1;
      for (const int wait : instruction.waits) {
        const bool later = last < 0 || part.spans[static_cast<std::size_t>(wait)].end >
                                           part.spans[static_cast<std::size_t>(last)].end;
        last = later ? wait : last;
      }
      const bool for_it = last >= 0 && part.spans[static_cast<std::size_t>(last)].end > device_free;
      waits[for_it ? what_of(instructions[static_cast<std::size_t>(last)]) : "cores"] +=
          span.begin - device_free;
    }
    device_free = std::max(device_free, span.end);
  }
}

void add_timeline(const Timeline& timeline, int unit, Explanation& explanation) {
  std::map<std::string, double> waits;
  for (const Timeline::Part& part : timeline.parts) {
    add_moments(part, unit, explanation);
    add_waits(part, unit, waits);
  }
  std::stable_sort(explanation.moments.begin(),
                   explanation.moments.end(),
                   [](const UnitMoment& a, const UnitMoment& b) { return a.begin < b.begin; });
  explanation.step_seconds = timeline.seconds;
  for (const auto& [what, seconds] : waits) {
    explanation.waited_seconds += seconds;
    if (seconds > explanation.longest_wait_seconds) {
      explanation.longest_wait = what;
      explanation.longest_wait_seconds = seconds;
    }
  }
}

const char* tier_of(const Plan& plan, int buffer) {
  return buffer < 0                                                                   ? "nvme"
         : plan.buffers[static_cast<std::size_t>(buffer)].tier == MemoryTier::kDevice ? "device"
                                                                                      : "host";
}

std::uint64_t buffer_bytes(const Plan& plan, int buffer) {
  return buffer < 0 ? 0 : plan.buffers[static_cast<std::size_t>(buffer)].bytes;
}

std::uint64_t extent_bytes(const std::vector<TilePlace>& places) {
  std::uint64_t bytes = 0;
  for (const TilePlace& place : places) {
    bytes += place.bytes;
  }
  return bytes;
}

// Distinct buffers at an operand of the unit's forward kernels.
std::set<int> forward_buffers(const Program& program, int unit, std::size_t operand) {
  std::set<int> buffers;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.unit == unit && instruction.kind == InstructionKind::kForward &&
        instruction.accesses.size() > operand && instruction.accesses[operand].buffer >= 0) {
      buffers.insert(instruction.accesses[operand].buffer);
    }
  }
  return buffers;
}

const char* spilled_how(const Plan& plan) {
  return plan.separate_device ? "in turn with others; wait for backward in host memory"
                              : "in turn with others; wait for backward on NVMe";
}

void add_activations(const Plan& plan, int unit, Explanation& explanation) {
  const Program& program = plan.compute.instructions.empty() ? plan.evaluation : plan.compute;
  const bool training = !plan.compute.instructions.empty();
  for (const auto& [operand, what] :
       {std::pair(kInputOperand, "inputs"), std::pair(kSavedOperand, "saved")}) {
    const std::set<int> buffers = forward_buffers(program, unit, operand);
    std::uint64_t bytes = 0;
    for (const int buffer : buffers) {
      bytes += buffer_bytes(plan, buffer);
    }
    if (buffers.empty() || bytes == 0) {
      continue;
    }
    const bool saved = operand == kSavedOperand;
    const char* how = !training                             ? "shared by all units"
                      : saved && is_spilled(plan, unit)     ? spilled_how(plan)
                      : saved && !is_recomputed(plan, unit) ? "kept for backward"
                      : saved ? "made again by backward, in memory that units share"
                      : plan.offload_inputs
                          ? "a checkpoint of each micro-batch, offloaded meanwhile"
                          : "a checkpoint of each micro-batch";
    explanation.things.push_back(
        {.what = what, .where = tier_of(plan, *buffers.begin()), .bytes = bytes, .how = how});
  }
}

void add_things(const ModelSpec& model, const Plan& plan, int unit, Explanation& explanation) {
  const UnitPlan& placed = plan.units[static_cast<std::size_t>(unit)];
  const bool own_copy = placed.weights >= 0 && placed.weights != placed.master;
  const bool streamed = plan.separate_device ? !placed.pinned : placed.master < 0 && !own_copy;
  explanation.things.push_back(
      {.what = "weights",
       .where = tier_of(plan, placed.master),
       .bytes = extent_bytes(placed.param),
       .how = streamed ? "through a slot of the device at each use" : "where kernels read them"});
  if (own_copy) {
    explanation.things.back().how = "what updates work on";
    explanation.things.push_back({.what = "weights",
                                  .where = tier_of(plan, placed.weights),
                                  .bytes = buffer_bytes(plan, placed.weights),
                                  .how = "floats that stay, where kernels read them"});
  }
  if (extent_bytes(placed.state_of) > 0) {
    explanation.things.push_back({.what = "state",
                                  .where = tier_of(plan, placed.state),
                                  .bytes = extent_bytes(placed.state_of),
                                  .how = fmt::format("optim.state \"{}\"", plan.format.name)});
  }
  if (placed.gradient >= 0) {
    explanation.things.push_back(
        {.what = "gradients",
         .where = tier_of(plan, placed.gradient),
         .bytes = buffer_bytes(plan, placed.gradient),
         .how = fmt::format("held as {} until the update", dtype_name(placed.gradient_storage))});
  }
  add_activations(plan, unit, explanation);
  for (const TensorSpec& tensor : model.units[static_cast<std::size_t>(unit)].tensors) {
    explanation.parameters += tensor.elements;
  }
  explanation.tiles = placed.tiles.size();
}

// Instructions of a unit that move what could be nearer.
struct Transfers {
  int unit;
  std::set<InstructionKind> kinds;
  QueueKind queue;

  [[nodiscard]] bool contain(const Instruction& instruction) const {
    return instruction.unit == unit && instruction.queue == queue &&
           kinds.contains(instruction.kind) && instruction.micro_batch < 0;  // no activations
  }
};

const char* resource_of(QueueKind queue) {
  return queue == QueueKind::kNvme  ? "nvme"
         : queue == QueueKind::kH2d ? "h2d"
         : queue == QueueKind::kD2h ? "d2h"
                                    : "cores";
}

// For how long each resource does something: a drive that reads and writes at once does so once.
void add_busy(const Program& program,
              const std::vector<SimulatedSpan>& spans,
              std::map<std::string, double>& busy) {
  std::map<std::string, std::vector<std::pair<double, double>>> times;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    times[resource_of(program.instructions[i].queue)].emplace_back(spans[i].begin, spans[i].end);
  }
  for (auto& [resource, of_resource] : times) {
    std::sort(of_resource.begin(), of_resource.end());
    double until = 0;
    for (const auto& [begin, end] : of_resource) {
      busy[resource] += std::max(0.0, end - std::max(begin, until));
      until = std::max(until, end);
    }
  }
}

// What they move in a step, and the step without them.
UnitBenefit spared_by(const Timeline& timeline,
                      const Contention& contention,
                      const Transfers& transfers) {
  UnitBenefit benefit;
  std::map<std::string, double> busy;
  for (const Timeline::Part& part : timeline.parts) {
    Program without = *part.program;
    for (Instruction& instruction : without.instructions) {
      if (transfers.contain(instruction)) {
        benefit.spares_bytes += std::exchange(instruction.link_bytes, 0);
        benefit.spares_seconds += std::exchange(instruction.seconds, 0);
      }
    }
    const Simulation step = simulate(without, contention);
    benefit.step_seconds += step.prediction.seconds;
    add_busy(without, step.spans, busy);
  }
  for (const auto& [resource, seconds] : busy) {
    if (seconds > benefit.busiest_seconds) {
      benefit.busiest = resource;
      benefit.busiest_seconds = seconds;
    }
  }
  return benefit;
}

std::string works(const std::string& resource) {
  return resource == "nvme"    ? "the drive moves bytes"
         : resource == "cores" ? "the cores work"
         : resource == "h2d"   ? "the link to the device moves bytes"
                               : "the link from the device moves bytes";
}

// There is room for it: what the step would be like, and what it is limited by.
std::string gain_of(const UnitBenefit& benefit, double step_seconds) {
  const std::string then = format_duration(benefit.step_seconds);
  const std::string limit = fmt::format(
      "{} for {} of it", works(benefit.busiest), format_duration(benefit.busiest_seconds));
  if (benefit.step_seconds >= (1 - kGainMin) * step_seconds) {
    return fmt::format("the step would still take {}: {}", then, limit);
  }
  return fmt::format(
      "no plan with it that fits was found to be faster; with all else as it is the step would "
      "come from {} to {}: {}",
      format_duration(step_seconds),
      then,
      limit);
}

std::string why_not(const UnitBenefit& benefit,
                    double step_seconds,
                    const char* tier,
                    std::uint64_t used_bytes,
                    std::uint64_t budget_bytes) {
  const std::uint64_t left = budget_bytes > used_bytes ? budget_bytes - used_bytes : 0;
  return left < benefit.takes_bytes ? fmt::format("tiers.{}_memory stops it: {} of {} are left",
                                                  tier,
                                                  format_bytes(left),
                                                  format_bytes(budget_bytes))
                                    : fmt::format("{} of tiers.{}_memory are left, but {}",
                                                  format_bytes(left),
                                                  tier,
                                                  gain_of(benefit, step_seconds));
}

void add_benefits(const PlanSettings& settings,
                  const Plan& plan,
                  const Timeline& timeline,
                  const Contention& contention,
                  int unit,
                  Explanation& explanation) {
  using enum InstructionKind;
  const UnitPlan& placed = plan.units[static_cast<std::size_t>(unit)];
  const auto add = [&](const Transfers& transfers,
                       const char* what,
                       const char* tier,
                       std::uint64_t takes_bytes) {
    UnitBenefit benefit = spared_by(timeline, contention, transfers);
    if (benefit.spares_bytes == 0 || takes_bytes == 0) {
      return;
    }
    const bool host = std::string(tier) == "host";
    const std::size_t device_budget =
        settings.device_memory_bytes.value_or(settings.device_available_bytes);
    benefit.what = what;
    benefit.takes_bytes = takes_bytes;
    benefit.per_byte = static_cast<double>(benefit.spares_bytes) / static_cast<double>(takes_bytes);
    benefit.why_not = host && settings.place
                          ? fmt::format("tiers.place = \"{}\" says so", home_name(*settings.place))
                          : why_not(benefit,
                                    timeline.seconds,
                                    tier,
                                    host ? plan.host_arena_bytes : plan.device_arena_bytes,
                                    host ? settings.host_memory_bytes : device_budget);
    explanation.benefits.push_back(std::move(benefit));
  };
  if (placed.master < 0) {
    add({.unit = unit, .kinds = {kReadParam, kWriteParam}, .queue = QueueKind::kNvme},
        "weights in host memory",
        "host",
        extent_bytes(placed.param));
  }
  if (placed.state < 0) {
    add({.unit = unit, .kinds = {kReadState, kWriteState}, .queue = QueueKind::kNvme},
        "state in host memory",
        "host",
        extent_bytes(placed.state_of));
  }
  if (plan.separate_device && !placed.pinned) {
    add({.unit = unit, .kinds = {kCopy}, .queue = QueueKind::kH2d},
        "weights on the device",
        "device",
        static_cast<std::uint64_t>(explanation.parameters) * 4);
  }
}

}  // namespace

Result<Explanation> explain_unit(const ModelSpec& model,
                                 const PlanSettings& settings,
                                 const MachineProfile& machine,
                                 const Plan& plan,
                                 const std::string& unit) {
  std::vector<std::string> names;
  names.reserve(model.units.size());
  for (const UnitSpec& spec : model.units) {
    names.push_back(spec.name);
  }
  const auto found = std::find(names.begin(), names.end(), unit);
  if (found == names.end()) {
    const std::string nearest = nearest_name(unit, names);
    const std::string& last = names[names.size() - 2];
    return usage_error(fmt::format("--explain: the model has no unit '{}'", unit))
        .with_hint(fmt::format("{}the units are embedding, block.0 to {}, head",
                               nearest.empty() ? "" : "the nearest is " + nearest + "; ",
                               last));
  }
  const int index = static_cast<int>(found - names.begin());
  Explanation explanation;
  explanation.unit = unit;
  add_things(model, plan, index, explanation);
  const Contention contention = contention_of(machine, settings);
  const Timeline timeline = simulate_step(plan, contention);
  add_timeline(timeline, index, explanation);
  add_benefits(settings, plan, timeline, contention, index, explanation);
  return explanation;
}

std::string format_explanation(const Explanation& explanation) {
  std::string text;
  add_line(text,
           "unit",
           fmt::format("{}: {} parameters in {} tiles",
                       explanation.unit,
                       format_count(static_cast<double>(explanation.parameters)),
                       explanation.tiles));
  text += fmt::format("\n{:<12} {:>8} {:>12}\n", "what", "where", "bytes");
  for (const UnitThing& thing : explanation.things) {
    text += fmt::format(
        "{:<12} {:>8} {:>12}  {}\n", thing.what, thing.where, format_bytes(thing.bytes), thing.how);
  }
  text += "\n";
  for (const UnitBenefit& benefit : explanation.benefits) {
    add_line(
        text,
        "why",
        fmt::format("{} would take {} and spare {} a step ({:.1f} B for each), {} of the link; "
                    "{}",
                    benefit.what,
                    format_bytes(benefit.takes_bytes),
                    format_bytes(benefit.spares_bytes),
                    benefit.per_byte,
                    format_duration(benefit.spares_seconds),
                    benefit.why_not));
  }
  if (explanation.benefits.empty()) {
    add_line(text, "why", "nothing of it would be spared a link by being elsewhere");
  }
  text += fmt::format("\n{:<10} {:<18} {:>6} {:>11} {:>11} {:>11} {:>11}\n",
                      "in a step",
                      "",
                      "times",
                      "from",
                      "to",
                      "busy",
                      "moved");
  for (const UnitMoment& moment : explanation.moments) {
    text += fmt::format("{:<10} {:<18} {:>6} {:>11} {:>11} {:>11} {:>11}\n",
                        moment.phase,
                        moment.what,
                        moment.times,
                        format_duration(moment.begin),
                        format_duration(moment.end),
                        format_duration(moment.busy_seconds),
                        moment.link_bytes > 0 ? format_bytes(moment.link_bytes) : "-");
  }
  text += "\n";
  add_line(text,
           "waits",
           explanation.longest_wait.empty()
               ? "the device never waits for this unit"
               : fmt::format("the device waits {} of {} for this unit, longest for '{}': {}",
                             format_duration(explanation.waited_seconds),
                             format_duration(explanation.step_seconds),
                             explanation.longest_wait,
                             format_duration(explanation.longest_wait_seconds)));
  return text;
}

Json explanation_to_json(const Explanation& explanation) {
  Json json = Json::object();
  json.set("unit", explanation.unit);
  json.set("parameters", explanation.parameters);
  json.set("tiles", explanation.tiles);
  Json things = Json::array(), benefits = Json::array(), moments = Json::array();
  for (const UnitThing& thing : explanation.things) {
    Json entry = Json::object();
    entry.set("what", thing.what);
    entry.set("where", thing.where);
    entry.set("bytes", thing.bytes);
    entry.set("how", thing.how);
    things.push_back(std::move(entry));
  }
  for (const UnitBenefit& benefit : explanation.benefits) {
    Json entry = Json::object();
    entry.set("what", benefit.what);
    entry.set("takes_bytes", benefit.takes_bytes);
    entry.set("spares_bytes", benefit.spares_bytes);
    entry.set("spares_seconds", benefit.spares_seconds);
    entry.set("per_byte", benefit.per_byte);
    entry.set("step_seconds", benefit.step_seconds);
    entry.set("busiest", benefit.busiest);
    entry.set("busiest_seconds", benefit.busiest_seconds);
    entry.set("why_not", benefit.why_not);
    benefits.push_back(std::move(entry));
  }
  for (const UnitMoment& moment : explanation.moments) {
    Json entry = Json::object();
    entry.set("phase", moment.phase);
    entry.set("what", moment.what);
    entry.set("times", moment.times);
    entry.set("begin_seconds", moment.begin);
    entry.set("end_seconds", moment.end);
    entry.set("busy_seconds", moment.busy_seconds);
    entry.set("bytes", moment.link_bytes);
    moments.push_back(std::move(entry));
  }
  json.set("things", std::move(things));
  json.set("benefits", std::move(benefits));
  json.set("moments", std::move(moments));
  json.set("step_seconds", explanation.step_seconds);
  json.set("waited_seconds", explanation.waited_seconds);
  json.set("longest_wait", explanation.longest_wait);
  json.set("longest_wait_seconds", explanation.longest_wait_seconds);
  return json;
}

}  // namespace headrace::plan
