// The back end over io_uring: one ring, one registered file, registered buffers where they are.
//
// Invariant: the thread sleeps in the kernel only, in wait(), and everything that it waits for
// comes as a completion: transfers, the eventfd that wake() writes, a timeout. At most `depth`
// requests are under way, so the ring has an entry for each and one each for the eventfd, a
// cancellation and a timeout. Thread and failure: io_backend.hpp.
#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/assert.hpp"
#include "core/trace.hpp"
#include "core/unique.hpp"
#include "tiers/nvme/io_backend.hpp"
#include "tiers/nvme/registered_buffers.hpp"
#include "tiers/nvme/ring.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr unsigned kSpareRingEntries = 3;
constexpr std::size_t kTransferBytesMax = std::size_t{1} << 30U;  // an entry counts in 32 bits
constexpr std::int64_t kNsPerS = 1'000'000'000;
constexpr std::int64_t kStarvedSleepNs = 1'000'000;

class UringBackend final : public IoBackend {
 public:
  UringBackend(BlockFile& file, std::unique_ptr<Ring> ring, UniqueFd wake, unsigned depth)
      : fd_(file.fd()), ring_(std::move(ring)), wake_(std::move(wake)), depth_(depth) {}

  ~UringBackend() override;

  void register_memory(const BackendOptions& options);

  void queue(IoRequest& request) override;
  [[nodiscard]] std::size_t wait(std::span<IoCompletion> completions,
                                 std::optional<std::int64_t> timeout_ns) override;
  void wake() override;
  void cancel() override;

  [[nodiscard]] std::int64_t now_ns() const override { return TraceRecorder::now_ns(); }

  [[nodiscard]] BackendFacts facts() const override { return facts_; }

 private:
  [[nodiscard]] io_uring_sqe* entry();
  void arm_wake();
  void take_wake();
  void submit_and_sleep(std::optional<std::int64_t> timeout_ns);
  [[nodiscard]] std::size_t take(std::span<IoCompletion> completions);

  int fd_;
  std::unique_ptr<Ring> ring_;
  UniqueFd wake_;
  unsigned depth_;
  unsigned under_way_ = 0;
  RegisteredBuffers buffers_;
  BackendFacts facts_{};
  bool wake_armed_ = false;
  std::atomic<bool> wake_written_{false};  // the eventfd holds a wake that was not taken yet
};

void UringBackend::register_memory(const BackendOptions& options) {
  facts_.name = "io_uring";
  facts_.ring_flags = ring_->flags();
  facts_.registered_file = ::io_uring_register_files(ring_->get(), &fd_, 1) == 0;
  buffers_ = RegisteredBuffers(ring_->get(), options.buffers);
  facts_.registered_bytes = buffers_.bytes();
  for (const std::span<std::byte> buffer : options.buffers) {
    facts_.buffer_bytes += buffer.size();
  }
  facts_.memory_bytes = ring_->memory_bytes();
}

UringBackend::~UringBackend() {
  std::array<IoCompletion, 64> completions{};
  while (under_way_ > 0) {
    [[maybe_unused]] const std::size_t count = wait(completions, std::nullopt);
  }
  // The kernel takes a ring down some time after it was closed; file and memory are given back now,
  // so that the filesystem can be unmounted and the pages unpinned. Failure: they go with the ring.
  if (facts_.registered_file) {
    static_cast<void>(::io_uring_unregister_files(ring_->get()));
  }
  if (facts_.registered_bytes > 0) {
    static_cast<void>(::io_uring_unregister_buffers(ring_->get()));
  }
}

io_uring_sqe* UringBackend::entry() {
  io_uring_sqe* free_entry = ::io_uring_get_sqe(ring_->get());
  HEADRACE_ASSERT(free_entry != nullptr, "the ring has an entry for every request");
  return free_entry;
}

void UringBackend::queue(IoRequest& request) {
  HEADRACE_ASSERT(under_way_ < depth_, "at most `depth` requests are under way");
  ++under_way_;
  io_uring_sqe* const to_fill = entry();
  // The ring's number of the file, or the file.
  const int file = facts_.registered_file ? 0 : fd_;
  if (request.piece_count > 1) {
    if (request.write) {
      ::io_uring_prep_writev(
          to_fill, file, request.pieces.data(), request.piece_count, request.offset);
    } else {
      ::io_uring_prep_readv(
          to_fill, file, request.pieces.data(), request.piece_count, request.offset);
    }
  } else {
    const iovec& piece = request.pieces[0];
    const auto bytes = static_cast<unsigned>(std::min(piece.iov_len, kTransferBytesMax));
    const std::optional<int> buffer = buffers_.find({piece.iov_base, bytes});
    if (buffer && request.write) {
      ::io_uring_prep_write_fixed(to_fill, file, piece.iov_base, bytes, request.offset, *buffer);
    } else if (buffer) {
      ::io_uring_prep_read_fixed(to_fill, file, piece.iov_base, bytes, request.offset, *buffer);
    } else if (request.write) {
      ::io_uring_prep_write(to_fill, file, piece.iov_base, bytes, request.offset);
    } else {
      ::io_uring_prep_read(to_fill, file, piece.iov_base, bytes, request.offset);
    }
  }
  ::io_uring_sqe_set_data(to_fill, &request);
  if (facts_.registered_file) {
    ::io_uring_sqe_set_flags(to_fill, IOSQE_FIXED_FILE);
  }
}

