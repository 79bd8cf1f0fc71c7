// XXH3 (64 bits) and random 128-bit ids.
//
// Invariant: the hash of bytes is the same on every machine and for every split of a stream; it is
// a checksum against accidents, not against forgery.
// Thread: free functions from any; one Hasher from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

struct XXH3_state_s;

namespace headrace {

// XXH3_64bits, seed 0.
[[nodiscard]] std::uint64_t hash_bytes(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t hash_text(std::string_view text);

// The same hash over a stream of parts. Allocates its state (about 600 bytes) when made.
class Hasher {
 public:
  Hasher();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  // Of all bytes so far; more may follow.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const noexcept;
  };

  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

// 16 lower-case hexadecimal digits.
[[nodiscard]] std::string hash_hex(std::uint64_t hash);

// Names a run or a store.
struct Id128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const Id128&, const Id128&) = default;

  // 32 lower-case hexadecimal digits.
  [[nodiscard]] std::string hex() const;
  [[nodiscard]] static std::optional<Id128> from_hex(std::string_view text);
};

// From the kernel's random source; never all zero.
[[nodiscard]] Result<Id128> random_id();

}  // namespace headrace
