// What the store's benchmark compares the tier with: buffers on pages of a kind, and the least that
// can be done with io_uring. Failures end the process. Threads: one, and SumThread's own.
#pragma once

#include <fmt/core.h>
#include <liburing.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <semaphore>
#include <span>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
inline constexpr double kGiga = 1e9;

[[noreturn]] inline void fail(const Error& error) {
  fmt::print(stderr, "{}", format_error(error, true));
  std::exit(static_cast<int>(error.code));
}

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Between two urgent reads.
inline double pause_seconds(std::mt19937_64& random) {
  return static_cast<double>(500 + random() % 2000) / 1e6;
}

inline void fill_randomly(std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= memory.size();
       at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

// kSplit: as contiguous as huge pages, but mapped page by page.
enum class Pages : std::uint8_t { kHuge, kSplit, kOrdinary };
inline constexpr std::array kPagesNames = {"huge", "split", "ordinary"};

// Memory on pages of a kind, filled.
class Buffers {
 public:
  Buffers(std::size_t bytes, Pages kind) : bytes_(bytes + kHugePageBytes) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      fail(errno_error("no memory for buffers", errno));
    }
    if (::madvise(memory_, bytes_, kind == Pages::kOrdinary ? MADV_NOHUGEPAGE : MADV_HUGEPAGE) !=
        0) {
      fmt::print("(the system does not take advice on huge pages)\n");
    }
    const auto address = reinterpret_cast<std::uintptr_t>(memory_);
    const std::size_t shift = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
    span_ = {static_cast<std::byte*>(memory_) + shift, bytes};
    fill_randomly(span_, 1);
    // Other rights for a part of a huge page take its one entry of the page table apart.
    for (std::size_t at = 0; kind == Pages::kSplit && at < bytes; at += kHugePageBytes) {
      if (::mprotect(&span_[at], kPageBytes, PROT_READ) != 0 ||
          ::mprotect(&span_[at], kPageBytes, PROT_READ | PROT_WRITE) != 0) {
        fail(errno_error("a huge page cannot be split", errno));
      }
    }
  }

  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  ~Buffers() { ::munmap(memory_, bytes_); }

  [[nodiscard]] std::span<std::byte> bytes() const { return span_; }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
  std::span<std::byte> span_;
};

// One transfer of the bare loop.
struct Piece {
  std::uint64_t offset = 0;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

// A thread that sums what it is given, as the engine sums: XXH3 of each sub-block.
class SumThread {
 public:
  SumThread() : thread_([this] { serve(); }) {}

  SumThread(const SumThread&) = delete;
  SumThread& operator=(const SumThread&) = delete;

  ~SumThread() {
    ended_.store(true);
    given_.release();
    thread_.join();
  }

  void add(std::span<const std::byte> bytes) {
    ring_[added_++ % ring_.size()] = bytes;
    given_.release();
  }

 private:
  void serve() {
    for (std::size_t done = 0;; ++done) {
      given_.acquire();
      if (ended_.load()) {
        return;
      }
      const std::span<const std::byte> bytes = ring_[done % ring_.size()];
      for (std::size_t at = 0; at < bytes.size(); at += kSumBlockBytes) {
        all_ ^= hash_bytes(bytes.subspan(at, std::min(kSumBlockBytes, bytes.size() - at)));
      }
    }
  }

  // The giver is never as far ahead as the ring is long: that would be 4 GiB.
  std::array<std::span<const std::byte>, 4096> ring_;
  std::size_t added_ = 0;
  std::counting_semaphore<> given_{0};
  std::atomic<bool> ended_{false};
  std::uint64_t all_ = 0;
  std::thread thread_;
};

// The least that can be done: one ring, a registered file, no sums, `depth` requests in flight.
// Buffers are registered as the engine registers them.
class BareLoop {
 public:
  BareLoop(int fd, unsigned depth, std::span<std::byte> buffers) {
    constexpr unsigned kFlags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    if (::io_uring_queue_init(depth, &ring_, kFlags) < 0 &&
        ::io_uring_queue_init(depth, &ring_, 0) < 0) {
      fail(operating_error("io_uring cannot be used here"));
    }
    const iovec piece{.iov_base = buffers.data(), .iov_len = buffers.size()};
    registered_ = ::io_uring_register_buffers(&ring_, &piece, 1) == 0;
    if (::io_uring_register_files(&ring_, &fd, 1) != 0) {
      fail(operating_error("a file cannot be registered with io_uring"));
    }
  }

  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  ~BareLoop() { ::io_uring_queue_exit(&ring_); }