void UringBackend::cancel() {
  io_uring_sqe* const to_fill = entry();
  ::io_uring_prep_cancel(to_fill, nullptr, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
  ::io_uring_sqe_set_data(to_fill, this);  // kernels before 5.19 refuse it, and nothing is lost
}

void UringBackend::arm_wake() {
  if (wake_armed_) {
    return;
  }
  io_uring_sqe* const to_fill = entry();
  ::io_uring_prep_poll_add(to_fill, wake_.get(), POLLIN);
  ::io_uring_sqe_set_data(to_fill, &wake_);
  wake_armed_ = true;
}

void UringBackend::wake() {
  if (wake_written_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  const std::uint64_t one = 1;
  ssize_t put = 0;
  do {
    put = ::write(wake_.get(), &one, sizeof(one));
  } while (put < 0 && errno == EINTR);
  HEADRACE_ASSERT(put == sizeof(one), "an eventfd that is read before it overflows takes a write");
}

// Emptied first, marked as empty afterwards: a wake between the two is part of this one, and what
// it tells of is seen, since exchange() reads what the other thread has written.
void UringBackend::take_wake() {
  wake_armed_ = false;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  [[maybe_unused]] const bool written = wake_written_.exchange(false, std::memory_order_acq_rel);
}

std::size_t UringBackend::wait(std::span<IoCompletion> completions,
                               std::optional<std::int64_t> timeout_ns) {
  arm_wake();
  submit_and_sleep(::io_uring_cq_ready(ring_->get()) > 0 ? 0 : timeout_ns);
  return take(completions);
}

void UringBackend::submit_and_sleep(std::optional<std::int64_t> timeout_ns) {
  int result = 0;
  if (!timeout_ns) {
    result = ::io_uring_submit_and_wait(ring_->get(), 1);
  } else if (*timeout_ns <= 0) {
    result = ::io_uring_submit_and_get_events(ring_->get());
  } else {
    io_uring_cqe* completion = nullptr;
    __kernel_timespec timeout{.tv_sec = *timeout_ns / kNsPerS, .tv_nsec = *timeout_ns % kNsPerS};
    result = ::io_uring_submit_and_wait_timeout(ring_->get(), &completion, 1, &timeout, nullptr);
  }
  if (result >= 0 || result == -ETIME || result == -EINTR) {
    return;
  }
  // The kernel is short of memory, or has completions that it wants to be taken first.
  HEADRACE_ASSERT(result == -EAGAIN || result == -EBUSY || result == -ENOMEM,
                  "io_uring_enter takes what the engine gives it");
  std::this_thread::sleep_for(std::chrono::nanoseconds(kStarvedSleepNs));
}

std::size_t UringBackend::take(std::span<IoCompletion> completions) {
  std::size_t count = 0;
  io_uring_cqe* entry_done = nullptr;
  while (count < completions.size() && ::io_uring_peek_cqe(ring_->get(), &entry_done) == 0) {
    void* const data = ::io_uring_cqe_get_data(entry_done);
    // A timeout of submit_and_wait_timeout, on kernels without IORING_FEAT_EXT_ARG; a cancellation.
    const bool of_ring = entry_done->user_data == LIBURING_UDATA_TIMEOUT || data == this;
    if (data == &wake_) {
      take_wake();
    } else if (!of_ring) {
      completions[count++] = {.request = static_cast<IoRequest*>(data), .result = entry_done->res};
      --under_way_;
    }
    ::io_uring_cqe_seen(ring_->get(), entry_done);
  }
  return count;
}

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend(BlockFile& file,
                                                      const BackendOptions& options) {
  HEADRACE_ASSERT(options.depth > 0, "a back end has requests");
  HEADRACE_ASSERT(file.fd() >= 0, "io_uring reads files of the system");
  HEADRACE_ASSIGN(std::unique_ptr<Ring> ring, Ring::create(options.depth + kSpareRingEntries));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    return errno_error("nvme tier: cannot make an eventfd", errno)
        .with_hint("raise the limit of open files: `ulimit -n`");
  }
  auto backend =
      std::make_unique<UringBackend>(file, std::move(ring), std::move(wake), options.depth);
  backend->register_memory(options);
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace headrace::tiers::nvme
