// Quantised weights as the products read them, and what the packing (weight_layout.cpp), the C interface (product.cpp)
// and the per-ISA kernels (product_kernel.cpp) agree on. The bits of weights are those of weight_kind.h.
//
// Numerics contract. An input row is quantised by itself: int8 codes and one scale per 32 columns, as llama.cpp does.
// Products of codes are summed exactly in 32-bit integers, those of codes that are floats and all groups in float32, in
// a fixed order. So the bits of an
// output row depend on its input row alone, whatever the batch, the threads and, but for the rounding of fused
// multiply-adds, the instruction set.
#pragma once

#include <cstdint>

#include "paged_attention.h"
#include "weight_kind.h"

namespace octavo {

struct QuantisedMatrix {
  uint8_t* panels;
  int64_t rows;
  WeightKind kind;

  uint8_t* panel(int64_t index, int64_t columns) const { return panels + index * panel_bytes(kind, columns); }
  uint8_t* lower(int64_t index, int64_t columns) const {
    return panel(num_panels(rows), columns) + index * lower_bytes(kind, columns);
  }
};

// What is done to an input row before it is quantised.
enum class Prologue : int32_t {
  none = 0,
  rms_norm = 1,   // x / sqrt(mean(x^2) + eps) * weight
  silu = 2,       // silu(x[:columns]) * x[columns:]
  gelu_tanh = 3,  // likewise
};

// Arguments of one product: output row m = the rows of all matrices, one after the other, times the input row m.
struct ProductCall {
  const void* input;  // [num_rows, columns], or 2 * columns for gated prologues
  int64_t input_stride;
  DType input_dtype;  // float32 or bfloat16
  Prologue prologue;
  const float* norm_weight;
  float norm_eps;
  int32_t num_matrices;
  const QuantisedMatrix* matrices;
  int64_t num_rows;
  int64_t columns;
  float* output;  // [num_rows, sum of rows]
  int64_t output_stride;
};

// A group of an input row, in a cache line of its own.
struct alignas(64) InputGroup {
  int8_t codes[kGroup];
  float scale;
  float correction;  // -scale * sum of codes
  // What takes the offset of weights' codes back: -sum of the input's codes, times it. Those of 8, 16 and 32 are, where
  // products are added up by pairs in 16 bits, two numbers for even and odd pairs (input_row.h).
  int32_t minus_8, minus_16, minus_128;
  int32_t minus_32_first, minus_32_second;  // of the two halves of the columns
  int32_t minus_1;
};
static_assert(sizeof(InputGroup) == 64);

constexpr int kTileRows = 8;  // input rows that are multiplied together

// Input rows as the panels meet them, by tiles of rows: a tile is one run of memory, in which each group of its rows
// follows the one before. The last tile has the rows that are left.
struct QuantisedRows {
  InputGroup* groups;
  int64_t num_rows;
  int64_t columns;

  int64_t num_groups() const { return columns / kGroup; }
  int64_t size() const { return num_rows * num_groups(); }
  int tile_rows(int64_t first) const {
    return static_cast<int>(num_rows - first < kTileRows ? num_rows - first : kTileRows);
  }
  const InputGroup* tile(int64_t first) const { return groups + first * num_groups(); }
  InputGroup& at(int64_t row, int64_t group) const {
    const int64_t first = row / kTileRows * kTileRows;
    return groups[first * num_groups() + group * tile_rows(first) + row - first];
  }
};

constexpr int kMostAsked = 32;

struct ProductTable {
  // Applies the prologue to input row `row` and quantises it. `scratch` holds 2 * `columns` floats.
  void (*quantise_row)(const ProductCall& call, int64_t row, const QuantisedRows& rows, float* scratch);
  // Multiplies panel `panel` of `matrix` with input rows [first, last), which are whole tiles; `output` is that of input
  // row 0 and of the matrix's first row.
  void (*multiply_panel)(const QuantisedMatrix& matrix, int64_t panel, const QuantisedRows& rows, int64_t first,
                         int64_t last, float* output, int64_t output_stride);
  // Of input rows [first, last), kMostAsked at most, those (bit 0 the first) for which an output of a panel of q8_planes
  // may be `least` [last - first] or more, by its upper nibbles alone. `slack` [num_rows, groups] is the most that lower
  // nibbles add to or take from a group of an input row, in units of the weights' scale.
  uint32_t (*may_reach)(const QuantisedMatrix& matrix, int64_t panel, const QuantisedRows& rows, int64_t first,
                        int64_t last, const float* slack, const float* least);
  // The weights of one row, as float32.
  void (*unpack_row)(const QuantisedMatrix& matrix, int64_t columns, int64_t row, float* output);
  // Input rows up to which asking first is faster than multiplying all.
  int64_t most_sieved;
};

extern const ProductTable products_portable;
#ifdef OCTAVO_X86
extern const ProductTable products_avx2;
extern const ProductTable products_avx512;
extern const ProductTable products_avx512_vnni;
#endif

}  // namespace octavo
