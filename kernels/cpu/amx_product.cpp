// Products with quantised weights by AMX, compiled for the vectors of AVX-512 with VNNI: see amx_product.h.
#include "amx_product.h"

void octavo::multiply_panel_by_tiles(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows,
                                     int64_t first, int64_t last, float* output, int64_t output_stride) {
  multiply_panel_by<AmxTiles>(matrix, index, rows, first, last, output, output_stride);
}
