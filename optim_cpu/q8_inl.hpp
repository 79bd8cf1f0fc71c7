// Per instruction set: decoding and encoding of state "q8" (q8.hpp), a vector at a time. Included
// once per Highway target, after "hwy/foreach_target.h"; not for other files.
//
// Vectors of 16-bit lanes are read as pairs: the even elements are the lower halves of 32-bit
// lanes, the odd ones the upper halves. So float vectors hold every other element, whatever their
// width.

// The include guard that Highway toggles for each target.
#if defined(HEADRACE_OPTIM_CPU_Q8_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_OPTIM_CPU_Q8_INL_HPP
#undef HEADRACE_OPTIM_CPU_Q8_INL_HPP
#else
#define HEADRACE_OPTIM_CPU_Q8_INL_HPP
#endif

#include "optim_cpu/q8.hpp"
#include "optim_cpu/vectors_inl.hpp"
#include "optim_cpu/weights.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // whose vectors of one element have no pairs

using PairTag = hn::Repartition<std::uint16_t, FloatTag>;  // two elements in each float's lane
using SignedPairTag = hn::RebindToSigned<PairTag>;
using ByteTag = hn::Rebind<std::uint8_t, PairTag>;  // as many bytes as PairTag has lanes
using PairVector = hn::Vec<PairTag>;
using BitsVector = hn::Vec<BitsTag>;

inline constexpr auto kPairLanes = static_cast<std::int64_t>(2 * kFloatLanes);
inline constexpr std::int64_t kPairsPerGroup = kQ8GroupElements / kPairLanes;

// The even and the odd elements of a PairTag vector.
template <class Vector>
struct EvenOdd {
  Vector even, odd;
};

HWY_INLINE EvenOdd<BitsVector> upper_halves(PairVector pairs) {
  const BitsTag tag;
  const BitsVector bits = hn::BitCast(tag, pairs);
  return {hn::ShiftLeft<16>(bits), hn::And(bits, hn::Set(tag, 0xffff0000U))};
}

HWY_INLINE EvenOdd<BitsVector> lower_halves(PairVector pairs) {
  const BitsTag tag;
  const BitsVector bits = hn::BitCast(tag, pairs);
  return {hn::And(bits, hn::Set(tag, 0xffffU)), hn::ShiftRight<16>(bits)};
}

HWY_INLINE PairVector pairs_of_upper(const EvenOdd<BitsVector>& bits) {
  return hn::BitCast(
      PairTag(),
      hn::OrAnd(hn::ShiftRight<16>(bits.even), bits.odd, hn::Set(BitsTag(), 0xffff0000U)));
}

HWY_INLINE PairVector pairs_of_lower(const EvenOdd<BitsVector>& bits) {
  return hn::BitCast(
      PairTag(), hn::OrAnd(hn::ShiftLeft<16>(bits.odd), bits.even, hn::Set(BitsTag(), 0xffffU)));
}

HWY_INLINE EvenOdd<FloatVector> as_floats(const EvenOdd<BitsVector>& bits) {
  return {hn::BitCast(FloatTag(), bits.even), hn::BitCast(FloatTag(), bits.odd)};
}

HWY_INLINE PairVector load_bytes(const std::uint8_t* bytes) {
  return hn::PromoteTo(PairTag(), hn::LoadU(ByteTag(), bytes));
}

HWY_INLINE void store_bytes(PairVector values, std::uint8_t* bytes) {
  hn::StoreU(hn::TruncateTo(ByteTag(), values), ByteTag(), bytes);
}

HWY_INLINE EvenOdd<FloatVector> load_gradients(const std::uint16_t* gradient) {
  return as_floats(upper_halves(hn::LoadU(PairTag(), gradient)));
}

HWY_INLINE EvenOdd<FloatVector> load_gradients(const float* gradient) {
  EvenOdd<FloatVector> result;
  hn::LoadInterleaved2(FloatTag(), gradient, result.even, result.odd);
  return result;
}

// The upper halves of M(c) for each magnitude c in 0..127.
HWY_INLINE PairVector lookup_magnitudes(PairVector c) {
#if HWY_TARGET == HWY_AVX3
  // Four registers hold half the table each two: a permutation picks by the lower six bits.
  const __m512i* table = reinterpret_cast<const __m512i*>(kQ8Magnitudes.data());
  const __m512i low =
      _mm512_permutex2var_epi16(_mm512_loadu_si512(table), c.raw, _mm512_loadu_si512(table + 1));
  const __m512i high = _mm512_permutex2var_epi16(
      _mm512_loadu_si512(table + 2), c.raw, _mm512_loadu_si512(table + 3));
  return PairVector{
      _mm512_mask_blend_epi16(_mm512_test_epi16_mask(c.raw, _mm512_set1_epi16(64)), low, high)};
#else
  alignas(64) std::uint16_t values[kPairLanes];
  hn::Store(c, PairTag(), values);
  for (std::uint16_t& value : values) {
    value = kQ8Magnitudes[value % kQ8Magnitudes.size()];
  }
  return hn::Load(PairTag(), values);
#endif
}

