// What products with weights of bfloat16 have in common, whatever multiplies: their weight rows and their outputs.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include <algorithm>
#include <cstring>

#include "dense_kernel.h"
#include "simd.h"

namespace octavo {
namespace {

constexpr int kWeightBlock = 4;   // weight rows of a register block
constexpr int64_t kAhead = 4096;  // bytes of weights that are fetched ahead of their use

inline const uint16_t* weight_row(const DenseCall& call, int64_t row) {
  return static_cast<const uint16_t*>(call.weight) + row * call.columns;
}

// Up to four weight rows from `first` on; where there are fewer, the last one stands in for those that lack.
struct WeightBlock {
  WeightBlock(const DenseCall& call, int64_t first, int64_t last)
      : first(first), count(static_cast<int>(std::min<int64_t>(kWeightBlock, last - first))) {
    for (int w = 0; w < kWeightBlock; ++w) rows[w] = weight_row(call, first + std::min(w, count - 1));
  }

  int64_t first;
  int count;
  const uint16_t* rows[kWeightBlock];
};

inline float bias_of(const DenseCall& call, int64_t row) {
  return call.bias == nullptr ? 0.0f : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(
      static_cast<const uint16_t*>(call.bias)[row] << 16)));
}

inline void store_four(bf16* target, vfloat4 x) {
#if defined(__AVX512BF16__)
  const __m128bh rounded = _mm_cvtneps_pbh(x);
#else
  typedef uint32_t vuint4 __attribute__((vector_size(16)));
  typedef uint16_t vhalf4 __attribute__((vector_size(8)));
  const vuint4 bits = reinterpret_cast<vuint4>(x), is_nan = reinterpret_cast<vuint4>(x != x);
  const vuint4 nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const vhalf4 rounded = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & nearest), vhalf4);
#endif
  memcpy(target, &rounded, sizeof(bf16) * kWeightBlock);
}

inline void store_outputs(const DenseCall& call, vfloat4 sums, int64_t input, int64_t first, int count) {
  if (count == kWeightBlock && call.bias == nullptr) {
    const int64_t place = input * call.rows + first;
    if (call.output_dtype == DType::float32) {
      memcpy(static_cast<float*>(call.output) + place, &sums, sizeof sums);
    } else {
      store_four(static_cast<bf16*>(call.output) + place, sums);
    }
    return;
  }
  float values[kLanes] = {};
  for (int i = 0; i < count; ++i) values[i] = call.bias == nullptr ? sums[i] : sums[i] + bias_of(call, first + i);
  const int64_t place = input * call.rows + first;
  if (call.output_dtype == DType::float32) {
    memcpy(static_cast<float*>(call.output) + place, values, sizeof(float) * count);
  } else {
    bf16 rounded[kLanes];
    store(rounded, load(values));
    memcpy(static_cast<bf16*>(call.output) + place, rounded, sizeof(bf16) * count);
  }
}

// Bits of the weight rows of a panel of the sieve that are there and not `below`, where NaN is not.
inline uint32_t rows_that_reach(const DenseCall& call, int64_t panel, uint32_t below) {
  const int64_t left = call.rows - panel * kSieveRows;
  return ~below & (left >= kSieveRows ? 0xffff : (1u << left) - 1);
}

}  // namespace
}  // namespace octavo
