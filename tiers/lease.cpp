// Leases count themselves on their extent; see memory.hpp. Scheduler thread only, nothing blocks.
#include "core/assert.hpp"
#include "tiers/memory.hpp"

namespace headrace::tiers {

Extent::~Extent() {
  HEADRACE_ASSERT(leases_ == 0, "an extent was destroyed while leased");
}

Lease::Lease(Extent& extent, std::uint64_t content, Mode mode) : extent_(&extent) {
  HEADRACE_ASSERT(content != 0, "content 0 means that an extent holds nothing");
  if (mode == Mode::kRead) {
    HEADRACE_ASSERT(extent.content_ == content, "a read lease of what the extent does not hold");
  } else {
    HEADRACE_ASSERT(extent.leases_ == 0 || extent.content_ == content,
                    "a write lease of an extent that is leased for something else");
    extent.content_ = content;
  }
  ++extent.leases_;
}

Lease::~Lease() {
  HEADRACE_ASSERT(extent_ == nullptr, "a lease was destroyed unreleased");
}

Lease::Lease(Lease&& other) noexcept
    : extent_(std::exchange(other.extent_, nullptr)), released_(other.released_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    HEADRACE_ASSERT(extent_ == nullptr, "a lease was overwritten unreleased");
    extent_ = std::exchange(other.extent_, nullptr);
    released_ = other.released_;
  }
  return *this;
}

std::span<std::byte> Lease::memory() const {
  HEADRACE_ASSERT(extent_ != nullptr, "a lease that holds nothing has no memory");
  return extent_->memory();
}

void Lease::release_after(const Event& event) {
  HEADRACE_ASSERT(extent_ != nullptr, "a lease is released once");
  --extent_->leases_;
  extent_ = nullptr;
  released_ = event;
}

}  // namespace headrace::tiers
