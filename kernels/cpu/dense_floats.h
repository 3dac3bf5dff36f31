// Products of bfloat16 weights as floats, where no instruction multiplies bfloat16 numbers.
//
// A weight is widened by a shift. For few input rows that is done beside the products, on units that wait for memory or
// have nothing to multiply; for more, a panel's weights are widened once into the first cache, a block of columns at a
// time, and all input rows pass over them. Both add the same products in the same order: a sum that waits for its next
// columns keeps its lanes.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include "dense_outputs.h"

namespace octavo {
namespace {

using Input = float;  // an element of a prepared row

constexpr int kInputBlock = kLanes == 16 ? 6 : 3;  // input rows of a register block: sums leave registers for operands
constexpr int64_t kDirectInputs = 16;              // up to which weights are widened beside the products
constexpr int kPanelBlocks = 2;                    // register blocks of weights that are widened at a time
constexpr int kPanelWeights = kPanelBlocks * kWeightBlock;
constexpr int64_t kMostColumns = 640;  // of a block of columns: a panel of them takes 20 KiB of the first cache

template <int kInputs>
using Sums = vfloat[kInputs][kWeightBlock];

inline void store_inputs(const float* prepared, int64_t columns, Input* target) {
  memcpy(target, prepared, sizeof(float) * columns);
}

inline const bf16* as_bf16(const uint16_t* weights) { return reinterpret_cast<const bf16*>(weights); }

// Adds products of `kColumns` columns from `i` on, weights of row w from weights(w).
template <int kColumns, int kInputs, class Weights>
inline void add_products(Sums<kInputs>& sums, const Weights& weights, const float* rows, int64_t stride, int64_t i) {
#pragma GCC unroll 4
  for (int k = 0; k < kColumns; k += kLanes) {
    vfloat x[kInputs];
#pragma GCC unroll 6
    for (int m = 0; m < kInputs; ++m) x[m] = load(rows + m * stride + i + k);
#pragma GCC unroll 4
    for (int w = 0; w < kWeightBlock; ++w) {
      const vfloat weight = load(weights(w) + i + k);
#pragma GCC unroll 6
      for (int m = 0; m < kInputs; ++m) sums[m][w] = fma(x[m], weight, sums[m][w]);
    }
  }
}

template <int kInputs>
inline void copy(const Sums<kInputs>& source, Sums<kInputs>& target) {
#pragma GCC unroll 6
  for (int m = 0; m < kInputs; ++m) {
#pragma GCC unroll 4
    for (int w = 0; w < kWeightBlock; ++w) target[m][w] = source[m][w];
  }
}

template <int kInputs>
inline void store_sums(const DenseCall& call, const Sums<kInputs>& sums, int64_t input, int64_t first, int count) {
#pragma GCC unroll 6
  for (int m = 0; m < kInputs; ++m) {
    store_outputs(call, sum_lanes(sums[m][0], sums[m][1], sums[m][2], sums[m][3]), input + m, first, count);
  }
}

// Calls work(number, input) for all input rows in register blocks of about the same size, `number` as a constant.
template <class Work>
inline void for_input_blocks(int64_t num_rows, const Work& work) {
  int64_t blocks = (num_rows + kInputBlock - 1) / kInputBlock;
  for (int64_t input = 0; blocks > 0; --blocks) {
    const int64_t number = (num_rows - input + blocks - 1) / blocks;
    switch (number) {
      case 1: work(std::integral_constant<int, 1>(), input); break;
      case 2: work(std::integral_constant<int, 2>(), input); break;
      case 3: work(std::integral_constant<int, 3>(), input); break;
#if defined(__AVX512F__)
      case 4: work(std::integral_constant<int, 4>(), input); break;
      case 5: work(std::integral_constant<int, 5>(), input); break;
      case 6: work(std::integral_constant<int, 6>(), input); break;
#endif
      default: break;
    }
    input += number;
  }
}

void multiply_directly(const DenseCall& call, const float* rows, int64_t stride, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row += kWeightBlock) {
    const WeightBlock block(call, row, last);
    const bf16* const weights[] = {as_bf16(block.rows[0]), as_bf16(block.rows[1]), as_bf16(block.rows[2]),
                                   as_bf16(block.rows[3])};
    for_input_blocks(call.num_rows, [&](auto number, int64_t input) {
      constexpr int kInputs = decltype(number)::value;
      Sums<kInputs> sums;
      copy<kInputs>({}, sums);
      for (int64_t i = 0; i < call.columns; i += kStep) {
#pragma GCC unroll 4
        for (int w = 0; w < kWeightBlock; ++w) {
          __builtin_prefetch(reinterpret_cast<const char*>(weights[w] + i) + kAhead, 0, 3);
        }
        add_products<kStep, kInputs>(sums, [&](int w) { return weights[w]; }, rows + input * stride, stride, i);
      }
      store_sums<kInputs>(call, sums, input, block.first, block.count);
    });
  }
}

// Columns of `kPanelWeights` weight rows as floats, and the sums that wait for the next ones.
struct WidePanel {
  alignas(64) float weights[kPanelWeights * kMostColumns];
  vfloat sums[kPanelBlocks][kMostInputs][kWeightBlock];

