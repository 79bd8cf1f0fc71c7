// Counter-based random numbers: a pure function of (seed, stream, update, tensor, element).
//
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
// (SC 2011). Invariant: no state, so neither placement, thread count nor resume changes a number;
// all arithmetic is in integers and IEEE operations, so neither does the machine or its libm.
// Thread: any.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace headrace {

using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Ten rounds; word 0 first, as in Random123's known-answer vectors.
[[nodiscard]] PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key);

// What the numbers are for. The values are part of the numbers: never reuse or renumber.
enum class RandomStream : std::uint16_t {
  kInit = 1,                // initial weights
  kDataOrder = 2,           // the shuffle of an epoch
  kSampling = 3,            // generated tokens
  kStochasticRounding = 4,  // reserved for optimizer state of fewer bits
  kTest = 0xffff,
};

// Where a number stands within its stream.
struct RandomCounter {
  std::uint32_t update = 0;   // the update count (or an epoch, or a position)
  std::uint32_t tensor = 0;   // the tensor's index in the model's order
  std::uint64_t element = 0;  // below 2^50
};

class RandomSource {
 public:
  RandomSource(std::uint64_t seed, RandomStream stream) : seed_(seed), stream_(stream) {}

  // 32 uniform bits. Elements 4k .. 4k+3 are the four words of one Philox block.
  [[nodiscard]] std::uint32_t bits(RandomCounter at) const;
  // Uniform in [0, 1): multiples of 2^-24.
  [[nodiscard]] float uniform(RandomCounter at) const;
  // Standard normal by Box and Muller (1958) in double; |x| < 6.7. Elements 2k and 2k+1 are the two
  // outputs of one pair of uniforms.
  [[nodiscard]] double normal(RandomCounter at) const;
  // out[i] = stddev * normal(element first.element + i), rounded once to float.
  void fill_normal(std::span<float> out, RandomCounter first, double stddev) const;

 private:
  [[nodiscard]] PhiloxBlock block_of(RandomCounter at) const;

  std::uint64_t seed_;
  RandomStream stream_;
};

// A pseudo-random permutation of [0, size): a balanced Feistel network over the next power of four,
// walked along its cycle until it lands inside. Constant memory; the order of an epoch's windows.
class FeistelPermutation {
 public:
  struct Key {
    std::uint64_t size = 1;  // 1 .. 2^62
    std::uint64_t seed = 0;
    std::uint32_t epoch = 0;
  };

  explicit FeistelPermutation(Key key);

  // index < size.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const;

  [[nodiscard]] std::uint64_t size() const { return key_.size; }

 private:
  [[nodiscard]] std::uint64_t encrypt(std::uint64_t value) const;

  Key key_;
  unsigned half_bits_ = 1;
};

}  // namespace headrace
