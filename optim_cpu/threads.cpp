// Threads over an Arena: arguments, errors, and the order between the caller and its workers.

#include "optim_cpu/threads.hpp"

#include <atomic>
#include <cerrno>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "core/float_environment.hpp"
#include "core/log.hpp"
#include "optim_cpu/arena.hpp"

namespace headrace::optim {

namespace {

// Why the system would not let threads run on some node alone; empty: it would.
std::string binding_problem(std::span<const NodeThreads> nodes) {
  const std::optional<CoreMask> before = CoreMask::of_this_thread();
  if (!before) {
    return errno_error("sched_getaffinity", errno).why;
  }
  std::string problem;
  for (const NodeThreads& node : nodes) {
    if (!CoreMask::of(node.cores).bind_this_thread()) {
      problem = errno_error("sched_setaffinity", errno).why;
      break;
    }
  }
  if (!before->bind_this_thread() && problem.empty()) {
    problem = errno_error("sched_setaffinity", errno).why;
  }
  return problem;
}

std::vector<NodeThreads> shares_that_can_be_bound(int count, std::span<const NodeCores> nodes) {
  std::vector<NodeThreads> shares = share_threads(count, nodes);
  if (shares.empty()) {
    return shares;
  }
  if (const std::string problem = binding_problem(shares); !problem.empty()) {
    log_warning("the optimizer's threads are not bound to the " + std::to_string(shares.size()) +
                " NUMA nodes: " + problem +
                "; updates may reach across nodes, which costs time only; a container must allow "
                "sched_setaffinity on the cores that it shows");
    shares.clear();
  }
  return shares;
}

}  // namespace

struct Threads::Impl {
  Impl(int count, std::vector<NodeThreads> nodes) : arena(count, std::move(nodes)) {}

  Arena arena;
  std::atomic<bool> in_use{false};
};

Result<std::unique_ptr<Threads>> Threads::create(int count, std::span<const NodeCores> nodes) {
  if (count < 1 || count > kCountMax) {
    return usage_error("optimizer threads: " + std::to_string(count) +
                       " is not a number of threads")
        .with_hint("set optim.threads to 1.." + std::to_string(kCountMax) + ", or \"auto\"");
  }
  try {
    auto impl = std::make_unique<Impl>(count, shares_that_can_be_bound(count, nodes));
    return std::unique_ptr<Threads>(new Threads(count, std::move(impl)));
  } catch (const std::exception& error) {
    return operating_error("optimizer threads: cannot start " + std::to_string(count))
        .with_why(error.what())
        .with_hint("set optim.threads lower");
  }
}

Threads::Threads(int count, std::unique_ptr<Impl> impl) : count_(count), impl_(std::move(impl)) {}

Threads::~Threads() = default;

std::span<const NodeThreads> Threads::nodes() const {
  return impl_->arena.nodes();
}

void Threads::run(std::int64_t count, Within within, RangeBody body) {
  HEADRACE_ASSERT(within.begin >= 0 && (within.total == 0 || within.total >= within.begin + count),
                  "a range lies within what it is part of");
  HEADRACE_ASSERT(!impl_->in_use.exchange(true), "one caller at a time");

  // Even where oneTBB has no memory and throws.
  struct Release {
    std::atomic<bool>& in_use;

    ~Release() { in_use.store(false); }
  } const release{impl_->in_use};

  // What the caller wrote before `begun` is seen by the workers, what they wrote before `done` by
  // the caller: stated here, not left to the library.
  struct Work {
    std::atomic<bool> begun{false};
    std::atomic<std::int64_t> done{0};
    RangeBody body;
  } work;

  work.body = body;
  work.begun.store(true, std::memory_order_release);
  impl_->arena.for_ranges(
      {.count = count, .begin = within.begin, .total = within.total == 0 ? count : within.total},
      [](void* context, std::int64_t begin, std::int64_t end) {
        auto& shared = *static_cast<Work*>(context);
        HEADRACE_ASSERT(shared.begun.load(std::memory_order_acquire),
                        "work begins before it is done");
        HEADRACE_DASSERT(flush_to_zero_is_set(), "the arena flushes subnormals");
        shared.body.call(shared.body.context, begin, end);
        shared.done.fetch_add(end - begin, std::memory_order_release);
      },
      &work);
  HEADRACE_ASSERT(work.done.load(std::memory_order_acquire) == count, "every index was done once");
}

}  // namespace headrace::optim
