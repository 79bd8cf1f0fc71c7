#include "tiers/nvme/ring.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <string>

#include "tiers/nvme/uring_facts.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::array<unsigned, 4> kFlagChoices = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN,  // 6.1
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,                               // 6.0
    IORING_SETUP_COOP_TASKRUN,                                                            // 5.19
    0,
};

// The operations that the engine uses; IORING_OP_READ and WRITE came with Linux 5.6.
constexpr std::array<int, 5> kOperations = {
    IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_POLL_ADD};

std::string forbidden_by() {
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  int disabled = 0;
  if (file >> disabled && disabled != 0) {
    return fmt::format("the system forbids it (kernel.io_uring_disabled = {})", disabled);
  }
  return "the system forbids it (a container's seccomp profile, or a security module)";
}

}  // namespace

std::span<const unsigned> ring_flag_choices() {
  return kFlagChoices;
}

Error ring_setup_error(int errno_value) {
  const std::string what = "nvme tier: cannot use io_uring";
  switch (errno_value) {
    case EPERM:
    case EACCES:
      return operating_error(what)
          .with_why(forbidden_by())
          .with_hint(
              "allow it: `sysctl kernel.io_uring_disabled=0` as root, or start the "
              "container with a seccomp profile that allows io_uring_setup, _enter and "
              "_register");
    case ENOSYS:
      return operating_error(what)
          .with_why("the kernel (or the sandbox around this process) has no io_uring")
          .with_hint("use Linux 5.6 or later with CONFIG_IO_URING, outside of such a sandbox");
    case ENOMEM:
      return errno_error(what, errno_value)
          .with_hint("raise the limit of locked memory: `ulimit -l unlimited`");
    case EMFILE:
    case ENFILE:
      return errno_error(what, errno_value).with_hint("raise the limit of open files: `ulimit -n`");
    default:
      return errno_error(what, errno_value);
  }
}

Result<std::unique_ptr<Ring>> Ring::create(unsigned entries,
                                           std::span<const unsigned> flag_choices) {
  std::unique_ptr<Ring> ring(new Ring());
  int result = -EINVAL;
  for (const unsigned flags : flag_choices) {
    result = ::io_uring_queue_init(entries, &ring->ring_, flags);
    if (result != -EINVAL) {  // EINVAL: a flag that this kernel does not know
      break;
    }
  }
  if (result < 0) {
    return ring_setup_error(-result);
  }
  ring->ready_ = true;
  io_uring_probe* probe = ::io_uring_get_probe_ring(&ring->ring_);
  bool supported = probe != nullptr;
  for (const int operation : kOperations) {
    supported = supported && ::io_uring_opcode_supported(probe, operation) != 0;
  }
  if (probe != nullptr) {
    ::io_uring_free_probe(probe);
  }
  if (!supported) {
    return ring_setup_error(ENOSYS);
  }
  return ring;
}

Ring::~Ring() {
  if (ready_) {
    ::io_uring_queue_exit(&ring_);
  }
}

Result<UringFacts> uring_facts() {
  constexpr unsigned kEntries = 8;
  HEADRACE_ASSIGN(const std::unique_ptr<Ring> ring, Ring::create(kEntries));
  const auto has = [&ring](unsigned flag) { return (ring->flags() & flag) != 0; };
  return UringFacts{.cooperative = has(IORING_SETUP_COOP_TASKRUN),
                    .single_issuer = has(IORING_SETUP_SINGLE_ISSUER),
                    .deferred = has(IORING_SETUP_DEFER_TASKRUN)};
}

std::size_t Ring::memory_bytes() const {
  return ring_.sq.ring_sz + ring_.cq.ring_sz + ring_.sq.ring_entries * sizeof(io_uring_sqe);
}

}  // namespace headrace::tiers::nvme
