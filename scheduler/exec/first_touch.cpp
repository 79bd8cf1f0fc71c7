// See first_touch.hpp.
#include "scheduler/exec/first_touch.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <thread>

namespace headrace::exec {

namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
constexpr std::size_t kSmallPageBytes = 4096;
constexpr int kMadvPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14

// Bytes of the host arena that lie over the nodes as one.
struct Plane {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

class PageOwners {
 public:
  PageOwners(std::size_t arena_bytes,
             std::size_t page_bytes,
             std::span<const optim::NodeThreads> nodes)
      : page_bytes_(page_bytes),
        nodes_(nodes),
        owners_((arena_bytes + page_bytes - 1) / page_bytes, kNobodysPage) {}

  // Memory that several tiles pass through is the first one's to cut.
  void add(const Plane& plane) {
    const std::size_t half = page_bytes_ / 2;
    // The first page whose middle is not before the plane.
    std::size_t page =
        plane.begin <= half ? 0 : (plane.begin - half + page_bytes_ - 1) / page_bytes_;
    for (; page * page_bytes_ + half < plane.begin + plane.bytes; ++page) {
      if (owners_[page] == kNobodysPage) {
        const std::size_t at = page * page_bytes_ + half - plane.begin;
        owners_[page] = static_cast<int>(optim::node_of(
            nodes_, static_cast<std::int64_t>(at), static_cast<std::int64_t>(plane.bytes)));
      }
    }
  }

  [[nodiscard]] std::vector<int> take() { return std::move(owners_); }

 private:
  std::size_t page_bytes_;
  std::span<const optim::NodeThreads> nodes_;
  std::vector<int> owners_;
};

// Binds itself to the node and brings in pages, runs of neighbours at a time.
void touch(std::span<std::byte> arena,
           std::size_t page_bytes,
           std::span<const std::size_t> pages,
           const optim::CoreMask& cores) {
  pthread_setname_np(pthread_self(), "hr-touch");
  if (!cores.bind_this_thread()) {
    return;
  }
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t run = 1;
    while (i + run < pages.size() && pages[i + run] == pages[i] + run) {
      ++run;
    }
    const std::size_t begin = pages[i] * page_bytes;
    const std::size_t bytes = std::min(run * page_bytes, arena.size() - begin);
    // Not by writing: where a page cannot be had that ends the process. The arena asks again, and
    // reports.
    while (::madvise(arena.data() + begin, bytes, kMadvPopulateWrite) != 0 && errno == EINTR) {
    }
    i += run;
  }
}

}  // namespace

std::size_t touched_page_bytes(std::size_t arena_bytes) {
  return arena_bytes >= kHugePageBytes ? kHugePageBytes : kSmallPageBytes;
}

std::vector<int> page_nodes(const plan::Plan& plan,
                            const optim::Optimizer& optimizer,
                            std::span<const optim::NodeThreads> nodes,
                            std::size_t page_bytes) {
  PageOwners owners(plan.host_arena_bytes, page_bytes, nodes);
  for (const plan::Program* program : {&plan.compute_held, &plan.drain}) {
    for (const plan::Instruction& instruction : program->instructions) {
      if (instruction.kind != plan::InstructionKind::kUpdate) {
        continue;
      }
      constexpr std::size_t kState = 1;
      for (std::size_t operand = 0; operand < instruction.accesses.size(); ++operand) {
        const plan::Access& access = instruction.accesses[operand];
        if (access.buffer < 0) {
          continue;
        }
        const plan::Buffer& buffer = plan.buffers[static_cast<std::size_t>(access.buffer)];
        if (buffer.tier != plan::MemoryTier::kHost) {
          continue;
        }
        const std::size_t begin = buffer.offset + access.offset;
        if (operand != kState) {
          owners.add({.begin = begin, .bytes = access.bytes});
          continue;
        }
        std::size_t offset = 0;
        for (const optim::StatePlane& plane : optimizer.planes) {
          const auto bytes = static_cast<std::size_t>(plane.bytes(instruction.elements));
          owners.add({.begin = begin + offset, .bytes = bytes});
          offset += bytes;
        }
      }
    }
  }
  return owners.take();
}

void touch_pages(std::span<std::byte> arena,
                 std::size_t page_bytes,
                 std::span<const int> page_nodes,
                 std::span<const optim::NodeThreads> nodes) {
  std::vector<std::vector<std::size_t>> pages(nodes.size());
  for (std::size_t page = 0; page < page_nodes.size(); ++page) {
    if (page_nodes[page] != kNobodysPage) {
      pages[static_cast<std::size_t>(page_nodes[page])].push_back(page);
    }
  }
  std::vector<std::thread> threads;
  try {
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      const std::span<const std::size_t> of_node = pages[node];
      const std::size_t parts =
          std::min(of_node.size(), static_cast<std::size_t>(nodes[node].threads));
      const optim::CoreMask cores = optim::CoreMask::of(nodes[node].cores);
      for (std::size_t part = 0; part < parts; ++part) {
        const std::size_t begin = of_node.size() * part / parts;
        const std::size_t end = of_node.size() * (part + 1) / parts;
        threads.emplace_back(
            [=] { touch(arena, page_bytes, of_node.subspan(begin, end - begin), cores); });
      }
    }
  } catch (const std::system_error&) {
    // No thread for the rest: the arena brings it in.
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace headrace::exec
