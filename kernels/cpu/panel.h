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

inline Int16 splat(int32_t x) { return x - Int16{}; }

// x << bits in every lane.
template <int bits>
inline Int16 splat_shifted(int32_t x) {
#if defined(__AVX512F__)
  // as an intrinsic, or else compilers shift first and pay for a move between registers of different kinds
  return reinterpret_cast<Int16>(_mm512_slli_epi32(_mm512_set1_epi32(x), bits));
#else
  return splat(x) << bits;
#endif
}

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
  // gcc makes two instructions of the intrinsics: a load into every lane is part of this one
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(*reinterpret_cast<const int8_t(*)[4]>(quad)));
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
  return reinterpret_cast<Byte64>(_mm512_mask_or_epi32(low, 0xffff, low, _mm512_maskz_set1_epi8(mask, 16)));
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

// 16 bytes, signed or not. By way of integers: compilers convert bytes to floats one by one.
template <class Bytes>
inline Float16 bytes(const uint8_t* p) {
  return __builtin_convertvector(__builtin_convertvector(load_vector<Bytes>(p), Int16), Float16);
}

// The 8 quads of a group; `lower` are its lower nibbles, of q8_planes alone.
template <WeightKind kind>
inline void unpack_codes(const uint8_t* codes, [[maybe_unused]] const uint8_t* lower, Byte64* quads) {
  for (int j = 0; j < 4; ++j) {
    if (kind == WeightKind::q8_0) {
      quads[j] = load_vector<Byte64>(codes + 64 * j);
      quads[j + 4] = load_vector<Byte64>(codes + 64 * (j + 4));
    } else {
      const Byte64 pairs = load_vector<Byte64>(codes + 64 * j);
      quads[j] = pairs & 0x0f;
      quads[j + 4] = reinterpret_cast<Byte64>((reinterpret_cast<Uint16>(pairs) >> 4)) & 0x0f;
    }
    if (kind == WeightKind::q8_planes) {
      const Byte64 pairs = load_vector<Byte64>(lower + 64 * j);
      quads[j] = reinterpret_cast<Byte64>(reinterpret_cast<Uint16>(quads[j]) << 4) | (pairs & 0x0f);
      const Byte64 upper = reinterpret_cast<Byte64>(reinterpret_cast<Uint16>(pairs) >> 4) & 0x0f;
      quads[j + 4] = reinterpret_cast<Byte64>(reinterpret_cast<Uint16>(quads[j + 4]) << 4) | upper;
    }
    if (kind == WeightKind::q5_0) {
      quads[j] = add_fifth_bits(quads[j], codes + 256 + 8 * j);
      quads[j + 4] = add_fifth_bits(quads[j + 4], codes + 256 + 8 * (j + 4));
    }
    if (kind == WeightKind::q6_k) {
      const Uint16 first = load_vector<Uint16>(codes + 256), second = load_vector<Uint16>(codes + 320);
      quads[j] |= reinterpret_cast<Byte64>((first >> (2 * j)) << 4) & 0x30;
      quads[j + 4] |= reinterpret_cast<Byte64>((second >> (2 * j)) << 4) & 0x30;
    }
  }
}

// Codes are offset by 1 << kOffsetBits, or not at all where that is 0.
template <WeightKind kind>
constexpr int kOffsetBits = kind == WeightKind::q8_0 || kind == WeightKind::q8_planes ? 7
                          : kind == WeightKind::q5_0 ? 4 : kind == WeightKind::q4_0 ? 3
                          : kind == WeightKind::q6_k ? 5 : 0;

// The scales of a group: factors of codes, of each half of its columns for q6_k, and what q4_k subtracts.
struct GroupScales {
  Float16 factor, second_factor, minimum;
};

template <WeightKind kind>
inline GroupScales unpack_scales(const uint8_t* scales, int64_t groups, int64_t group) {
  GroupScales result{};
  const uint8_t* own = scales + group * 2 * kPanelRows;
  if (!has_outer_scales(kind)) {
    result.factor = halves(own);
  } else {
    constexpr int outer_bytes = (kind == WeightKind::q4_k ? 8 : 4) * kPanelRows;
    const uint8_t* outer = scales + groups * 2 * kPanelRows + group / kSuperGroups * outer_bytes;
    const Float16 d = load_vector<Float16>(outer);
    if (kind == WeightKind::q4_k) {
      result.factor = d * bytes<Byte16>(own);
      result.minimum = load_vector<Float16>(outer + 64) * bytes<Byte16>(own + 16);
    } else {
      result.factor = d * bytes<Sbyte16>(own);
      result.second_factor = d * bytes<Sbyte16>(own + 16);
    }
  }
  return result;
}

// A group of a panel as the inner loop takes it.
struct Group {
  Byte64 quads[8];
  GroupScales scales;
};

// A panel of `groups` groups.
struct Panel {
  const uint8_t* start;
  const uint8_t* lower;
  int64_t groups;
};

template <WeightKind kind>
inline Group unpack_group(const Panel& panel, int64_t group) {
  const uint8_t* codes = panel.start + scale_bytes(kind, panel.groups * kGroup) + group * code_bytes(kind);
  for (int line = 0; line < 4; ++line) __builtin_prefetch(codes + 4096 + 64 * line);
  Group result;
  unpack_codes<kind>(codes, panel.lower + group * 256, result.quads);
  result.scales = unpack_scales<kind>(panel.start, panel.groups, group);
  return result;
}

}  // namespace
}  // namespace octavo
