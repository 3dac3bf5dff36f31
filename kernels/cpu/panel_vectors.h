// Vectors of 64 bytes, which is 16 weight rows: the operations that panels need, for the instruction set this file is
// compiled for.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include <cstring>

#include "wide_vector.h"

namespace octavo {
namespace {

typedef uint8_t Byte16 __attribute__((vector_size(16)));
typedef int8_t Sbyte16 __attribute__((vector_size(16)));

// The first `count` lanes.
inline Float16 load_lanes(const float* p, int count) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p));
#else
  if (count == 16) return Float16::load(p);
  float all[16] = {};
  memcpy(all, p, sizeof(float) * count);
  return Float16::load(all);
#endif
}

inline void store_lanes(float* p, Float16 x, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), reinterpret_cast<__m512>(x));
#else
  if (count == 16) return x.store(p);
  float all[16];
  x.store(all);
  memcpy(p, all, sizeof(float) * count);
#endif
}

inline Int16 splat(int32_t x) { return x - Int16{}; }

inline bool any_lane(Int16 mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#else
  int32_t all = 0;
  for (int lane = 0; lane < 16; ++lane) all |= mask[lane];
  return all != 0;
#endif
}

inline __attribute__((always_inline)) Float16 multiply_add(Float16 a, Float16 b, Float16 c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_fmadd_ps(a, b, c));
#else
  return Float16::of_parts([&](int i) __attribute__((always_inline)) { return fma(a.parts[i], b.parts[i], c.parts[i]); });
#endif
}

// sums[r] += codes[4r .. 4r + 3] . quad, exactly.
inline Int16 dot_quad(Int16 sums, Byte64 codes, const int8_t* quad) {
#if defined(__AVX512VNNI__)
  // gcc makes two instructions of the intrinsics: a load into every lane is part of this one. Volatile, so that the
  // order is the one written, in which no instruction waits for the one before.
  const auto& memory = *reinterpret_cast<const int8_t(*)[4]>(quad);
  asm volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(memory));
  return sums;
#else
  const Uint16 words = cast<Uint16>(codes);
  for (int b = 0; b < 4; ++b) sums += cast<Int16>((words >> (8 * b)) & 0xff) * static_cast<int32_t>(quad[b]);
  return sums;
#endif
}

// sums + factors * number, of factors of 0 .. 32767 and a number of 16 bits, signed.
inline Int16 add_products(Int16 sums, Int16 factors, const int32_t* number) {
#if defined(__AVX512VNNI__)
  // the upper halves of factors are 0, and those of the number do not matter
  return reinterpret_cast<Int16>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(factors),
                                                     _mm512_set1_epi32(*number)));
#else
  return sums + factors * splat(*number);
#endif
}

// Adds `value`, a bit that they lack, to the codes whose bit is set.
template <int value>
inline Byte64 add_bits(Byte64 codes, const uint8_t* bits) {
#if defined(__AVX512BW__)
  uint64_t mask;
  memcpy(&mask, bits, 8);
  const __m512i low = reinterpret_cast<__m512i>(codes);
  return reinterpret_cast<Byte64>(_mm512_mask_add_epi8(low, mask, low, _mm512_set1_epi8(value)));
#elif defined(__AVX2__)
  // byte i of a part gets the bits that its own is among, then its own alone
  const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i own = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  return Byte64::of_parts([&](int i) __attribute__((always_inline)) {
    int32_t mask;
    memcpy(&mask, bits + 4 * i, 4);
    const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), places), own);
    const __m256i is_set = _mm256_cmpeq_epi8(spread, own);
    return codes.parts[i] | reinterpret_cast<Byte64::Part>(_mm256_and_si256(is_set, _mm256_set1_epi8(value)));
  });
#else
  uint8_t all[64];
  codes.store(all);
  for (int i = 0; i < 64; ++i) all[i] |= (bits[i / 8] >> (i % 8) & 1) * value;
  return load_vector<Byte64>(all);
#endif
}

