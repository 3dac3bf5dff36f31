// Input rows of products: what is done to them before they are quantised, and how they are.
//
// Numerics are those of quantised_matrix.h. Like simd.h, everything has internal linkage.
#pragma once

#include <cmath>
#include <cstring>

#include "panel.h"
#include "quantised_matrix.h"
#include "simd.h"

namespace octavo {
namespace {

template <class Source>
void prepare(const ProductCall& call, const Source* input, float* prepared) {
  const int64_t columns = call.columns;
  if (call.prologue == Prologue::none) {
    for (int64_t i = 0; i < columns; i += kLanes) store(prepared + i, load(input + i));
  } else if (call.prologue == Prologue::rms_norm) {
    vfloat squares = {};
    for (int64_t i = 0; i < columns; i += kLanes) squares = fma(load(input + i), load(input + i), squares);
    float sum = 0.0f;
    for (int lane = 0; lane < kLanes; ++lane) sum += squares[lane];
    const vfloat factor = broadcast(1.0f / std::sqrt(sum / static_cast<float>(columns) + call.norm_eps));
    for (int64_t i = 0; i < columns; i += kLanes) {
      store(prepared + i, load(input + i) * factor * load(call.norm_weight + i));
    }
  } else {
    const bool is_silu = call.prologue == Prologue::silu;
    for (int64_t i = 0; i < columns; i += kLanes) {
      const vfloat gate = load(input + i);
      // x * (1 + tanh(y)) / 2 is x / (1 + e^-2y).
      const vfloat bent = is_silu ? gate : 1.5957691216057308f * fma(gate * gate * gate, broadcast(0.044715f), gate);
      const vfloat active = bent < -80.0f ? gate * 0.0f : gate / (1.0f + exp(-bent));
      store(prepared + i, active * load(input + columns + i));
    }
  }
}

// The largest magnitudes of a group, by lanes.
inline vint largest_lanes(const float* x) {
  vint most = {};
  for (int k = 0; k < kGroup; k += kLanes) most = larger_magnitude(most, load(x + k));
  return most;
}

#if defined(__AVX512F__)
// The largest lane of each of four vectors.
inline __m128i largest_of(__m512i a, __m512i b, __m512i c, __m512i d) {
  const auto larger = [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); };
  const __m512i ab = larger(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = larger(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all = larger(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
typedef __m512i Lanes;
#elif defined(__AVX2__)
inline __m128i largest_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const auto larger = [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); };
  const __m256i ab = larger(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = larger(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const __m256i all = larger(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
typedef __m256i Lanes;
#endif

// The largest magnitude of each group of a row.
inline void find_largest(const float* x, int64_t groups, float* largest) {
  int64_t g = 0;
#if defined(__AVX2__)
  for (; g + 4 <= groups; g += 4) {  // four at a time, so that lanes are compared for all of them at once
    const auto lanes = [x, g](int i) { return reinterpret_cast<Lanes>(largest_lanes(x + (g + i) * kGroup)); };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(largest + g), largest_of(lanes(0), lanes(1), lanes(2), lanes(3)));
  }
#endif
  for (; g < groups; ++g) {
    const int32_t bits = max_lanes(largest_lanes(x + g * kGroup));
    memcpy(&largest[g], &bits, sizeof bits);
  }
}

// Makes scales of largest magnitudes, and their inverses. NaN and infinity show in every output of the row.
void find_scales(float* largest, float* inverses, int64_t groups) {
  for (int64_t g = 0; g < groups; g += kLanes) {
    const vfloat magnitude = load(largest + g);
    const vint is_finite = as_int(magnitude) < 0x7f800000;
    const vfloat scale = is_finite ? magnitude / 127.0f : broadcast(NAN);
    store(largest + g, scale);
    store(inverses + g, scale > 1e-35f ? 1.0f / scale : vfloat{});
  }
}

#if defined(__AVX2__)
// The codes of a group.
inline __m256i codes_of(const float* x, float inverse) {
#if defined(__AVX512F__)
  const auto half_codes = [x, inverse](int k) {
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(load(x + k) * inverse));
  };
  return _mm256_set_m128i(half_codes(16), half_codes(0));
#else
  const auto wide = [x, inverse](int k) { return _mm256_cvtps_epi32(load(x + k) * inverse); };
  // packing goes by halves of vectors: in the end four codes of each vector, then the other four
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(wide(0), wide(8)), _mm256_packs_epi32(wide(16), wide(24)));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
}

// Puts what takes offsets off sums by pairs in the place of what takes them off sums: -offset times the sums of the first
// two codes of all quads and of the last two, each in 16 bits, which is enough for the offsets there are.
inline void store_pair_offsets(__m256i codes, InputGroup& group) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i twos = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
  const __m256i fours = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(twos, _mm256_shuffle_epi32(twos, 0xb1)));
  const __m128i first = _mm256_castsi256_si128(fours), second = _mm256_extracti128_si256(fours, 1);
  const __m128i all = _mm_add_epi16(first, second);
  group.minus_8 = _mm_cvtsi128_si32(_mm_slli_epi16(all, 3));
  group.minus_16 = _mm_cvtsi128_si32(_mm_slli_epi16(all, 4));
  group.minus_32_first = _mm_cvtsi128_si32(_mm_slli_epi16(first, 5));
  group.minus_32_second = _mm_cvtsi128_si32(_mm_slli_epi16(second, 5));
}

// Where the scale is NaN, so is every output, whatever the codes.
void quantise_group(const float* x, float scale, float inverse, InputGroup& group) {
  const __m256i codes = codes_of(x, inverse);
  _mm256_store_si256(reinterpret_cast<__m256i*>(group.codes), codes);
  // Sums of 8 codes, each + 128; of 16, in both places of a lane; of 32, everywhere.
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i halves = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4e));
  const __m256i whole = _mm256_add_epi32(halves, _mm256_permute4x64_epi64(halves, 0x4e));
  // As the group has them from its scale on: the halves' sums are the last but two and the last but one.
  const __m256i placed_halves = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 4, 0));
  const __m256i placed = _mm256_blend_epi32(_mm256_shuffle_epi32(whole, 0xa0), placed_halves, 0x60);
  const __m256i surplus = _mm256_setr_epi32(4096, 4096, 4096, 4096, 4096, 2048, 2048, 4096);
  const __m256i minus_sums = _mm256_sub_epi32(surplus, placed);
  const __m256i minus = _mm256_sllv_epi32(minus_sums, _mm256_setr_epi32(0, 0, 3, 4, 7, 5, 5, 0));
  const __m256 corrections = _mm256_mul_ps(_mm256_cvtepi32_ps(minus_sums), _mm256_set1_ps(scale));
  const __m256 floats = _mm256_blend_ps(_mm256_set1_ps(scale), corrections, 0x02);
  const __m256i fields = _mm256_blend_epi32(minus, _mm256_castps_si256(floats), 0x03);
  _mm256_store_si256(reinterpret_cast<__m256i*>(&group.scale), fields);
  if constexpr (kMultipliesPairs) store_pair_offsets(codes, group);
}
#else
int32_t sum_codes(const int8_t* codes) {  // of 16
  int32_t sum = 0;
  for (int k = 0; k < 16; ++k) sum += codes[k];
  return sum;
}

