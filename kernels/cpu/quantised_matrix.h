// Quantised weights as the products read them, and what the packing (weight_layout.cpp), the C interface (product.cpp)
// and the per-ISA kernels (product_kernel.cpp) agree on.
//
// A matrix [rows, columns] is cut into panels of 16 rows, a panel into groups of 32 columns. A group's codes lie in the
// order in which the inner loop reads them: 8 quads, each 16 rows x 4 columns, so that one 64-byte vector times one
// broadcast quad of the input adds to 16 rows at once. Weights keep the bits they have in GGUF files:
//
//   kind   codes of a group (bytes)                    a weight is                     scales of a panel
//   q8_0   512: one byte, offset by 128                s * (c - 128)                   s: half per row and group
//   q8_planes  256, and 256 elsewhere: as q8_0, upper and lower nibbles apart          s: half per row and group
//   q5_0   256 + 64: low nibbles, then fifth bits      s * (c - 16)                    s: half per row and group
//   q4_0   256: nibbles                                s * (c - 8)                     s: half per row and group
//   q4_k   256: nibbles                                d * a * c - e * b               a, b: byte per row and group;
//                                                                                      d, e: float per row and 8 groups
//   q6_k   256 + 128: low nibbles, then upper 2 bits   d * a * (c - 32)                a: byte per row and 16 columns;
//                                                                                      d: float per row and 8 groups
//
// A byte of nibbles holds quad j in its low and quad j + 4 in its high half. A panel is its scales, padded to 64 bytes,
// then its codes. Rows beyond the last are zero. The lower nibbles of q8_planes follow the last panel, in the order of
// panels: the largest output is found by reading few of them (see argmax.cpp).
//
// Numerics contract. An input row is quantised by itself: int8 codes and one scale per 32 columns, as llama.cpp does.
// Products of codes are summed exactly in 32-bit integers, groups in float32 in ascending order. So the bits of an
// output row depend on its input row alone, whatever the batch, the threads and, but for the rounding of fused
// multiply-adds, the instruction set.
#pragma once

#include <cstdint>

#include "paged_attention.h"

namespace octavo {

enum class WeightKind : int32_t { q8_0 = 0, q5_0 = 1, q4_0 = 2, q4_k = 3, q6_k = 4, q8_planes = 5 };

constexpr int kPanelRows = 16;
constexpr int kGroup = 32;       // columns that share a scale
constexpr int kSuperGroups = 8;  // groups that share the outer scales of q4_k and q6_k

constexpr bool has_outer_scales(WeightKind kind) { return kind == WeightKind::q4_k || kind == WeightKind::q6_k; }

constexpr bool has_bytes(WeightKind kind) { return kind == WeightKind::q8_0 || kind == WeightKind::q8_planes; }

constexpr int64_t code_bytes(WeightKind kind) {  // of a group of a panel
  return kind == WeightKind::q8_0 ? 512 : kind == WeightKind::q5_0 ? 320 : kind == WeightKind::q6_k ? 384 : 256;
}

constexpr int64_t scale_bytes(WeightKind kind, int64_t columns) {  // of a panel, padded
  const int64_t groups = columns / kGroup;
  int64_t bytes = groups * 2 * kPanelRows;  // a half, or two bytes, per row and group
  if (kind == WeightKind::q4_k) bytes += groups / kSuperGroups * 8 * kPanelRows;
  if (kind == WeightKind::q6_k) bytes += groups / kSuperGroups * 4 * kPanelRows;
  return (bytes + 63) / 64 * 64;
}

constexpr int64_t panel_bytes(WeightKind kind, int64_t columns) {
  return scale_bytes(kind, columns) + columns / kGroup * code_bytes(kind);
}

constexpr int64_t lower_bytes(WeightKind kind, int64_t columns) {  // of a panel, beyond the last
  return kind == WeightKind::q8_planes ? columns / kGroup * 256 : 0;
}

constexpr int64_t num_panels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

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
  // What takes the offset of weights' codes back: -sum of the input's codes, times it.
  int32_t minus_8, minus_16, minus_128;
  int32_t minus_32_first, minus_32_second;  // of the two halves of the columns

  int32_t negated_sum() const { return minus_8 / 8; }
};

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

struct ProductTable {
  // Applies the prologue to input row `row` and quantises it. `scratch` holds 2 * `columns` floats.
  void (*quantise_row)(const ProductCall& call, int64_t row, const QuantisedRows& rows, float* scratch);
  // Multiplies panel `panel` of `matrix` with input rows [first, last), which are whole tiles; `output` is that of input
  // row 0 and of the matrix's first row.
  void (*multiply_panel)(const QuantisedMatrix& matrix, int64_t panel, const QuantisedRows& rows, int64_t first,
                         int64_t last, float* output, int64_t output_stride);
  // Whether an output of a panel of q8_planes may be `least` or more, by its upper nibbles alone. `slack` [groups] is the
  // most that lower nibbles add to or take from a group of input row `row`, in units of the weights' scale.
  bool (*may_reach)(const QuantisedMatrix& matrix, int64_t panel, const QuantisedRows& rows, int64_t row,
                    const float* slack, float least);
  // The weights of one row, as float32.
  void (*unpack_row)(const QuantisedMatrix& matrix, int64_t columns, int64_t row, float* output);
};

extern const ProductTable products_portable;
#ifdef OCTAVO_X86
extern const ProductTable products_avx2;
extern const ProductTable products_avx512;
extern const ProductTable products_avx512_bf16;
#endif

}  // namespace octavo
