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
      vfloat active;
      if (is_silu) {
        active = gate / (1.0f + exp(-maximum(gate, broadcast(-80.0f))));
      } else {
        const vfloat inner = 0.7978845608028654f * fma(gate * gate * gate, broadcast(0.044715f), gate);
        active = 0.5f * gate * (1.0f + tanh(inner));
      }
      store(prepared + i, active * load(input + columns + i));
    }
  }
}

int32_t sum_codes(const int8_t* codes) {  // of 16
#if defined(__AVX2__)
  const __m128i positive = _mm_xor_si128(load_vector<__m128i>(codes), _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(positive, _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#else
  int32_t sum = 0;
  for (int k = 0; k < 16; ++k) sum += codes[k];
  return sum;
#endif
}

// The bits of a group's largest magnitude. As integers, magnitudes compare like the numbers, and NaN is the largest.
int32_t largest_bits(const float* x) {
  vint most = {};
  for (int k = 0; k < kGroup; k += kLanes) {
    const vint magnitude = as_int(load(x + k)) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  return max_lanes(most);
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

// `scratch` holds 2 * columns floats.
inline void quantise_row(const ProductCall& call, int64_t row, const QuantisedRows& rows, float* scratch) {
  if (call.input_dtype == DType::bfloat16) {
    prepare(call, static_cast<const bf16*>(call.input) + row * call.input_stride, scratch);
  } else {
    prepare(call, static_cast<const float*>(call.input) + row * call.input_stride, scratch);
  }
  const int64_t groups = call.columns / kGroup, padded = (groups + kLanes - 1) / kLanes * kLanes;
  float *scales = scratch + call.columns, *inverses = scales + padded;
  for (int64_t g = 0; g < groups; ++g) {
    const int32_t bits = largest_bits(scratch + g * kGroup);
    memcpy(&scales[g], &bits, sizeof bits);
  }
  find_scales(scales, inverses, groups);
  for (int64_t g = 0; g < groups; ++g) quantise_group(scratch + g * kGroup, scales[g], inverses[g], rows.at(row, g));
}

}  // namespace
}  // namespace octavo