  // Returns GB/s. `sums`, where there is one, is given each piece: a read's when it has come, a
  // write's when it goes.
  double run(std::span<const Piece> pieces, unsigned depth, SumThread* sums = nullptr) {
    const double begin = seconds_now();
    std::size_t next = 0;
    unsigned in_flight = 0;
    std::uint64_t bytes = 0;
    while (next < pieces.size() || in_flight > 0) {
      for (; in_flight < depth && next < pieces.size(); ++in_flight) {
        if (sums != nullptr && pieces[next].write) {
          sums->add({pieces[next].memory, pieces[next].bytes});
        }
        put(pieces[next++]);
      }
      if (::io_uring_submit_and_wait(&ring_, 1) < 0) {
        fail(operating_error("io_uring_enter fails"));
      }
      io_uring_cqe* done = nullptr;
      for (; ::io_uring_peek_cqe(&ring_, &done) == 0; --in_flight) {
        const auto& piece = *static_cast<const Piece*>(::io_uring_cqe_get_data(done));
        if (done->res != static_cast<int>(piece.bytes)) {
          fail(operating_error(fmt::format("a request of the bare loop gave {}", done->res)));
        }
        bytes += piece.bytes;
        if (sums != nullptr && !piece.write) {
          sums->add({piece.memory, piece.bytes});
        }
        ::io_uring_cqe_seen(&ring_, done);
      }
    }
    return static_cast<double>(bytes) / kGiga / (seconds_now() - begin);
  }

  // Seconds that each of so many urgent reads took, all pieces of it, while the others, again and
  // again, keep `depth` requests in flight; what is urgent goes first.
  std::vector<double> run_urgent(std::span<const Piece> others,
                                 const std::function<std::vector<Piece>()>& make_urgent,
                                 unsigned depth,
                                 int count) {
    std::vector<double> seconds;
    std::vector<Piece> urgent;
    std::mt19937_64 random(5);
    double begin = 0;
    double next_begin = seconds_now() + pause_seconds(random);
    std::size_t next_other = 0;
    std::size_t next_urgent = 0;
    std::size_t urgent_left = 0;
    unsigned in_flight = 0;
    while (static_cast<int>(seconds.size()) < count || in_flight > 0) {
      if (urgent_left == 0 && static_cast<int>(seconds.size()) < count &&
          seconds_now() >= next_begin) {
        urgent = make_urgent();
        urgent_left = urgent.size();
        next_urgent = 0;
        begin = next_begin;
      }
      for (; in_flight < depth && static_cast<int>(seconds.size()) < count; ++in_flight) {
        put(urgent_left > 0 && next_urgent < urgent.size() ? urgent[next_urgent++]
                                                           : others[next_other++ % others.size()]);
      }
      if (::io_uring_submit_and_wait(&ring_, 1) < 0) {
        fail(operating_error("io_uring_enter fails"));
      }
      io_uring_cqe* done = nullptr;
      for (; ::io_uring_peek_cqe(&ring_, &done) == 0; --in_flight) {
        const auto* piece = static_cast<const Piece*>(::io_uring_cqe_get_data(done));
        if (done->res != static_cast<int>(piece->bytes)) {
          fail(operating_error(fmt::format("a request of the bare loop gave {}", done->res)));
        }
        const bool of_urgent =
            !urgent.empty() && piece >= urgent.data() && piece < urgent.data() + urgent.size();
        if (of_urgent && --urgent_left == 0) {
          seconds.push_back(seconds_now() - begin);
          next_begin = seconds_now() + pause_seconds(random);
        }
        ::io_uring_cqe_seen(&ring_, done);
      }
    }
    return seconds;
  }

 private:
  void put(const Piece& piece) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(piece.bytes);
    if (registered_) {
      piece.write ? ::io_uring_prep_write_fixed(entry, 0, piece.memory, bytes, piece.offset, 0)
                  : ::io_uring_prep_read_fixed(entry, 0, piece.memory, bytes, piece.offset, 0);
    } else {
      piece.write ? ::io_uring_prep_write(entry, 0, piece.memory, bytes, piece.offset)
                  : ::io_uring_prep_read(entry, 0, piece.memory, bytes, piece.offset);
    }
    ::io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    ::io_uring_sqe_set_data(entry, const_cast<Piece*>(&piece));  // NOLINT: only read
  }

  io_uring ring_{};
  bool registered_ = false;
};

}  // namespace headrace::tiers::nvme
