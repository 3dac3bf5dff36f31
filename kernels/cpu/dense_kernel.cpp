// Products of bfloat16 numbers, compiled for the instruction set that multiplies them. Contract: dense_product.h.
#include "dense_kernel.h"

#if defined(__AVX512BF16__)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "input_row.h"

namespace octavo {
namespace {

constexpr int kWeightBlock = 4;  // weight rows x input rows of a register block
constexpr int kInputBlock = 4;
constexpr int64_t kAhead = 4096;  // bytes of weights that are fetched ahead of their use

inline vfloat add_products(vfloat sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline const uint16_t* weight_row(const DenseCall& call, int64_t row) {
  return static_cast<const uint16_t*>(call.weight) + row * call.columns;
}

void prepare_row(const DenseCall& call, int64_t row, uint16_t* target, float* scratch) {
  ProductCall way{};
  way.prologue = call.prologue, way.columns = call.columns;
  way.norm_weight = call.norm_weight, way.norm_eps = call.norm_eps;
  if (call.input_dtype == DType::bfloat16) {
    prepare(way, static_cast<const bf16*>(call.input) + row * call.input_stride, scratch);
  } else {
    prepare(way, static_cast<const float*>(call.input) + row * call.input_stride, scratch);
  }
  for (int64_t i = 0; i < call.columns; i += kLanes) store(reinterpret_cast<bf16*>(target + i), load(scratch + i));
}

inline float bias_of(const DenseCall& call, int64_t row) {
  return call.bias == nullptr ? 0.0f : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(
      static_cast<const uint16_t*>(call.bias)[row] << 16)));
}

inline void store_outputs(const DenseCall& call, vfloat4 sums, int64_t input, int64_t first, int count) {
  if (count == kWeightBlock && call.bias == nullptr) {
    const int64_t place = input * call.rows + first;
    if (call.output_dtype == DType::float32) {
      memcpy(static_cast<float*>(call.output) + place, &sums, sizeof sums);
    } else {
      const __m128bh rounded = _mm_cvtneps_pbh(sums);
      memcpy(static_cast<bf16*>(call.output) + place, &rounded, sizeof(bf16) * kWeightBlock);
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

// Outputs of four weight rows, of which the first `count` count, for kInputs input rows.
template <int kInputs>
inline void multiply_block(const DenseCall& call, const uint16_t* const (&weights)[kWeightBlock], const uint16_t* rows,
                           int64_t stride, int64_t input, int64_t first, int count) {
  vfloat sums[kInputs][kWeightBlock] = {};
  const uint16_t* row = rows + input * stride;
  for (int64_t i = 0; i < call.columns; i += kStep) {
    __m512i weight[kWeightBlock];
#pragma GCC unroll 4
    for (int w = 0; w < kWeightBlock; ++w) {
      weight[w] = _mm512_loadu_si512(weights[w] + i);
      if (input == 0) __builtin_prefetch(reinterpret_cast<const char*>(weights[w] + i) + kAhead, 0, 3);
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
    store_outputs(call, sum_lanes(sums[m][0], sums[m][1], sums[m][2], sums[m][3]), input + m, first, count);
  }
}

void multiply(const DenseCall& call, const uint16_t* rows, int64_t stride, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row += kWeightBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kWeightBlock, last - row));
    const uint16_t* weights[kWeightBlock];
    for (int w = 0; w < kWeightBlock; ++w) weights[w] = weight_row(call, row + std::min(w, count - 1));
    int64_t input = 0;
    for (; input + kInputBlock <= call.num_rows; input += kInputBlock) {
      multiply_block<kInputBlock>(call, weights, rows, stride, input, row, count);
    }
    switch (call.num_rows - input) {
      case 3: multiply_block<3>(call, weights, rows, stride, input, row, count); break;
      case 2: multiply_block<2>(call, weights, rows, stride, input, row, count); break;
      case 1: multiply_block<1>(call, weights, rows, stride, input, row, count); break;
      default: break;
    }
  }
}

float multiply_one(const DenseCall& call, const uint16_t* row, int64_t index) {
  const uint16_t* weight = weight_row(call, index);
  vfloat sum = {};
  for (int64_t i = 0; i < call.columns; i += kStep) {
    sum = add_products(sum, _mm512_loadu_si512(row + i), _mm512_loadu_si512(weight + i));
  }
  return sum_lanes(sum);
}

inline vfloat magnitude(vfloat x) { return as_float(as_int(x) & 0x7fffffff); }

void make_sieve_groups(const uint16_t* row, int64_t columns, SieveGroup* groups) {
  constexpr float kRounding = 0.01f;    // of the sums of both passes, of up to some ten thousand columns
  constexpr float kMostSlack = 1e30f;  // where nothing that is computed from halves overflows
  for (int64_t g = 0; g < columns / kStep; ++g) {
    const bf16* x = reinterpret_cast<const bf16*>(row + g * kStep);
    const vfloat first = load(x), second = load(x + kLanes);
    const float largest = max_lanes(maximum(magnitude(first), magnitude(second)));
    const float scale = largest / 127.0f, inverse = scale > 1e-35f ? 1.0f / scale : 0.0f;
    SieveGroup& group = groups[g];
    const vfloat codes[2] = {round_to_integer(first * inverse), round_to_integer(second * inverse)};
    store(reinterpret_cast<i8*>(group.codes), codes[0]);
    store(reinterpret_cast<i8*>(group.codes + kLanes), codes[1]);
    const vfloat off = magnitude(first - codes[0] * scale) + magnitude(second - codes[1] * scale);
    group.scale = scale;
    group.negated_sum = static_cast<int32_t>(-8.0f * sum_lanes(codes[0] + codes[1]));
    const float slack = (0.5f + kRounding) * sum_lanes(magnitude(first) + magnitude(second)) + 8.0f * sum_lanes(off);
    group.slack = slack < kMostSlack ? slack : NAN;  // NaN is not below anything, so that every weight is read
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
  const uint32_t below = mask_of(most < least);  // NaN is not
  const int64_t left = call.rows - panel * kSieveRows;
  return ~below & (left >= kSieveRows ? 0xffff : (1u << left) - 1);
}

void pack_sieve(const uint16_t* weight, int64_t rows, int64_t columns, int64_t panel, uint8_t* sieve) {
  const int64_t num_groups = columns / kStep;
  for (int64_t g = 0; g < num_groups; ++g) {
    uint8_t* at = sieve + (panel * num_groups + g) * kSieveGroupBytes;
    memset(at, 0, kSieveGroupBytes);
    for (int r = 0; r < kSieveRows && panel * kSieveRows + r < rows; ++r) {
      const bf16* w = reinterpret_cast<const bf16*>(weight + (panel * kSieveRows + r) * columns + g * kStep);
      const vfloat values[2] = {load(w), load(w + kLanes)};
      vint most = as_int(magnitude(values[0]));  // as integers, NaN is the largest
      const vint other = as_int(magnitude(values[1]));
      const int32_t bits = max_lanes(other > most ? other : most);
      float largest;
      memcpy(&largest, &bits, sizeof largest);
      const __m128 wished = _mm_set_ss(largest / 7.5f);
      const uint16_t half = static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(wished, _MM_FROUND_TO_POS_INF), 0));
      memcpy(at + 2 * r, &half, 2);
      const float scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
      const bool has_codes = scale > 0 && scale < INFINITY;  // else they are 0, of weights of any size
      const float inverse = 1.0f / scale;
      for (int k = 0; k < kStep; ++k) {
        const float code = has_codes ? std::nearbyint(values[k / kLanes][k % kLanes] * inverse) + 8.0f : 8.0f;
        const uint8_t clamped = static_cast<uint8_t>(code > 15.0f ? 15.0f : code > 0.0f ? code : 0.0f);
        // quad j in the lower, quad j + 4 in the upper halves
        at[2 * kSieveRows + k / 4 % 4 * 64 + r * 4 + k % 4] |= k < kStep / 2 ? clamped : clamped << 4;
      }
    }
  }
}

}  // namespace

extern const DenseTable dense_avx512_bf16 = {prepare_row, multiply, multiply_one, make_sieve_groups, may_reach,
                                             pack_sieve};

}  // namespace octavo

#endif
