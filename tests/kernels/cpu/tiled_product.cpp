// A library of a test: products with quantised weights by AMX, whose instructions tile_model.h stands in for.
#include "amx.h"
#include "amx_product.h"
#include "dispatch.h"
#include "input_row.h"
#include "panels.h"
#include "tile_model.h"

namespace octavo {
namespace {

std::atomic<int> panels_for_vectors{0};

// In the place of vectors: tiles that are never wrong.
void multiply_panel_by_vectors(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first,
                               int64_t last, float* output, int64_t output_stride) {
  ++panels_for_vectors;
  const int error = tile_error.exchange(0);
  multiply_panel_by<ModelTiles>(matrix, index, rows, first, last, output, output_stride);
  tile_error = error;
}

}  // namespace

void multiply_panel_by_tiles(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first,
                             int64_t last, float* output, int64_t output_stride) {
  multiply_panel_by<ModelTiles>(matrix, index, rows, first, last, output, output_stride);
}

extern const ProductTable products_avx512_vnni = {quantise_row, multiply_panel_by_vectors, nullptr, nullptr};

}  // namespace octavo

using namespace octavo;

// Any codes, and scales of any small numbers.
OCTAVO_EXPORT void draw_panels(const QuantisedMatrix* matrix, int64_t columns, uint32_t seed) {
  const auto noise = [&] { return (seed = seed * 1664525 + 1013904223) >> 16; };
  const WeightKind kind = matrix->kind;
  for (int64_t panel = 0; panel < num_panels(matrix->rows); ++panel) {
    uint8_t* start = matrix->panel(panel, columns);
    for (int64_t i = 0; i < panel_bytes(kind, columns); ++i) {
      start[i] = static_cast<uint8_t>(i < scale_bytes(kind, columns) ? 32 + noise() % 32 : noise());
    }
    uint8_t* lower = matrix->lower(panel, columns);
    for (int64_t i = 0; i < lower_bytes(kind, columns); ++i) lower[i] = static_cast<uint8_t>(noise());
  }
}

OCTAVO_EXPORT void tiled_product(const ProductCall* call, int num_threads) {
  const Panels panels(*call);
  const QuantisedRows rows = row_scratch.reserve(call->num_rows, call->columns);
  quantise(*call, products_amx, rows, num_threads);
  run_parts(panels, num_threads, parts_for(num_threads), [&](int, int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; ++panel) {
      panels.multiply(products_amx, rows, 0, call->num_rows, panel, call->output, call->output_stride);
    }
  });
}

OCTAVO_EXPORT int tiles_agree_when_off_by(int error) {
  tile_error = error;
  const bool agree = tiles_agree();
  tile_error = 0;
  return agree;
}

OCTAVO_EXPORT int take_tile_faults() { return tile_faults.exchange(0); }
OCTAVO_EXPORT int take_panels_for_vectors() { return panels_for_vectors.exchange(0); }
OCTAVO_EXPORT int are_tiles_configured() { return ModelTiles::state().is_configured; }
