// Products with weights of bfloat16: what the C interface (dense_product.cpp) and the kernel (dense_kernel.cpp) agree on.
//
// Weights lie row by row, as they come. An input row is prepared in float32. Where an instruction multiplies pairs of
// bfloat16 numbers (dense_pairs.h), it is rounded to bfloat16 once, and an output adds products in float32, 32 columns to
// 16 partial sums at a time. Elsewhere (dense_floats.h) it stays as it is, and products are added to as many partial sums
// as a vector has lanes. Both go in ascending order and then add the partial sums. So the bits of an output row depend on
// its input row alone, whatever the batch and the threads.
//
// The largest output of a row is found with the help of a sieve: the weights once more, in 4 bits, 32 columns to a
// scale s. A weight is off by at most s / 2 there, so that an output is at most what 4 bits give plus the sum over groups
// of s * (sum of |inputs| / 2). Weights whose most is below the largest output seen so far are not read at all.
#pragma once

#include <cstdint>

#include "paged_attention.h"
#include "quantised_matrix.h"

namespace octavo {

constexpr int kStep = 32;  // columns that are multiplied at a time, and that share a scale of the sieve
constexpr int kSieveRows = 16;  // weights rows to a panel of the sieve
constexpr int kSieveGroupBytes = kSieveRows * (2 + kStep / 2);  // a half and 32 nibbles a row

inline int64_t sieve_bytes(int64_t rows, int64_t columns) {
  return (rows + kSieveRows - 1) / kSieveRows * (columns / kStep) * kSieveGroupBytes;
}

// Arguments of one product: output row m = weight x (input row m as `prologue` makes it) + bias.
struct DenseCall {
  const void* input;  // [num_rows, columns], or 2 * columns for gated prologues
  int64_t input_stride;
  DType input_dtype;  // float32 or bfloat16
  Prologue prologue;
  const float* norm_weight;
  float norm_eps;
  DType output_dtype;  // float32 or bfloat16
  const void* weight;  // bfloat16 [rows, columns]
  const void* bias;    // bfloat16 [rows], or null
  int64_t num_rows, rows, columns;
  void* output;  // [num_rows, rows]
  const uint8_t* sieve;  // of the weight, or null
};

}  // namespace octavo