  void widen(const DenseCall& call, int64_t first, int64_t last, int64_t start, int64_t columns) {
    for (int w = 0; w < kPanelWeights; ++w) {
      const bf16* source = as_bf16(weight_row(call, std::min(first + w, last - 1))) + start;
      float* target = weights + w * kMostColumns;
      for (int64_t i = 0; i < columns; i += kStep) {
        __builtin_prefetch(reinterpret_cast<const char*>(source + i) + kAhead, 0, 3);
#pragma GCC unroll 4
        for (int k = 0; k < kStep; k += kLanes) store(target + i + k, load(source + i + k));
      }
    }
  }
};

void multiply_widened(const DenseCall& call, const float* rows, int64_t stride, int64_t first, int64_t last) {
  WidePanel panel;
  const int64_t steps = call.columns / kStep, parts = (call.columns + kMostColumns - 1) / kMostColumns;
  for (int64_t row = first; row < last; row += kPanelWeights) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t start = steps * part / parts * kStep, columns = steps * (part + 1) / parts * kStep - start;
      panel.widen(call, row, last, start, columns);
      for_input_blocks(call.num_rows, [&](auto number, int64_t input) {
        constexpr int kInputs = decltype(number)::value;
        const float* x = rows + input * stride + start;
        for (int b = 0; b < kPanelBlocks && row + b * kWeightBlock < last; ++b) {
          const float* weights = panel.weights + b * kWeightBlock * kMostColumns;
          auto& waiting = reinterpret_cast<Sums<kInputs>&>(panel.sums[b][input]);
          Sums<kInputs> sums;
          if (part == 0) {
            copy<kInputs>({}, sums);
          } else {
            copy<kInputs>(waiting, sums);
          }
          for (int64_t i = 0; i < columns; i += kLanes) {
            add_products<kLanes, kInputs>(sums, [&](int w) { return weights + w * kMostColumns; }, x, stride, i);
          }
          if (part + 1 < parts) {
            copy<kInputs>(sums, waiting);
          } else {
            const int64_t place = row + b * kWeightBlock;
            const int count = static_cast<int>(std::min<int64_t>(kWeightBlock, last - place));
            store_sums<kInputs>(call, sums, input, place, count);
          }
        }
      });
    }
  }
}

void multiply(const DenseCall& call, const void* prepared, int64_t stride, int64_t first, int64_t last) {
  const Input* rows = static_cast<const Input*>(prepared);
  if (call.num_rows <= kDirectInputs) return multiply_directly(call, rows, stride, first, last);
  multiply_widened(call, rows, stride, first, last);
}

// Four at a time, so that no product waits for the one before.
void multiply_listed(const DenseCall& call, const void* prepared, int64_t panel, uint32_t listed, float* outputs) {
  const Input* row = static_cast<const Input*>(prepared);
  while (listed != 0) {
    int places[kWeightBlock];
    const bf16* weights[kWeightBlock];
    for (int w = 0; w < kWeightBlock; ++w) {
      places[w] = listed == 0 ? places[w - 1] : __builtin_ctz(listed);
      weights[w] = as_bf16(weight_row(call, panel * kSieveRows + places[w]));
      listed &= listed - 1;
    }
    Sums<1> sums = {};
    for (int64_t i = 0; i < call.columns; i += kStep) {
      add_products<kStep, 1>(sums, [&](int w) { return weights[w]; }, row, 0, i);
    }
    const vfloat4 four = sum_lanes(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
    for (int w = 0; w < kWeightBlock; ++w) outputs[places[w]] = four[w];
  }
}

uint32_t may_reach(const DenseCall& call, int64_t panel, const SieveGroup* groups, float least) {
  const int64_t num_groups = call.columns / kStep;
  const uint8_t* at = call.sieve + panel * num_groups * kSieveGroupBytes;
  const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256 most[2] = {};  // of 8 weight rows each
  for (int64_t g = 0; g < num_groups; ++g, at += kSieveGroupBytes) {
    const SieveGroup& group = groups[g];
    // 16 products of a nibble and a code to a lane of 16 bits: at most 16 * 15 * 127
    __m256i sums[2] = {};
    const uint8_t* nibbles = at + 2 * kSieveRows;
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
      __builtin_prefetch(nibbles + quad * 64 + kAhead, 0, 3);
      int32_t codes[2];
      memcpy(codes, group.codes + quad * 4, 4);
      memcpy(codes + 1, group.codes + (quad + 4) * 4, 4);
      const __m256i first = _mm256_set1_epi32(codes[0]), second = _mm256_set1_epi32(codes[1]);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(nibbles + quad * 64 + half * 32));
        const __m256i lower = _mm256_maddubs_epi16(_mm256_and_si256(both, nibble), first);
        const __m256i upper = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(both, 4), nibble), second);
        sums[half] = _mm256_add_epi16(sums[half], _mm256_add_epi16(lower, upper));
      }
    }
    const __m256 scale = _mm256_set1_ps(group.scale), slack = _mm256_set1_ps(group.slack);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i dot = _mm256_add_epi32(_mm256_madd_epi16(sums[half], ones), _mm256_set1_epi32(group.negated_sum));
      const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + half * 16));
      most[half] = _mm256_fmadd_ps(_mm256_cvtph_ps(scales), _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, slack),
                                   most[half]);
    }
  }
  const __m256 limit = _mm256_set1_ps(least);
  const uint32_t first = _mm256_movemask_ps(_mm256_cmp_ps(most[0], limit, _CMP_LT_OQ));
  const uint32_t second = _mm256_movemask_ps(_mm256_cmp_ps(most[1], limit, _CMP_LT_OQ));
  return rows_that_reach(call, panel, first | second << 8);
}

}  // namespace
}  // namespace octavo
