// Vectors of 64 bytes, which is 16 weight rows: the operations that panels need, for the instruction set this file is
// compiled for.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include <cstring>
#include <utility>

#include "simd.h"

namespace octavo {
namespace {

typedef float Float16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint32_t Uint16 __attribute__((vector_size(64)));
typedef int16_t Short32 __attribute__((vector_size(64)));
typedef uint8_t Byte64 __attribute__((vector_size(64)));
typedef uint8_t Byte16 __attribute__((vector_size(16)));
typedef int8_t Sbyte16 __attribute__((vector_size(16)));

template <class Vector>
inline Vector load_vector(const void* p) {
  Vector x;
  memcpy(&x, p, sizeof x);
  return x;
}

// The first `count` lanes.
inline Float16 load_lanes(const float* p, int count) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p));
#else
  Float16 x = {};
  memcpy(&x, p, sizeof(float) * count);
  return x;
#endif
}

inline void store_lanes(float* p, Float16 x, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), reinterpret_cast<__m512>(x));
#else
  memcpy(p, &x, sizeof(float) * count);
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

inline Float16 multiply_add(Float16 a, Float16 b, Float16 c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_fmadd_ps(a, b, c));
#else
  float x[16], y[16], z[16];
  memcpy(x, &a, 64), memcpy(y, &b, 64), memcpy(z, &c, 64);
  for (int i = 0; i < 16; i += kLanes) store(z + i, fma(load(x + i), load(y + i), load(z + i)));
  return load_vector<Float16>(z);
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
  const Uint16 words = reinterpret_cast<Uint16>(codes);
  for (int b = 0; b < 4; ++b) {
    sums += reinterpret_cast<Int16>((words >> (8 * b)) & 0xff) * static_cast<int32_t>(quad[b]);
  }
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
#else
  for (int i = 0; i < 64; ++i) codes[i] |= (bits[i / 8] >> (i % 8) & 1) * value;
  return codes;
#endif
}

// table[code] of codes of 4 bits.
inline Byte64 looked_up(const uint8_t* table, Byte64 codes) {
#if defined(__AVX512BW__)
  const __m512i everywhere = _mm512_broadcast_i32x4(load_vector<__m128i>(table));
  return reinterpret_cast<Byte64>(_mm512_shuffle_epi8(everywhere, reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__)
  const __m256i everywhere = _mm256_broadcastsi128_si256(load_vector<__m128i>(table));
  __m256i parts[2];
  memcpy(parts, &codes, 64);
  for (__m256i& part : parts) part = _mm256_shuffle_epi8(everywhere, part);
  return load_vector<Byte64>(parts);
#else
  for (int i = 0; i < 64; ++i) codes[i] = table[codes[i]];
  return codes;
#endif
}

inline Float16 halves(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_cvtph_ps(load_vector<__m256i>(p)));
#else
  float wide[16];
  for (int i = 0; i < 16; i += kLanes) store(wide + i, load(reinterpret_cast<const f16*>(p) + i));
  return load_vector<Float16>(wide);
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
  memcpy(narrow, &x, 64);
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
#else
  return __builtin_convertvector(load_vector<Bytes>(p), Int16);
#endif
}

template <class Bytes>
inline Float16 bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(widened<Bytes>(p))));
#else
  return __builtin_convertvector(widened<Bytes>(p), Float16);
#endif
}

// 2 ^ (exponent - 128) of 16 unsigned bytes: floats of that exponent field, but for the two least, which are subnormal.
inline Float16 powers(const uint8_t* exponents) {
  const Int16 exponent = widened<Byte16>(exponents);
  const Int16 normal = (exponent - 1) << 23, subnormal = (exponent + 1) << 21;
  return reinterpret_cast<Float16>(normal > subnormal ? normal : subnormal);
}

// x << bits, or >> -bits, of each lane.
template <int bits>
inline Byte64 shifted(Byte64 x) {
  const Uint16 words = reinterpret_cast<Uint16>(x);
  return reinterpret_cast<Byte64>(bits < 0 ? words >> (bits < 0 ? -bits : 0) : words << (bits < 0 ? 0 : bits));
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

template <class Work, int... i>
inline __attribute__((always_inline)) void repeat(std::integer_sequence<int, i...>, const Work& work) {
  (work(i), ...);
}

// work(0), work(1), .. work(count - 1), each a copy of its own, so that arrays of vectors become registers.
template <int count, class Work>
inline __attribute__((always_inline)) void repeat(const Work& work) {
  repeat(std::make_integer_sequence<int, count>(), work);
}

}  // namespace
}  // namespace octavo
