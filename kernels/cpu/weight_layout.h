// Packing of weights into panels (see quantised_matrix.h), once, when a model is loaded.
#pragma once

#include <cstdint>

#include "quantised_matrix.h"

namespace octavo {

// Bytes of one row of `columns` weights as GGUF files store it; 0 where the kind has no such rows.
int64_t stored_row_bytes(WeightKind kind, int64_t columns);

// Packs rows [first_row, first_row + num_rows) of GGUF blocks. `first_row` is a multiple of kPanelRows; rows that the
// last panel lacks become zero.
void pack_stored_rows(const QuantisedMatrix& matrix, const uint8_t* rows, int64_t first_row, int64_t num_rows,
                      int64_t columns, int num_threads);

// Likewise, for rows of floats that are quantised here: to 8 bits or q4_0.
void pack_float_rows(const QuantisedMatrix& matrix, const float* rows, int64_t first_row, int64_t num_rows,
                     int64_t columns, int num_threads);

}  // namespace octavo
