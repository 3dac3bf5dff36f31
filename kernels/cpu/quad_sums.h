// Sums of the products of codes with the codes of inputs, exact, in whole numbers of 32 bits: the inner loop of products,
// for the instruction set this file is compiled for.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include <algorithm>

#include "panel.h"

namespace octavo {
namespace {

#if defined(__AVX512VNNI__)

constexpr int kRowsAtOnce = kTileRows;  // input rows that meet a quad of weights, their sums in registers
constexpr int64_t kMostSieved = 2;      // see ProductTable: more rows share too few panels that none of them needs

// Adds quads [first, first + count) of weights and of each input to `sums`. Of few rows, a second sum of each keeps
// instructions from waiting for one another.
template <class Weights, int first, int count, int kRows>
inline __attribute__((always_inline)) void add_quads(const Weights& weights, const InputGroup* inputs, Int16* sums) {
  constexpr bool kTwoSums = kRows <= 2;
  Int16 odd[kRows] = {};
  repeat<count>([&](int j) __attribute__((always_inline)) {
    const Byte64 quad = weights.quads[first + j];
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      Int16& sum = kTwoSums && j % 2 ? odd[m] : sums[m];
      sum = dot_quad(sum, quad, inputs[m].codes + 4 * (first + j));
    });
  });
  if (kTwoSums) repeat<kRows>([&](int m) __attribute__((always_inline)) { sums[m] += odd[m]; });
}

constexpr bool kTakesOffset = false;  // whether `add_quads` itself takes the offset of codes off

#elif defined(__AVX2__)

constexpr int kRowsAtOnce = 4;
constexpr int64_t kMostSieved = INT64_MAX;  // nibbles are multiplied at twice the rate of bytes
constexpr bool kTakesOffset = true;
constexpr int kHalves = 2;  // vectors of a quad

typedef __m256i RowSums[kHalves];

// Four bytes, of a quad of the input for example, in every lane.
inline __m256i spread(const void* four) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(four)));
}

// Two functions in assembler, volatile, so that the order is the one written: compilers start more products than there are
// registers for, and spill them.

// sums += the products of unsigned codes with signed ones, two neighbours added up, all in 16 bits.
inline void add_pairs(__m256i& sums, __m256i codes, __m256i input) {
  __m256i pairs;
  asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sums), "=&x"(pairs) : "x"(codes), "x"(input));
}

// sums += the products of signed codes, of which `magnitudes` are those of the weights, four neighbours added up in 32 bits.
// The sign of a weight goes over to the input, as the instruction takes no two signed operands.
inline void add_signed(__m256i& sums, __m256i codes, __m256i magnitudes, __m256i input) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i products;
  asm volatile(
      "vpsignb %2, %4, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(products)
      : "x"(codes), "x"(magnitudes), "x"(input), "x"(ones));
}

// Quads whose products still fit in 16 bits when added up by pairs. Without their offset codes are smaller. Sums that leave
// 16 bits on the way come back, since sums start from what takes the offset off.
template <class Weights>
constexpr int quads_of_16_bits(int count) {
  constexpr int most = std::max(Weights::offset, Weights::largest - Weights::offset);
  return std::min(count, 32767 / (2 * 127 * most));
}

// What sums by pairs of quads [first, first + count) start from.
template <class Weights, int first>
inline __m256i first_pairs(const InputGroup& input) {
  constexpr int offset = Weights::offset;
  static_assert(offset == 0 || offset == 4 || offset == 8 || offset == 16 || offset == 32);
  if constexpr (offset == 0) return _mm256_setzero_si256();
  if constexpr (offset == 8) return spread(&input.minus_8);
  if constexpr (offset == 16) return spread(&input.minus_16);
  const __m256i minus_32 = spread(first == 0 ? &input.minus_32_first : &input.minus_32_second);
  return offset == 32 ? minus_32 : _mm256_srai_epi16(minus_32, 3);
}

#if defined(__AVX512F__)
inline __m256i half_of(const Byte64& quad, int half) {
  return load_vector<__m256i>(reinterpret_cast<const uint8_t*>(&quad) + half * sizeof(__m256i));
}

