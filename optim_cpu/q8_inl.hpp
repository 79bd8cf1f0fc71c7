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

#include <limits>

#include "optim_cpu/q8.hpp"
#include "optim_cpu/vectors_inl.hpp"
#include "optim_cpu/weights.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

// A vector of one element has no pairs.
#undef HEADRACE_OPTIM_CPU_Q8_PAIRS
#if HWY_TARGET != HWY_SCALAR
#define HEADRACE_OPTIM_CPU_Q8_PAIRS 1
#else
#define HEADRACE_OPTIM_CPU_Q8_PAIRS 0
#endif

// The arithmetic of an update is fused.
#undef HEADRACE_OPTIM_CPU_Q8_VECTORS
#if HEADRACE_OPTIM_CPU_Q8_PAIRS && HWY_NATIVE_FMA
#define HEADRACE_OPTIM_CPU_Q8_VECTORS 1
#else
#define HEADRACE_OPTIM_CPU_Q8_VECTORS 0
#endif

#if HEADRACE_OPTIM_CPU_Q8_PAIRS

using PairTag = hn::Repartition<std::uint16_t, FloatTag>;  // two elements in each float's lane
using SignedPairTag = hn::RebindToSigned<PairTag>;
using PairVector = hn::Vec<PairTag>;
using BitsVector = hn::Vec<BitsTag>;

inline constexpr auto kPairLanes = static_cast<std::int64_t>(2 * kFloatLanes);
inline constexpr std::int64_t kPairsPerGroup = kQ8GroupElements / kPairLanes;

HWY_INLINE PairVector set_words(unsigned value) {
  return hn::Set(PairTag(), static_cast<std::uint16_t>(value));
}

// Constants of decoding and encoding. They are in memory, and the compiler is not told what they
// are: it would make those that no register is left for from general registers, again and again,
// by instructions that take a vector's turn; a load takes none.
struct Q8Bits {
  HWY_INLINE Q8Bits()
      : sign(set_words(0x8000U)),
        m_two(set_words(0x4000U)),
        m_code(set_words(0x81fcU)),
        ones(set_words(0x0101U)),
        lower(set_words(0x00ffU)),
        upper(set_words(0xff00U)),
        byte_signs(set_words(0x8080U)),
        even(hn::Set(BitsTag(), 0xffffU)),
        odd(hn::Set(BitsTag(), 0xffff0000U)),
        m_random(hn::Set(BitsTag(), (1U << kQ8MFraction) - 1)),
        two(hn::Set(FloatTag(), 2.0F)),
        v_random(hn::Set(BitsTag(), (1U << kQ8VFraction) - 1)),
        v_bias(hn::BitCast(BitsTag(), hn::Set(FloatTag(), kQ8VBias))) {}

  HWY_INLINE void hide() {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
    asm volatile("" : "+m"(*this));
#endif
  }

  PairVector sign;
  PairVector m_two;   // the upper half of 2.0F
  PairVector m_code;  // a code of m there, with its sign
  PairVector ones;    // of bytes
  PairVector lower, upper, byte_signs;
  BitsVector even, odd, m_random;
  FloatVector two;
  BitsVector v_random, v_bias;
};

// The even and the odd elements of a PairTag vector.
template <class Vector>
struct EvenOdd {
  Vector even, odd;
};

HWY_INLINE EvenOdd<BitsVector> upper_halves(const Q8Bits& c, PairVector pairs) {
  const BitsVector bits = hn::BitCast(BitsTag(), pairs);
  return {hn::ShiftLeft<16>(bits), hn::And(bits, c.odd)};
}

HWY_INLINE EvenOdd<BitsVector> lower_halves(const Q8Bits& c, PairVector pairs) {
  const BitsVector bits = hn::BitCast(BitsTag(), pairs);
  return {hn::And(bits, c.even), hn::ShiftRight<16>(bits)};
}

HWY_INLINE PairVector pairs_of_upper(const Q8Bits& c, const EvenOdd<BitsVector>& bits) {
  return hn::BitCast(PairTag(), hn::OrAnd(hn::ShiftRight<16>(bits.even), bits.odd, c.odd));
}

