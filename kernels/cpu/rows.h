// Operations on rows of activations: what the C interface (rows.cpp) and the per-ISA kernels (row_kernel.cpp) agree on.
//
// All arithmetic is in float32 and rounded once, at the end. A row's bits depend on the row alone.
#pragma once

#include <cstdint>

#include "paged_attention.h"

namespace octavo {

// Arguments of one addition of rows; both are contiguous.
struct AddCall {
  void* sum;           // [num_rows, columns]
  const void* branch;  // likewise
  DType dtype;         // of both
  int64_t num_rows, columns;
  const float* weight;  // [columns]; null: the branch is added as it is
  float eps;
};

struct RowTable {
  // target = source / sqrt(mean(source^2) + eps) * weight, unless weight is null, then each element i < pairs turned
  // with element i + pairs by cosines and sines [pairs], unless these are null. 2 * pairs <= count; in floats.
  void (*prepare_head)(const void* source, DType dtype, float* target, int64_t count, const float* weight, float eps,
                       const float* cosines, const float* sines, int64_t pairs);
  // sum += branch / sqrt(mean(branch^2) + eps) * weight, or just branch where weight is null
  void (*add_normed)(void* sum, const void* branch, DType dtype, int64_t count, const float* weight, float eps);
};

extern const RowTable rows_portable;
#ifdef OCTAVO_X86
extern const RowTable rows_avx2;
extern const RowTable rows_avx512;
extern const RowTable rows_avx512_bf16;
#endif

}  // namespace octavo
