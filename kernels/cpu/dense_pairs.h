// Products of bfloat16 numbers by the instruction that multiplies them in pairs (AVX512-BF16).
//
// Like simd.h, everything has internal linkage.
#pragma once

#include "dense_outputs.h"

namespace octavo {
namespace {

using Input = bf16;  // an element of a prepared row

constexpr int kInputBlock = 4;  // input rows of a register block

inline void store_inputs(const float* prepared, int64_t columns, Input* target) {
  for (int64_t i = 0; i < columns; i += kLanes) store(target + i, load(prepared + i));
}

inline vfloat add_products(vfloat sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

template <int kInputs>
inline void multiply_block(const DenseCall& call, const WeightBlock& block, const Input* rows, int64_t stride,
                           int64_t input) {
  vfloat sums[kInputs][kWeightBlock] = {};
  const Input* row = rows + input * stride;
  for (int64_t i = 0; i < call.columns; i += kStep) {
    __m512i weight[kWeightBlock];
#pragma GCC unroll 4
    for (int w = 0; w < kWeightBlock; ++w) {
      weight[w] = _mm512_loadu_si512(block.rows[w] + i);
      if (input == 0) __builtin_prefetch(reinterpret_cast<const char*>(block.rows[w] + i) + kAhead, 0, 3);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kInputs; ++m) {
      const __m512i x = _mm512_loadu_si512(row + m * stride + i);
#pragma GCC unroll 4
      for (int w = 0; w < kWeightBlock; ++w) sums[m][w] = add_products(sums[m][w], x, weight[w]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kInputs; ++m) {
    store_outputs(call, sum_lanes(sums[m][0], sums[m][1], sums[m][2], sums[m][3]), input + m, block.first, block.count);
  }
}

void multiply(const DenseCall& call, const void* prepared, int64_t stride, int64_t first, int64_t last) {
  const Input* rows = static_cast<const Input*>(prepared);
  for (int64_t row = first; row < last; row += kWeightBlock) {
    const WeightBlock block(call, row, last);
    int64_t input = 0;
    for (; input + kInputBlock <= call.num_rows; input += kInputBlock) {
      multiply_block<kInputBlock>(call, block, rows, stride, input);
    }
    switch (call.num_rows - input) {
      case 3: multiply_block<3>(call, block, rows, stride, input); break;
      case 2: multiply_block<2>(call, block, rows, stride, input); break;
      case 1: multiply_block<1>(call, block, rows, stride, input); break;
      default: break;
    }
  }
}

float multiply_one(const DenseCall& call, const void* prepared, int64_t index) {
  const Input* row = static_cast<const Input*>(prepared);
  const uint16_t* weight = weight_row(call, index);
  vfloat sum = {};
  for (int64_t i = 0; i < call.columns; i += kStep) {
    sum = add_products(sum, _mm512_loadu_si512(row + i), _mm512_loadu_si512(weight + i));
  }
  return sum_lanes(sum);
}

void multiply_listed(const DenseCall& call, const void* row, int64_t panel, uint32_t listed, float* outputs) {
  for (; listed != 0; listed &= listed - 1) {
    const int at = __builtin_ctz(listed);
    outputs[at] = multiply_one(call, row, panel * kSieveRows + at);
  }
}

uint32_t may_reach(const DenseCall& call, int64_t panel, const SieveGroup* groups, float least) {
  const int64_t num_groups = call.columns / kStep;
  const uint8_t* at = call.sieve + panel * num_groups * kSieveGroupBytes;
  const __m512i nibble = _mm512_set1_epi8(15);
  vfloat most = {};
  for (int64_t g = 0; g < num_groups; ++g, at += kSieveGroupBytes) {
    const SieveGroup& group = groups[g];
    __m512i lower = _mm512_set1_epi32(group.negated_sum), upper = _mm512_setzero_si512();
    const uint8_t* nibbles = at + 2 * kSieveRows;
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
      const __m512i both = _mm512_loadu_si512(nibbles + quad * 64);
      __builtin_prefetch(nibbles + quad * 64 + kAhead, 0, 3);
      int32_t codes[2];
      memcpy(codes, group.codes + quad * 4, 4);
      memcpy(codes + 1, group.codes + (quad + 4) * 4, 4);
      lower = _mm512_dpbusd_epi32(lower, _mm512_and_si512(both, nibble), _mm512_set1_epi32(codes[0]));
      upper = _mm512_dpbusd_epi32(upper, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble),
                                  _mm512_set1_epi32(codes[1]));
    }
    const vfloat dot = _mm512_cvtepi32_ps(_mm512_add_epi32(lower, upper));
    most = fma(load(reinterpret_cast<const f16*>(at)), fma(dot, broadcast(group.scale), broadcast(group.slack)), most);
  }
  return rows_that_reach(call, panel, mask_of(most < least));
}

}  // namespace
}  // namespace octavo
