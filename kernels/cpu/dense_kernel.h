// The kernel's functions; see dense_product.h for the numerics.
#pragma once

#include "dense_product.h"

namespace octavo {

constexpr int64_t kMostInputs = 96;  // input rows that are multiplied at a time, so that the second cache keeps them

// A group of an input row as the sieve meets it.
struct SieveGroup {
  int8_t codes[kStep];
  float scale;
  int32_t negated_sum;  // -8 * sum of codes: codes of weights are offset by 8
  float slack;          // the most that an output is above what codes give, in units of the weights' scale
};

struct DenseTable {
  DType prepared;  // of the elements of a prepared row: bfloat16 or float32
  // Input row `row`, prepared, into `target`. `scratch` holds `columns` floats.
  void (*prepare)(const DenseCall& call, int64_t row, void* target, float* scratch);
  // Outputs of weight rows [first, last) for all input rows, at most kMostInputs; prepared ones `stride` elements apart.
  void (*multiply)(const DenseCall& call, const void* rows, int64_t stride, int64_t first, int64_t last);
  // Outputs of a panel of the sieve for one prepared row, as `multiply` has them: where bit i of `listed` is set, that of
  // weight row 16 * panel + i into outputs[i].
  void (*multiply_listed)(const DenseCall& call, const void* row, int64_t panel, uint32_t listed, float* outputs);
  void (*make_sieve_groups)(const void* row, int64_t columns, SieveGroup* groups);
  // Bit i is set where the output of weight row 16 * panel + i may be `least` or more.
  uint32_t (*may_reach)(const DenseCall& call, int64_t panel, const SieveGroup* groups, float least);
  // Writes the panel of the sieve.
  void (*pack_sieve)(const uint16_t* weight, int64_t rows, int64_t columns, int64_t panel, uint8_t* sieve);
};

#ifdef OCTAVO_X86
extern const DenseTable dense_avx2;
extern const DenseTable dense_avx512;
extern const DenseTable dense_avx512_bf16;
#endif

}  // namespace octavo
