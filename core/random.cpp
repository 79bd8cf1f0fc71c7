// Philox, uniforms, normals and the Feistel permutation (core/random.hpp).
// The logarithm and the sine and cosine of Box-Muller are polynomials here, because libm may choose
// another variant (and other last bits) on another CPU, and initial weights must not depend on it.
#include "core/random.hpp"

#include <bit>
#include <cmath>

#include "core/assert.hpp"

namespace headrace {

namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;  // golden ratio
constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;  // sqrt(3) - 1
constexpr int kPhiloxRounds = 10;
constexpr int kFeistelRounds = 6;
constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 50U;

PhiloxBlock philox_round(const PhiloxBlock& in, const PhiloxKey& key) {
  const std::uint64_t product0 = std::uint64_t{kMultiplier0} * in[0];
  const std::uint64_t product1 = std::uint64_t{kMultiplier1} * in[2];
  return {static_cast<std::uint32_t>(product1 >> 32U) ^ in[1] ^ key[0],
          static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32U) ^ in[3] ^ key[1],
          static_cast<std::uint32_t>(product0)};
}

PhiloxKey key_of(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)};
}

// log(x) for x in (0, 1], within 2 ulp: x = m 2^e, log m = 2 atanh((m-1)/(m+1)) as a series.
double natural_log(double x) {
  constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
  constexpr double kLog2 = 0x1.62e42fefa39efp-1;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  if (mantissa < kSqrtHalf) {
    mantissa *= 2.0;
    --exponent;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);  // |s| <= 0.1716
  const double z = s * s;
  double series = 0.0;
  for (int k = 10; k >= 1; --k) {  // s^21 / 21 is the last term
    series = (series + 1.0 / static_cast<double>(2 * k + 1)) * z;
  }
  return static_cast<double>(exponent) * kLog2 + (2.0 * s + 2.0 * s * series);
}

struct SineCosine {
  double sine;
  double cosine;
};

// Of 2 pi turn, turn in [0, 1) a multiple of 2^-32: an exact reduction to an eighth of a turn.
SineCosine sine_cosine_of_turn(double turn) {
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  const int quadrant = static_cast<int>(std::floor(4.0 * turn + 0.5));
  const double x = kTwoPi * (turn - 0.25 * static_cast<double>(quadrant));
  const double z = x * x;
  double sine = 1.0;
  double cosine = 1.0;
  for (int k = 8; k >= 1; --k) {  // Taylor, |x| <= pi/4: the rest is below 2^-53
    sine = 1.0 - sine * (z * (1.0 / static_cast<double>((2 * k) * (2 * k + 1))));
    cosine = 1.0 - cosine * (z * (1.0 / static_cast<double>((2 * k - 1) * (2 * k))));
  }
  sine *= x;
  switch (quadrant & 3) {
    case 0:
      return {.sine = sine, .cosine = cosine};
    case 1:
      return {.sine = cosine, .cosine = -sine};
    case 2:
      return {.sine = -sine, .cosine = -cosine};
    default:
      return {.sine = -cosine, .cosine = sine};
  }
}

// The two normals of a pair of words.
std::array<double, 2> box_muller(std::uint32_t word0, std::uint32_t word1) {
  const double u = (static_cast<double>(word0) + 1.0) * 0x1.0p-32;  // (0, 1]
  const double radius = std::sqrt(-2.0 * natural_log(u));
  const SineCosine angle = sine_cosine_of_turn(static_cast<double>(word1) * 0x1.0p-32);
  return {radius * angle.cosine, radius * angle.sine};
}

std::array<double, 4> normals_of(const PhiloxBlock& block) {
  const auto first = box_muller(block[0], block[1]);
  const auto second = box_muller(block[2], block[3]);
  return {first[0], first[1], second[0], second[1]};
}

}  // namespace

PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = philox_round(counter, key);
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

PhiloxBlock RandomSource::block_of(RandomCounter at) const {
  HEADRACE_DASSERT(at.element < kElementsMax, "element index above 2^50");
  const std::uint64_t block = at.element / 4;
  const auto stream = static_cast<std::uint32_t>(stream_) << 16U;
  const PhiloxBlock counter = {static_cast<std::uint32_t>(block),
                               static_cast<std::uint32_t>(block >> 32U) | stream,
                               at.tensor,
                               at.update};
  return philox4x32(counter, key_of(seed_));
}

std::uint32_t RandomSource::bits(RandomCounter at) const {
  return block_of(at)[at.element % 4];
}

float RandomSource::uniform(RandomCounter at) const {
  return static_cast<float>(bits(at) >> 8U) * 0x1.0p-24F;
}

double RandomSource::normal(RandomCounter at) const {
  return normals_of(block_of(at))[at.element % 4];
}

void RandomSource::fill_normal(std::span<float> out, RandomCounter first, double stddev) const {
  std::array<double, 4> normals = {};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t element = first.element + i;
    if (i == 0 || element % 4 == 0) {
      normals = normals_of(
          block_of({.update = first.update, .tensor = first.tensor, .element = element}));
    }
    out[i] = static_cast<float>(stddev * normals[element % 4]);
  }
}

FeistelPermutation::FeistelPermutation(Key key) : key_(key) {
  HEADRACE_ASSERT(key.size >= 1 && key.size <= (std::uint64_t{1} << 62U),
                  "a permutation is of 1 to 2^62 items");
  const auto bits = static_cast<unsigned>(std::bit_width(key.size - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

std::uint64_t FeistelPermutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < kFeistelRounds; ++round) {
    const auto stream = static_cast<std::uint32_t>(RandomStream::kDataOrder) << 16U;
    const PhiloxBlock mixed = philox4x32(
        {static_cast<std::uint32_t>(right), stream, round, key_.epoch}, key_of(key_.seed));
    const std::uint64_t next = left ^ (mixed[0] & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t FeistelPermutation::operator()(std::uint64_t index) const {
  HEADRACE_ASSERT(index < key_.size, "index outside the permutation");
  // encrypt() permutes a superset of at most four times the size: walking its cycle ends inside.
  std::uint64_t value = encrypt(index);
  while (value >= key_.size) {
    value = encrypt(value);
  }
  return value;
}

}  // namespace headrace