HWY_INLINE EvenOdd<FloatVector> decode_m(const std::uint8_t* codes, FloatVector scale) {
  const SignedPairTag tag;
  const auto numbers =
      hn::PromoteTo(tag, hn::BitCast(hn::RebindToSigned<ByteTag>(), hn::LoadU(ByteTag(), codes)));
  const PairVector magnitudes = lookup_magnitudes(hn::BitCast(PairTag(), hn::Abs(numbers)));
  const PairVector with_sign = hn::OrAnd(magnitudes,
                                         hn::BitCast(PairTag(), numbers),
                                         hn::Set(PairTag(), static_cast<std::uint16_t>(0x8000U)));
  const EvenOdd<FloatVector> values = as_floats(upper_halves(with_sign));
  return {hn::Mul(values.even, scale), hn::Mul(values.odd, scale)};
}

HWY_INLINE FloatVector root_of(BitsVector code, FloatVector factor) {
  const auto number = hn::BitCast(hn::RebindToSigned<FloatTag>(), code);
  return hn::Mul(hn::ConvertTo(FloatTag(), number), factor);
}

HWY_INLINE EvenOdd<FloatVector> decode_v(const std::uint8_t* codes, FloatVector factor) {
  const EvenOdd<BitsVector> numbers = lower_halves(load_bytes(codes));
  const FloatVector even = root_of(numbers.even, factor);
  const FloatVector odd = root_of(numbers.odd, factor);
  return {hn::Mul(even, even), hn::Mul(odd, odd)};
}

HWY_INLINE EvenOdd<FloatVector> decode_weights(const std::uint16_t* high,
                                               const std::uint8_t* correction) {
  const BitsTag tag;
  const EvenOdd<BitsVector> upper = upper_halves(hn::LoadU(PairTag(), high));
  const EvenOdd<BitsVector> excess =
      lower_halves(hn::Xor(hn::ShiftLeft<8>(load_bytes(correction)),
                           hn::Set(PairTag(), static_cast<std::uint16_t>(0x8000U))));
  const BitsVector half = hn::Set(tag, 0x8000U);
  return as_floats({hn::Sub(hn::Or(upper.even, excess.even), half),
                    hn::Sub(hn::Or(upper.odd, excess.odd), half)});
}

HWY_INLINE BitsVector weight_bits(FloatVector values) {
  const BitsTag tag;
  return hn::IfThenElse(
      hn::RebindMask(tag, hn::IsNaN(values)), hn::Set(tag, kDefaultNan), hn::BitCast(tag, values));
}

// Rounds by 8 random bits a lane, splits, stores.
HWY_INLINE void encode_weights(const EvenOdd<FloatVector>& p,
                               PairVector random,
                               std::uint16_t* high,
                               std::uint8_t* correction,
                               float* decoded) {
  const BitsTag tag;
  const EvenOdd<BitsVector> added =
      lower_halves(hn::Or(random, hn::Set(PairTag(), static_cast<std::uint16_t>(0x8000U))));
  const EvenOdd<BitsVector> excess = {hn::Add(weight_bits(p.even), added.even),
                                      hn::Add(weight_bits(p.odd), added.odd)};
  hn::StoreU(pairs_of_upper(excess), PairTag(), high);
  store_bytes(hn::Xor(hn::ShiftRight<8>(pairs_of_lower(excess)),
                      hn::Set(PairTag(), static_cast<std::uint16_t>(0x80U))),
              correction);
  if (decoded != nullptr) {
    const auto kept = [tag](BitsVector bits) {
      return hn::BitCast(FloatTag(),
                         hn::And(hn::Sub(bits, hn::Set(tag, 0x8000U)), hn::Set(tag, ~0xffU)));
    };
    hn::StoreInterleaved2(kept(excess.even), kept(excess.odd), FloatTag(), decoded);
  }
}

// floor(steps + random / 256): steps rounded to whole numbers by an addition, the rest in 16 bits.
HWY_INLINE PairVector whole_steps(FloatVector even, FloatVector odd) {
  const FloatTag floats;
  const BitsTag tag;
  const FloatVector shift = hn::Set(floats, 0x1.8p23F);
  return pairs_of_lower(
      {hn::BitCast(tag, hn::Add(even, shift)), hn::BitCast(tag, hn::Add(odd, shift))});
}

HWY_INLINE FloatVector m_steps(FloatVector m, FloatVector scale) {
  return hn::Mul(hn::Div(m, hn::Add(scale, hn::Abs(m))), hn::Set(FloatTag(), kQ8MSteps));
}

HWY_INLINE FloatVector v_steps(FloatVector root, FloatVector factor) {
  const FloatTag floats;
  const FloatVector steps = hn::Max(hn::Mul(root, factor), hn::Set(floats, 256.0F));
  return hn::IfThenElseZero(hn::Gt(root, hn::Zero(floats)), steps);
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
