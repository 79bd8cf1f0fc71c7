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

HWY_INLINE PairVector load_words(const std::uint8_t* bytes) {
  return hn::LoadU(PairTag(), reinterpret_cast<const std::uint16_t*>(bytes));
}

HWY_INLINE void store_words(PairVector words, std::uint8_t* bytes) {
  hn::StoreU(words, PairTag(), reinterpret_cast<std::uint16_t*>(bytes));
}

HWY_INLINE EvenOdd<FloatVector> load_gradients(const std::uint16_t* gradient) {
  return as_floats(upper_halves(hn::LoadU(PairTag(), gradient)));
}

HWY_INLINE EvenOdd<FloatVector> load_gradients(const float* gradient) {
  EvenOdd<FloatVector> result;
  hn::LoadInterleaved2(FloatTag(), gradient, result.even, result.odd);
  return result;
}

// The two groups of a block, as vectors of words whose upper byte is the code or correction of an
// element; `words` are a part of its record. (A lower byte that is not zero is of the other group.)
struct GroupWords {
  PairVector first, second;
};

HWY_INLINE GroupWords upper_bytes(PairVector words) {
  return {hn::ShiftLeft<8>(words), words};
}

// The same as numbers, whose upper bytes are zero.
HWY_INLINE GroupWords numbers_of_bytes(PairVector words) {
  return {hn::And(words, hn::Set(PairTag(), static_cast<std::uint16_t>(0xffU))),
          hn::ShiftRight<8>(words)};
}

HWY_INLINE PairVector set_words(unsigned value) {
  return hn::Set(PairTag(), static_cast<std::uint16_t>(value));
}

// The record's part of two groups' upper bytes.
HWY_INLINE PairVector merge_upper_bytes(const GroupWords& groups) {
  return hn::OrAnd(hn::ShiftRight<8>(groups.first), groups.second, set_words(0xff00U));
}

// `yes` where the mask has ones; the mask is all ones or zeros in each bit, not in each lane.
HWY_INLINE PairVector select_bits(unsigned mask, PairVector yes, PairVector no) {
#if HWY_TARGET == HWY_AVX3
  return hn::IfVecThenElse(set_words(mask), yes, no);
#else
  return hn::OrAnd(hn::AndNot(set_words(mask), no), yes, set_words(mask));
#endif
}

// Moments of one group's words, whose upper byte is the code.
HWY_INLINE EvenOdd<FloatVector> decode_m(PairVector codes, FloatVector factor) {
  const FloatTag floats;
  // Upper halves of floats 2 + ...: their bits below the sign, then the code's.
  const PairVector magnitudes =
      hn::OrAnd(set_words(0x4000U), hn::ShiftRight<6>(codes), set_words(0x01fcU));
  const EvenOdd<FloatVector> biased =
      as_floats(upper_halves(select_bits(0x8000U, codes, magnitudes)));
  const FloatVector two = hn::Set(floats, 2.0F);
  return {hn::Mul(hn::Sub(biased.even, hn::CopySignToAbs(two, biased.even)), factor),
          hn::Mul(hn::Sub(biased.odd, hn::CopySignToAbs(two, biased.odd)), factor)};
}

HWY_INLINE FloatVector floats_of(BitsVector number) {
  return hn::ConvertTo(FloatTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), number));
}

// sqrt(v) of one group's words, which are codes.
HWY_INLINE EvenOdd<FloatVector> decode_root(PairVector codes, FloatVector factor) {
  const EvenOdd<BitsVector> numbers = lower_halves(codes);
  return {hn::Mul(floats_of(numbers.even), factor), hn::Mul(floats_of(numbers.odd), factor)};
}

// The group's words have the corrections in their upper bytes.
HWY_INLINE EvenOdd<FloatVector> decode_weights(PairVector high, PairVector corrections) {
  const BitsTag tag;
  const SignedPairTag numbers;
  const BitsVector low = hn::BitCast(tag, hn::And(corrections, set_words(0xff00U)));
  // One less where the correction is negative.
  const auto borrow = hn::ShiftRight<15>(hn::BitCast(numbers, corrections));
  const BitsVector upper = hn::BitCast(tag, hn::Add(high, hn::BitCast(PairTag(), borrow)));
  return as_floats({hn::OrAnd(hn::ShiftLeft<16>(upper), low, hn::Set(tag, 0xffffU)),
                    hn::OrAnd(hn::ShiftRight<16>(low), upper, hn::Set(tag, 0xffff0000U))});
}

