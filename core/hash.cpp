// xxHash through its C interface; ids from getrandom(2).
#include "core/hash.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <xxhash.h>
#ifdef HEADRACE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3_64bits and _update by the widest instructions there are
#endif

#include <cerrno>
#include <charconv>

#include "core/assert.hpp"

namespace headrace {

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t hash_text(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text)));
}

Hasher::Hasher() : state_(XXH3_createState()) {
  HEADRACE_ASSERT(state_ != nullptr, "no memory for a hash state of 600 bytes");
  XXH3_64bits_reset(state_.get());
}

void Hasher::FreeState::operator()(XXH3_state_s* state) const noexcept {
  XXH3_freeState(state);
}

void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

void Hasher::update(std::string_view text) {
  update(std::as_bytes(std::span(text)));
}

std::uint64_t Hasher::digest() const {
  return XXH3_64bits_digest(state_.get());
}

std::string hash_hex(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string Id128::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

std::optional<Id128> Id128::from_hex(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  if (text.size() != 2 * kDigits) {
    return std::nullopt;
  }
  Id128 id;
  for (std::uint64_t* part : {&id.high, &id.low}) {
    const char* begin = text.data() + (part == &id.high ? 0 : kDigits);
    const auto [end, error] = std::from_chars(begin, begin + kDigits, *part, 16);
    if (error != std::errc() || end != begin + kDigits) {
      return std::nullopt;
    }
  }
  // One spelling only: upper case is not what hex() writes.
  return id.hex() == text ? std::optional(id) : std::nullopt;
}

Result<Id128> random_id() {
  Id128 id;
  while (id == Id128{}) {
    const ssize_t got = ::getrandom(&id, sizeof id, 0);
    if (got < 0 && errno != EINTR) {
      return errno_error("cannot make a random id", errno);
    }
    if (got != static_cast<ssize_t>(sizeof id)) {
      id = {};  // interrupted: again
    }
  }
  return id;
}

}  // namespace headrace
