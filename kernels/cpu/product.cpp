// C interface of products with quantised weights.
#include <algorithm>
#include <new>

#include "amx.h"
#include "argmax.h"
#include "dispatch.h"
#include "panels.h"
#include "quantised_matrix.h"
#include "stored_rows.h"
#include "weight_layout.h"

namespace octavo {
namespace {

const ProductTable* const* product_variants() {
  static const ProductTable* const table[] = {
      &products_portable,
#ifdef OCTAVO_X86
      &products_avx2,
      &products_avx512,
      &products_avx512_vnni,
      &products_avx512_vnni,
#endif
#ifdef OCTAVO_AMX
      &products_amx,
#endif
  };
  return table;
}

Status product(const ProductCall& call, const ProductTable& kernels, int num_threads) {
  const Panels panels(call);
  if (!panels.are_sound()) return bad_layout;
  const QuantisedRows rows = row_scratch.reserve(call.num_rows, call.columns);
  num_threads = threads_for(call, panels, num_threads);
  quantise(call, kernels, rows, num_threads);
  const RowBlocks blocks(rows);
  const int runs = parts_for(num_threads);
  Team::shared().run(num_threads, blocks.count() * runs, [&](int part) {
    const int64_t begin = blocks.start(part / runs), end = blocks.start(part / runs + 1);
    run_part(panels, part % runs, runs, [&](int, int64_t first, int64_t last) {
      for (int64_t panel = first; panel < last; ++panel) {
        panels.multiply(kernels, rows, begin, end, panel, call.output, call.output_stride);
      }
    });
  });
  return ok;
}

}  // namespace
}  // namespace octavo

using octavo::WeightKind;

OCTAVO_EXPORT int octavo_product_call_bytes() { return sizeof(octavo::ProductCall); }

// Bytes of a packed matrix, or -1 where `kind` cannot have so many columns.
OCTAVO_EXPORT int64_t octavo_packed_bytes(int kind, int64_t rows, int64_t columns) {
  const WeightKind weights = static_cast<WeightKind>(kind);
  if (!octavo::is_sound(weights, columns) || rows < 1) return -1;
  return octavo::num_panels(rows) * (octavo::panel_bytes(weights, columns) + octavo::lower_bytes(weights, columns));
}

OCTAVO_EXPORT int octavo_pack_stored_rows(const octavo::QuantisedMatrix* matrix, const uint8_t* rows, int64_t first_row,
                                          int64_t num_rows, int64_t columns, int num_threads) {
  const bool reads = octavo::stored_row_bytes(matrix->kind, columns) > 0;
  if (!reads || !octavo::is_sound(*matrix, columns) || first_row % octavo::kPanelRows) return octavo::bad_layout;
  octavo::pack_stored_rows(*matrix, rows, first_row, num_rows, columns, num_threads);
  return octavo::ok;
}

OCTAVO_EXPORT int octavo_pack_float_rows(const octavo::QuantisedMatrix* matrix, const float* rows, int64_t first_row,
                                         int64_t num_rows, int64_t columns, int num_threads) {
  const WeightKind kind = matrix->kind;
  const bool makes = kind == WeightKind::q8_0 || kind == WeightKind::q8_planes || kind == WeightKind::q4_1;
  if (!makes || !octavo::is_sound(*matrix, columns) || first_row % octavo::kPanelRows) return octavo::bad_layout;
  octavo::pack_float_rows(*matrix, rows, first_row, num_rows, columns, num_threads);
  return octavo::ok;
}

// `zeros` is null where there are none; see PublishedCodes.
OCTAVO_EXPORT int octavo_pack_codes(const octavo::QuantisedMatrix* matrix, const uint8_t* codes, const float* scales,
                                    const uint8_t* zeros, int64_t groups, int64_t first_row, int64_t num_rows,
                                    int64_t columns, int num_threads) {
  const octavo::Scaling scaling = octavo::traits_of(matrix->kind).scaling;
  const bool has_zeros = scaling == octavo::Scaling::zero;
  const bool takes = has_zeros || scaling == octavo::Scaling::whole || scaling == octavo::Scaling::power;
  if (!takes || (zeros != nullptr && !has_zeros)) return octavo::bad_layout;
  if (!octavo::is_sound(*matrix, columns) || first_row % octavo::kPanelRows) return octavo::bad_layout;
  if (groups < 1 || columns % groups || columns / groups % octavo::column_unit(matrix->kind)) return octavo::bad_layout;
  octavo::pack_published_rows(*matrix, {codes, scales, zeros, groups}, first_row, num_rows, columns, num_threads);
  return octavo::ok;
}

OCTAVO_EXPORT int octavo_product(int variant, int num_threads, const octavo::ProductCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  try {
    return octavo::product(*call, *octavo::product_variants()[variant], std::max(1, num_threads));
  } catch (const std::bad_alloc&) {
    return octavo::out_of_memory;
  }
}

// The place of the largest output of each input row, the first of equal ones; `output` of the call is not used.
OCTAVO_EXPORT int octavo_product_argmax(int variant, int num_threads, const octavo::ProductCall* call,
                                        int64_t* indices) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  try {
    return octavo::argmax(*call, *octavo::product_variants()[variant], std::max(1, num_threads), indices);
  } catch (const std::bad_alloc&) {
    return octavo::out_of_memory;
  }
}

// Rows `ids` of a matrix as float32 [num_ids, columns]; every id must be a row.
OCTAVO_EXPORT int octavo_unpack_rows(int variant, const octavo::QuantisedMatrix* matrix, int64_t columns,
                                     const int64_t* ids, int64_t num_ids, float* output) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  if (!octavo::is_sound(*matrix, columns)) return octavo::bad_layout;
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= matrix->rows) return octavo::bad_layout;
  }
  for (int64_t i = 0; i < num_ids; ++i) {
    octavo::product_variants()[variant]->unpack_row(*matrix, columns, ids[i], output + i * columns);
  }
  return octavo::ok;
}
