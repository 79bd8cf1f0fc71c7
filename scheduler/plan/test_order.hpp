// Which instructions of a program are ordered, whatever the queues do.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "scheduler/plan/program.hpp"

namespace headrace::plan {

// Reachability over queue order and waits: what derive_waits must make true for every conflicting
// pair, and what it must not say twice.
struct Graph {
  explicit Graph(const Program& program)
      : reach(program.instructions.size(), std::vector<char>(program.instructions.size(), 0)) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      std::vector<std::size_t> before(instruction.waits.begin(), instruction.waits.end());
      for (std::size_t j = i; j-- > 0;) {
        const Instruction& other = program.instructions[j];
        if (other.queue == instruction.queue &&
            (other.queue != QueueKind::kNvme || other.lane == instruction.lane)) {
          before.push_back(j);
          break;
        }
      }
      for (const std::size_t j : before) {
        reach[i][j] = 1;
        for (std::size_t k = 0; k < j; ++k) {
          reach[i][k] = static_cast<char>(reach[i][k] | reach[j][k]);
        }
      }
    }
  }

  std::vector<std::vector<char>> reach;
};

inline bool conflict(const Instruction& a, const Instruction& b) {
  for (const Access& x : a.accesses) {
    for (const Access& y : b.accesses) {
      const bool writes = x.mode != AccessMode::kRead || y.mode != AccessMode::kRead;
      if (writes && x.buffer >= 0 && x.buffer == y.buffer && x.offset < y.offset + y.bytes &&
          y.offset < x.offset + x.bytes) {
        return true;
      }
    }
  }
  return false;
}

// Every two conflicting instructions are ordered by queues and waits.
inline void expect_ordered(const Program& program) {
  const Graph graph(program);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      ASSERT_TRUE(!conflict(program.instructions[i], program.instructions[j]) || graph.reach[i][j])
          << program.name;
    }
  }
}

}  // namespace headrace::plan