inline void add_half(Int16& sums, int half, __m256i added) {
  uint8_t* place = reinterpret_cast<uint8_t*>(&sums) + half * sizeof(__m256i);
  const __m256i sum = _mm256_add_epi32(load_vector<__m256i>(place), added);
  memcpy(place, &sum, sizeof sum);
}
#else
inline __m256i half_of(const Byte64& quad, int half) { return reinterpret_cast<__m256i>(quad.parts[half]); }

inline void add_half(Int16& sums, int half, __m256i added) { sums.parts[half] += reinterpret_cast<vint>(added); }
#endif

template <int kRows>
inline __attribute__((always_inline)) void add_sums(const RowSums* added, Int16* sums) {
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    repeat<kHalves>([&](int h) __attribute__((always_inline)) { add_half(sums[m], h, added[m][h]); });
  });
}

// Whether codes are too large for sums by pairs. They are made signed, without their offset.
template <class Weights>
constexpr bool kHasWideCodes = Weights::largest > 127;

template <class Weights, int first, int count, int kRows>
inline __attribute__((always_inline)) void add_wide_quads(const Weights& weights, const InputGroup* inputs,
                                                            Int16* sums) {
  static_assert(Weights::offset == 128);
  RowSums added[kRows] = {};
  repeat<count>([&](int j) __attribute__((always_inline)) {
    __m256i codes[kHalves], magnitudes[kHalves];
    repeat<kHalves>([&](int h) __attribute__((always_inline)) {
      codes[h] = _mm256_xor_si256(half_of(weights.quads[first + j], h), _mm256_set1_epi8(-128));
      magnitudes[h] = _mm256_abs_epi8(codes[h]);  // that of -128 is 128
    });
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      const __m256i input = spread(inputs[m].codes + 4 * (first + j));
      repeat<kHalves>([&](int h) __attribute__((always_inline)) {
        add_signed(added[m][h], codes[h], magnitudes[h], input);
      });
    });
  });
  add_sums<kRows>(added, sums);
}

// Adds quads [first, first + count) of weights and of each input to `sums`.
template <class Weights, int first, int count, int kRows>
inline __attribute__((always_inline)) void add_quads(const Weights& weights, const InputGroup* inputs, Int16* sums) {
  if constexpr (kHasWideCodes<Weights>) {
    add_wide_quads<Weights, first, count, kRows>(weights, inputs, sums);
  } else {
    constexpr int kRun = quads_of_16_bits<Weights>(count);
    static_assert(kRun > 0 && count % kRun == 0 && (kRun == count || Weights::offset == 0));
    repeat<count / kRun>([&](int run) __attribute__((always_inline)) {
      RowSums pairs[kRows];
      repeat<kRows>([&](int m) __attribute__((always_inline)) {
        pairs[m][0] = pairs[m][1] = first_pairs<Weights, first>(inputs[m]);
      });
      repeat<kRun>([&](int i) __attribute__((always_inline)) {
        const int j = first + run * kRun + i;
        const __m256i codes[kHalves] = {half_of(weights.quads[j], 0), half_of(weights.quads[j], 1)};
        repeat<kRows>([&](int m) __attribute__((always_inline)) {
          const __m256i input = spread(inputs[m].codes + 4 * j);
          repeat<kHalves>([&](int h) __attribute__((always_inline)) { add_pairs(pairs[m][h], codes[h], input); });
        });
      });
      repeat<kRows>([&](int m) __attribute__((always_inline)) {
        repeat<kHalves>([&](int h) __attribute__((always_inline)) {
          pairs[m][h] = _mm256_madd_epi16(pairs[m][h], _mm256_set1_epi16(1));
        });
      });
      add_sums<kRows>(pairs, sums);
    });
  }
}

#else

constexpr int kRowsAtOnce = 1;
constexpr int64_t kMostSieved = 2;

template <class Weights, int first, int count, int kRows>
inline __attribute__((always_inline)) void add_quads(const Weights& weights, const InputGroup* inputs, Int16* sums) {
  static_assert(kRows == 1);
  repeat<count>([&](int j) __attribute__((always_inline)) {
    sums[0] = dot_quad(sums[0], weights.quads[first + j], inputs[0].codes + 4 * (first + j));
  });
}

constexpr bool kTakesOffset = false;

#endif

}  // namespace
}  // namespace octavo
