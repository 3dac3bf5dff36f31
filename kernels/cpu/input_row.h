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
  const Int16 wide = __builtin_convertvector(load_vector<Sbyte16>(codes), Int16);
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(wide));
#else
  int32_t sum = 0;
  for (int k = 0; k < 16; ++k) sum += wide[k];
  return sum;
#endif
}

void quantise_group(const float* x, InputGroup& group) {
  int8_t* codes = group.codes;
  // As integers, magnitudes compare like the numbers, and NaN is the largest.
  vint most = {};
  for (int k = 0; k < kGroup; k += kLanes) {
    const vint magnitude = as_int(load(x + k)) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  const int32_t bits = max_lanes(most);
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  const bool is_finite = bits < 0x7f800000;
  const float scale = is_finite ? largest / 127.0f : NAN;  // NaN and infinity show in every output of the row
  const float inverse = is_finite && scale > 1e-35f ? 1.0f / scale : 0.0f;
  if (!is_finite) memset(codes, 0, kGroup);
  for (int k = 0; is_finite && k < kGroup; k += kLanes) store(reinterpret_cast<i8*>(codes + k), load(x + k) * inverse);
  const int32_t first_sum = sum_codes(codes), sum = first_sum + sum_codes(codes + 16);
  group.scale = scale;
  group.correction = -scale * static_cast<float>(sum);
  group.negated_sum = -sum;
  group.negated_first_sum = -first_sum;
}

void quantise_row(const ProductCall& call, int64_t row, const QuantisedRows& rows, float* scratch) {
  if (call.input_dtype == DType::bfloat16) {
    prepare(call, static_cast<const bf16*>(call.input) + row * call.input_stride, scratch);
  } else {
    prepare(call, static_cast<const float*>(call.input) + row * call.input_stride, scratch);
  }
  const int64_t groups = call.columns / kGroup;
  for (int64_t group = 0; group < groups; ++group) {
    quantise_group(scratch + group * kGroup, rows.at(row, group));
  }
}

}  // namespace
}  // namespace octavo
