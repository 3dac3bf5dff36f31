// Groups of quantised weights in vectors, for the instruction set this file is compiled for.
//
// Layout and kinds are those of quantised_matrix.h. Like simd.h, everything has internal linkage.
#pragma once

#include <cstring>

#include "quantised_matrix.h"
#include "simd.h"

namespace octavo {
namespace {

typedef float Float16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint32_t Uint16 __attribute__((vector_size(64)));
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

// Adds 16 to the codes whose bit is set.
inline Byte64 add_fifth_bits(Byte64 codes, const uint8_t* bits) {
#if defined(__AVX512BW__)
  uint64_t mask;
  memcpy(&mask, bits, 8);
  const __m512i low = reinterpret_cast<__m512i>(codes);
  return reinterpret_cast<Byte64>(_mm512_mask_add_epi8(low, mask, low, _mm512_set1_epi8(16)));
#else
  for (int i = 0; i < 64; ++i) codes[i] |= (bits[i / 8] >> (i % 8) & 1) << 4;
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

// 16 bytes, signed or not.
template <class Bytes>
inline Float16 bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  // as intrinsics: compilers widen bytes one by one
  const __m128i narrow = load_vector<__m128i>(p);
  const bool is_signed = static_cast<decltype(Bytes{}[0])>(-1) < 0;
  return reinterpret_cast<Float16>(
      _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(narrow) : _mm512_cvtepu8_epi32(narrow)));
#else
  return __builtin_convertvector(__builtin_convertvector(load_vector<Bytes>(p), Int16), Float16);
#endif
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

// Quads j and j + 4 of a group; `lower` are its lower nibbles, of q8_planes alone.
template <WeightKind kind, int j>
inline void unpack_pair(const uint8_t* codes, [[maybe_unused]] const uint8_t* lower, Byte64* quads) {
  const Byte64 pairs = load_vector<Byte64>(codes + 64 * j);
  if (kind == WeightKind::q8_0) {
    quads[j] = pairs;
    quads[j + 4] = load_vector<Byte64>(codes + 64 * (j + 4));
  } else if (kind == WeightKind::q8_planes) {
    const Byte64 lower_pairs = load_vector<Byte64>(lower + 64 * j);
    quads[j] = merged(shifted<4>(pairs), lower_pairs, 0xf0);
    quads[j + 4] = merged(pairs, shifted<-4>(lower_pairs), 0xf0);
  } else {
    quads[j] = pairs & 0x0f;
    quads[j + 4] = shifted<-4>(pairs) & 0x0f;
  }
  if (kind == WeightKind::q5_0) {
    quads[j] = add_fifth_bits(quads[j], codes + 256 + 8 * j);
    quads[j + 4] = add_fifth_bits(quads[j + 4], codes + 256 + 8 * (j + 4));
  }
  if (kind == WeightKind::q6_k) {
    quads[j] |= shifted<4 - 2 * j>(load_vector<Byte64>(codes + 256)) & 0x30;
    quads[j + 4] |= shifted<4 - 2 * j>(load_vector<Byte64>(codes + 320)) & 0x30;
  }
}

// Codes are offset by so much.
template <WeightKind kind>
constexpr int kOffset = has_bytes(kind) ? 128 : kind == WeightKind::q5_0 ? 16 : kind == WeightKind::q4_0 ? 8
                      : kind == WeightKind::q6_k ? 32 : 0;

// The scales of a group: factors of codes, and what q4_k subtracts, or factors of the second half of q6_k's columns.
template <WeightKind kind>
constexpr int kScales = has_outer_scales(kind) ? 2 : 1;

template <WeightKind kind>
inline void unpack_scales(const uint8_t* scales, int64_t groups, int64_t group, Float16* result) {
  const uint8_t* own = scales + group * 2 * kPanelRows;
  if (!has_outer_scales(kind)) {
    result[0] = halves(own);
  } else {
    constexpr int outer_bytes = (kind == WeightKind::q4_k ? 8 : 4) * kPanelRows;
    const uint8_t* outer = scales + groups * 2 * kPanelRows + group / kSuperGroups * outer_bytes;
    const Float16 d = load_vector<Float16>(outer);
    if (kind == WeightKind::q4_k) {
      result[0] = d * bytes<Byte16>(own);
      result[1] = load_vector<Float16>(outer + 64) * bytes<Byte16>(own + 16);
    } else {
      result[0] = d * bytes<Sbyte16>(own);
      result[1] = d * bytes<Sbyte16>(own + 16);
    }
  }
}

// A group of a panel as the inner loop takes it.
template <WeightKind kind>
struct Group {
  Byte64 quads[8];
  Float16 scales[kScales<kind>];
};

// A panel of `groups` groups.
struct Panel {
  const uint8_t* start;
  const uint8_t* lower;
  int64_t groups;
};

template <WeightKind kind>
inline const uint8_t* codes_of(const Panel& panel, int64_t group) {
  return panel.start + scale_bytes(kind, panel.groups * kGroup) + group * code_bytes(kind);
}

template <WeightKind kind>
inline Group<kind> unpack_group(const Panel& panel, int64_t group) {
  const uint8_t* codes = codes_of<kind>(panel, group);
  const uint8_t* lower = panel.lower + group * 256;
  Group<kind> result;
  unpack_pair<kind, 0>(codes, lower, result.quads);
  unpack_pair<kind, 1>(codes, lower, result.quads);
  unpack_pair<kind, 2>(codes, lower, result.quads);
  unpack_pair<kind, 3>(codes, lower, result.quads);
  unpack_scales<kind>(panel.start, panel.groups, group, result.scales);
  return result;
}

}  // namespace
}  // namespace octavo