// A NaN, whose bits a carry could make a number, becomes infinity.
HWY_INLINE BitsVector weight_bits(FloatVector values) {
  const FloatTag floats;
  const FloatVector infinity = hn::BitCast(floats, hn::Set(BitsTag(), 0x7f800000U));
#if HWY_ARCH_X86
  return hn::BitCast(BitsTag(), hn::Min(values, infinity));  // the second operand if one is a NaN
#else
  return hn::BitCast(BitsTag(), hn::IfThenElse(hn::IsNaN(values), infinity, values));
#endif
}

// Weights rounded by the lower bytes of `random`, in 32 bits: the upper part, then the correction
// with its sign inverted, then 8 bits to drop.
HWY_INLINE EvenOdd<BitsVector> round_weights(const EvenOdd<FloatVector>& p, PairVector random) {
  const EvenOdd<BitsVector> added =
      lower_halves(hn::OrAnd(set_words(0x8000U), random, set_words(0x00ffU)));
  return {hn::Add(weight_bits(p.even), added.even), hn::Add(weight_bits(p.odd), added.odd)};
}

HWY_INLINE void store_decoded(const EvenOdd<BitsVector>& rounded, float* target) {
  const BitsTag tag;
  const auto kept = [tag](BitsVector bits) {
    return hn::BitCast(FloatTag(),
                       hn::And(hn::Sub(bits, hn::Set(tag, 0x8000U)), hn::Set(tag, ~0xffU)));
  };
  hn::StoreInterleaved2(kept(rounded.even), kept(rounded.odd), FloatTag(), target);
}

HWY_INLINE PairVector merge_corrections(PairVector first, PairVector second) {
  return hn::Xor(merge_upper_bytes({first, second}), set_words(0x8080U));
}

// y of q8.hpp, its bits.
HWY_INLINE BitsVector m_steps(FloatVector m, FloatVector factor) {
  const FloatVector two = hn::Set(FloatTag(), 2.0F);
  return hn::BitCast(BitsTag(), hn::Add(hn::Mul(m, factor), hn::CopySignToAbs(two, m)));
}

// Codes of m in the upper bytes of words, whose lower bytes are not zero.
HWY_INLINE PairVector encode_m(const EvenOdd<FloatVector>& m,
                               FloatVector factor,
                               PairVector random) {
  const BitsTag tag;
  const BitsVector word = hn::BitCast(tag, random);
  const BitsVector even_bits = hn::And(word, hn::Set(tag, (1U << kQ8MFraction) - 1));
  const BitsVector odd_bits = hn::ShiftRight<32 - kQ8MFraction>(word);
  const PairVector upper = pairs_of_upper(
      {hn::Add(m_steps(m.even, factor), even_bits), hn::Add(m_steps(m.odd, factor), odd_bits)});
  return select_bits(0x8000U, upper, hn::ShiftLeft<6>(upper));
}

// x of q8.hpp, in units of 1/256 in the lower 16 bits.
HWY_INLINE BitsVector root_steps(FloatVector root, FloatVector factor) {
  const FloatTag floats;
  const FloatVector steps = hn::Max(hn::Mul(root, factor), hn::Set(floats, 1.0F));
  const FloatVector kept = hn::IfThenElseZero(hn::Gt(root, hn::Zero(floats)), steps);
  return hn::BitCast(BitsTag(), hn::Add(kept, hn::Set(floats, 0x1p15F)));
}

// Codes of v in the upper bytes of words, whose lower bytes are not zero; rounded by the upper
// bytes of `random`.
HWY_INLINE PairVector encode_root(const EvenOdd<FloatVector>& root,
                                  FloatVector factor,
                                  PairVector random) {
  const PairVector fixed =
      pairs_of_lower({root_steps(root.even, factor), root_steps(root.odd, factor)});
  return hn::Add(fixed, hn::ShiftRight<8>(random));
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