void quantise_group(const float* x, float scale, float inverse, InputGroup& group) {
  int8_t* codes = group.codes;
  if (scale == scale) {
    for (int k = 0; k < kGroup; k += kLanes) store(reinterpret_cast<i8*>(codes + k), load(x + k) * inverse);
  } else {
    memset(codes, 0, kGroup);
  }
  const int32_t first = sum_codes(codes), second = sum_codes(codes + 16), sum = first + second;
  group.scale = scale;
  group.correction = -scale * static_cast<float>(sum);
  group.minus_8 = -8 * sum, group.minus_16 = -16 * sum, group.minus_128 = -128 * sum;
  group.minus_32_first = -32 * first, group.minus_32_second = -32 * second;
  group.minus_1 = -sum;
}
#endif

// `scratch` holds 2 * columns floats.
inline void quantise_row(const ProductCall& call, int64_t row, const QuantisedRows& rows, float* scratch) {
  if (call.input_dtype == DType::bfloat16) {
    prepare(call, static_cast<const bf16*>(call.input) + row * call.input_stride, scratch);
  } else {
    prepare(call, static_cast<const float*>(call.input) + row * call.input_stride, scratch);
  }
  const int64_t groups = call.columns / kGroup, padded = (groups + kLanes - 1) / kLanes * kLanes;
  float *scales = scratch + call.columns, *inverses = scales + padded;
  find_largest(scratch, groups, scales);
  find_scales(scales, inverses, groups);
  for (int64_t g = 0; g < groups; ++g) quantise_group(scratch + g * kGroup, scales[g], inverses[g], rows.at(row, g));
}

}  // namespace
}  // namespace octavo