HWY_INLINE PairVector pairs_of_lower(const Q8Bits& c, const EvenOdd<BitsVector>& bits) {
  return hn::BitCast(PairTag(), hn::OrAnd(hn::ShiftLeft<16>(bits.odd), bits.even, c.even));
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

HWY_INLINE EvenOdd<FloatVector> interleaved_floats(const float* values) {
  EvenOdd<FloatVector> result;
  hn::LoadInterleaved2(FloatTag(), values, result.even, result.odd);
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
HWY_INLINE GroupWords numbers_of_bytes(const Q8Bits& c, PairVector words) {
  return {hn::And(words, c.lower), hn::ShiftRight<8>(words)};
}

// The record's part of two groups' upper bytes.
HWY_INLINE PairVector merge_upper_bytes(const Q8Bits& c, const GroupWords& groups) {
  return hn::OrAnd(hn::ShiftRight<8>(groups.first), groups.second, c.upper);
}

// The sign of the one, the other bits of the other.
HWY_INLINE PairVector with_sign_of(const Q8Bits& c, PairVector sign, PairVector others) {
#if HWY_TARGET == HWY_AVX3
  return hn::IfVecThenElse(c.sign, sign, others);
#else
  return hn::OrAnd(hn::AndNot(c.sign, others), sign, c.sign);
#endif
}

// M of q8.hpp of one group's words, whose upper byte is the code.
HWY_INLINE EvenOdd<FloatVector> m_steps(const Q8Bits& c, PairVector codes) {
  // Upper halves of floats 2 + ...: the code's seven bits moved to their place, and its sign left
  // in its own.
  const PairVector moved =
      hn::BitCast(PairTag(), hn::ShiftRight<6>(hn::BitCast(SignedPairTag(), codes)));
  const EvenOdd<FloatVector> biased =
      as_floats(upper_halves(c, hn::OrAnd(c.m_two, moved, c.m_code)));
  return {hn::Sub(biased.even, hn::CopySignToAbs(c.two, biased.even)),
          hn::Sub(biased.odd, hn::CopySignToAbs(c.two, biased.odd))};
}

HWY_INLINE FloatVector floats_of(BitsVector number) {
  return hn::ConvertTo(FloatTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), number));
}

HWY_INLINE PairVector at_least_one(const Q8Bits& c, PairVector bytes) {
  const hn::Repartition<std::uint8_t, PairTag> tag;
  return hn::BitCast(PairTag(), hn::Max(hn::BitCast(tag, bytes), hn::BitCast(tag, c.ones)));
}

// Of one group's words, which are codes of v.
HWY_INLINE EvenOdd<FloatVector> v_steps(const Q8Bits& c, PairVector codes) {
  const EvenOdd<BitsVector> numbers = lower_halves(c, codes);
  return {floats_of(numbers.even), floats_of(numbers.odd)};
}

// The group's words have the corrections in their upper bytes.
HWY_INLINE EvenOdd<FloatVector> decode_weights(const Q8Bits& c,
                                               PairVector high,
                                               PairVector corrections) {
  const BitsTag tag;
  const SignedPairTag numbers;
  const BitsVector low = hn::BitCast(tag, hn::And(corrections, c.upper));
  // One less where the correction is negative.
  const auto borrow = hn::ShiftRight<15>(hn::BitCast(numbers, corrections));
  const BitsVector upper = hn::BitCast(tag, hn::Add(high, hn::BitCast(PairTag(), borrow)));
  return as_floats({hn::OrAnd(hn::ShiftLeft<16>(upper), low, c.even),
                    hn::OrAnd(hn::ShiftRight<16>(low), upper, c.odd)});
}

// Infinity instead of NaNs. What rounds a weight carries into its upper bits, and a NaN whose bits
// are all ones would become a number; so none may come in: by floats, since those of a bf16
// gradient, of a weight's two parts and of arithmetic have zeros where a carry ends.
template <class Tag, class Vector = hn::Vec<Tag>>
HWY_INLINE Vector infinite_nans(Tag tag, Vector values) {
  const Vector infinity = hn::Set(tag, std::numeric_limits<float>::infinity());
#if HWY_ARCH_X86
  return hn::Min(values, infinity);  // the second operand if one is a NaN
#else
  return hn::IfThenElse(hn::IsNaN(values), infinity, values);
#endif
}

