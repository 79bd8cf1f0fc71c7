// One io_uring, owned: set up with the newest flags that the kernel takes.
//
// Invariant: made and used by one thread (IORING_SETUP_SINGLE_ISSUER and DEFER_TASKRUN say so to
// the kernel where it knows them). Failure: create() says why io_uring cannot be had here and what
// to do; a kernel that lacks a flag is no failure.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <memory>
#include <span>

#include "core/error.hpp"

namespace headrace::tiers::nvme {

// From the newest kernel's to none at all.
[[nodiscard]] std::span<const unsigned> ring_flag_choices();

class Ring {
 public:
  // Tries the choices in order until the kernel takes one.
  [[nodiscard]] static Result<std::unique_ptr<Ring>> create(
      unsigned entries, std::span<const unsigned> flag_choices = ring_flag_choices());
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  [[nodiscard]] io_uring* get() { return &ring_; }

  [[nodiscard]] unsigned flags() const { return ring_.flags; }

  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  Ring() = default;
  io_uring ring_{};
  bool ready_ = false;
};

// What a failed io_uring_setup means for the user.
[[nodiscard]] Error ring_setup_error(int errno_value);

}  // namespace headrace::tiers::nvme