// table[code] of codes of 4 bits.
inline Byte64 looked_up(const uint8_t* table, Byte64 codes) {
#if defined(__AVX512BW__)
  const __m512i everywhere = _mm512_broadcast_i32x4(load_vector<__m128i>(table));
  return reinterpret_cast<Byte64>(_mm512_shuffle_epi8(everywhere, reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__)
  const __m256i everywhere = _mm256_broadcastsi128_si256(load_vector<__m128i>(table));
  return Byte64::of_parts([&](int i) __attribute__((always_inline)) {
    return reinterpret_cast<Byte64::Part>(_mm256_shuffle_epi8(everywhere, reinterpret_cast<__m256i>(codes.parts[i])));
  });
#else
  uint8_t all[64];
  for (int i = 0; i < 64; ++i) all[i] = table[codes[i]];
  return load_vector<Byte64>(all);
#endif
}

inline Float16 halves(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_cvtph_ps(load_vector<__m256i>(p)));
#else
  return Float16::of_parts(
      [&](int i) __attribute__((always_inline)) { return load(reinterpret_cast<const f16*>(p) + i * kLanes); });
#endif
}

// The first and the last 16 of 32 halves.
inline void widen_halves(Short32 x, Float16& first, Float16& second) {
#if defined(__AVX512F__)
  const __m512i wide = reinterpret_cast<__m512i>(x);
  first = reinterpret_cast<Float16>(_mm512_cvtph_ps(_mm512_castsi512_si256(wide)));
  second = reinterpret_cast<Float16>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(wide, 1)));
#else
  uint8_t narrow[64];
  x.store(narrow);
  first = halves(narrow), second = halves(narrow + 32);
#endif
}

// 16 bytes, signed or not.
template <class Bytes>
inline Int16 widened(const uint8_t* p) {
#if defined(__AVX512F__)
  // as intrinsics: compilers widen bytes one by one
  const __m128i narrow = load_vector<__m128i>(p);
  const bool is_signed = static_cast<decltype(Bytes{}[0])>(-1) < 0;
  return reinterpret_cast<Int16>(is_signed ? _mm512_cvtepi8_epi32(narrow) : _mm512_cvtepu8_epi32(narrow));
#elif defined(__AVX2__)
  const bool is_signed = static_cast<decltype(Bytes{}[0])>(-1) < 0;
  return Int16::of_parts([&](int i) __attribute__((always_inline)) {
    const __m128i narrow = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kLanes));
    return reinterpret_cast<vint>(is_signed ? _mm256_cvtepi8_epi32(narrow) : _mm256_cvtepu8_epi32(narrow));
  });
#else
  return Int16::of_parts([&](int i) __attribute__((always_inline)) {
    typedef decltype(Bytes{}[0] + 0) Wide;
    vint part;
    for (int lane = 0; lane < kLanes; ++lane) part[lane] = static_cast<Wide>(load_vector<Bytes>(p)[i * kLanes + lane]);
    return part;
  });
#endif
}

template <class Bytes>
inline Float16 bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(widened<Bytes>(p))));
#else
  return converted<Float16>(widened<Bytes>(p));
#endif
}

// 2 ^ (exponent - 128) of 16 unsigned bytes: floats of that exponent field, but for the two least, which are subnormal.
inline Float16 powers(const uint8_t* exponents) {
  const Int16 exponent = widened<Byte16>(exponents);
  const Int16 normal = (exponent - 1) << 23, subnormal = (exponent + 1) << 21;
  return cast<Float16>(larger_of(normal, subnormal));
}

// x << bits, or >> -bits, of each lane.
template <int bits>
inline Byte64 shifted(Byte64 x) {
  const Uint16 words = cast<Uint16>(x);
  return cast<Byte64>(bits < 0 ? words >> (bits < 0 ? -bits : 0) : words << (bits < 0 ? 0 : bits));
}

// The bits of `a` in `mask`, those of `b` elsewhere.
inline Byte64 merged(Byte64 a, Byte64 b, uint8_t mask) {
  const Byte64 places = mask - Byte64{};
#if defined(__AVX512F__)
  return reinterpret_cast<Byte64>(_mm512_ternarylogic_epi32(
      reinterpret_cast<__m512i>(places), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b), 0xca));
#else
  return (a & places) | (b & ~places);
#endif
}

}  // namespace
}  // namespace octavo
