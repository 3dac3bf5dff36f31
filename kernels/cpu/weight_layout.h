// Packing of weights into panels (see weight_kind.h), once, when a model is loaded.
#pragma once

#include <cstdint>

#include "quantised_matrix.h"

namespace octavo {

// Packs rows [first_row, first_row + num_rows) of GGUF blocks. `first_row` is a multiple of kPanelRows; rows that the
// last panel lacks become zero.
void pack_stored_rows(const QuantisedMatrix& matrix, const uint8_t* rows, int64_t first_row, int64_t num_rows,
                      int64_t columns, int num_threads);

// Likewise, for rows of floats that are quantised here: to 8 bits or q4_0.
void pack_float_rows(const QuantisedMatrix& matrix, const float* rows, int64_t first_row, int64_t num_rows,
                     int64_t columns, int num_threads);

// Codes as checkpoints publish them, one a byte: a weight is scale * (code - zero).
struct PublishedCodes {
  const uint8_t* codes;  // [num_rows, columns]; signed for codes8 and mxfp4, of which they are 2 * values
  const float* scales;   // [num_rows, groups]; powers of two for mxfp4
  const uint8_t* zeros;  // [num_rows, groups]; null: 0, or a kind without
  int64_t groups;        // of columns / groups columns each, a multiple of the kind's unit
};

// Likewise, of codes that are kept as they are: for codes4, codes8, fp8 and mxfp4, which they must fit.
void pack_published_rows(const QuantisedMatrix& matrix, const PublishedCodes& rows, int64_t first_row, int64_t num_rows,
                         int64_t columns, int num_threads);

}  // namespace octavo