// NaNs whose lower bits are zero, instead of any.
template <class Tag, class Vector = hn::Vec<Tag>>
HWY_INLINE Vector plain_nans(Tag tag, Vector values) {
  const Vector nan = hn::Set(tag, std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(values), nan, values);
}

// Weights rounded by the lower bytes of `random`, in 32 bits: the upper part, then the correction
// with its sign inverted, then 8 bits to drop.
HWY_INLINE EvenOdd<BitsVector> round_weights(const Q8Bits& c,
                                             const EvenOdd<FloatVector>& p,
                                             PairVector random) {
  const EvenOdd<BitsVector> added = lower_halves(c, hn::OrAnd(c.sign, random, c.lower));
  const BitsTag tag;
  return {hn::Add(hn::BitCast(tag, p.even), added.even),
          hn::Add(hn::BitCast(tag, p.odd), added.odd)};
}

// Back to floats.
HWY_INLINE EvenOdd<FloatVector> decoded_weights(const EvenOdd<BitsVector>& rounded) {
  const BitsTag tag;
  const auto kept = [tag](BitsVector bits) {
    return hn::BitCast(FloatTag(),
                       hn::And(hn::Sub(bits, hn::Set(tag, 0x8000U)), hn::Set(tag, ~0xffU)));
  };
  return {kept(rounded.even), kept(rounded.odd)};
}

HWY_INLINE PairVector merge_corrections(const Q8Bits& c, PairVector first, PairVector second) {
  return hn::Xor(merge_upper_bytes(c, {first, second}), c.byte_signs);
}

// y of q8.hpp, its bits.
HWY_INLINE BitsVector biased_m(const Q8Bits& c, FloatVector m, FloatVector factor) {
  return hn::BitCast(BitsTag(), hn::MulAdd(m, factor, hn::CopySignToAbs(c.two, m)));
}

// Codes of m in the upper bytes of words, whose lower bytes are not zero.
HWY_INLINE PairVector encode_m(const Q8Bits& c,
                               const EvenOdd<FloatVector>& m,
                               FloatVector factor,
                               PairVector random) {
  const BitsTag tag;
  const BitsVector word = hn::BitCast(tag, random);
  const BitsVector even_bits = hn::And(word, c.m_random);
  const BitsVector odd_bits = hn::ShiftRight<32 - kQ8MFraction>(word);
  const PairVector upper = pairs_of_upper(c,
                                          {hn::Add(biased_m(c, m.even, factor), even_bits),
                                           hn::Add(biased_m(c, m.odd, factor), odd_bits)});
  return with_sign_of(c, upper, hn::ShiftLeft<6>(upper));
}

// Codes of v in the upper bytes of words.
HWY_INLINE PairVector encode_root(const Q8Bits& c,
                                  const EvenOdd<FloatVector>& root,
                                  FloatVector factor,
                                  PairVector random) {
  const BitsTag tag;
  const BitsVector word = hn::BitCast(tag, random);
  const BitsVector even_bias = hn::OrAnd(c.v_bias, word, c.v_random);
  const BitsVector odd_bias = hn::Or(c.v_bias, hn::ShiftRight<32 - kQ8VFraction>(word));
  const auto biased = [&](FloatVector values, BitsVector bias) {
    return hn::BitCast(tag, hn::MulAdd(values, factor, hn::BitCast(FloatTag(), bias)));
  };
  const BitsVector even = hn::ShiftRight<kQ8VFraction - 8>(biased(root.even, even_bias));
  const BitsVector odd = hn::ShiftLeft<24 - kQ8VFraction>(biased(root.odd, odd_bias));
  return hn::BitCast(PairTag(), hn::IfVecThenElse(c.odd, odd, even));
}

#endif  // HEADRACE_OPTIM_CPU_Q8_PAIRS

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
