// Where the outputs of a panel go.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include "panel_vectors.h"
#include "quantised_matrix.h"

namespace octavo {
namespace {

// `count` outputs of each input row.
struct OutputTile {
  float* start;
  int64_t stride;
  int count;

  template <int kRows>
  inline __attribute__((always_inline)) void load(int64_t row, int num_rows, Float16* totals) const {
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      if (m < num_rows) totals[m] = load_lanes(start + (row + m) * stride, count);
    });
  }

  template <int kRows>
  inline __attribute__((always_inline)) void store(int64_t row, int num_rows, const Float16* totals) const {
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      if (m < num_rows) store_lanes(start + (row + m) * stride, totals[m], count);
    });
  }
};

// That of a panel, where `output` is that of input row 0 and of the matrix's first row.
inline OutputTile output_tile_of(const QuantisedMatrix& matrix, int64_t index, float* output, int64_t stride) {
  const int64_t left = matrix.rows - index * kPanelRows;
  return {output + index * kPanelRows, stride, left < kPanelRows ? static_cast<int>(left) : kPanelRows};
}

}  // namespace
}  // namespace octavo
