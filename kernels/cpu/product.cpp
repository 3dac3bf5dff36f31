// C interface of products with quantised weights: checks sizes, shares the panels out among OpenMP threads.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "dispatch.h"
#include "quantised_matrix.h"
#include "weight_layout.h"

namespace octavo {
namespace {

constexpr int64_t kSerialRows = 4;           // input rows that are prepared faster than threads wake
constexpr int64_t kSerialCodes = 1 << 16;    // weights that are multiplied faster than threads wake

const ProductTable* const* product_variants() {
  static const ProductTable* const table[] = {
      &products_portable,
#ifdef OCTAVO_X86
      &products_avx2,
      &products_avx512,
      &products_avx512_bf16,
#endif
  };
  return table;
}

bool is_sound(WeightKind kind, int64_t columns) {
  const int32_t number = static_cast<int32_t>(kind);
  if (number < 0 || number > 4 || columns < kGroup) return false;
  return columns % (has_outer_scales(kind) ? kGroup * kSuperGroups : kGroup) == 0;
}

// The calling thread's memory for quantised rows, kept for its next call.
class RowScratch {
 public:
  ~RowScratch() { std::free(data_); }

  QuantisedRows reserve(int64_t num_rows, int64_t columns) {
    const int64_t groups = columns / kGroup;
    const int64_t code_bytes = (num_rows * columns + 63) / 64 * 64, scale_bytes = (num_rows * groups * 4 + 63) / 64 * 64;
    const int64_t bytes = code_bytes + 2 * scale_bytes;
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return {reinterpret_cast<int8_t*>(data_), reinterpret_cast<float*>(data_ + code_bytes),
            reinterpret_cast<int32_t*>(data_ + code_bytes + scale_bytes), columns};
  }

 private:
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local RowScratch row_scratch;
thread_local std::vector<float> float_scratch;

float* reserve_floats(int64_t count) {
  if (static_cast<int64_t>(float_scratch.size()) < count) float_scratch.resize(count);
  return float_scratch.data();
}

Status product(const ProductCall& call, const ProductTable& kernels, int num_threads) {
  int64_t num_panels = 0;
  std::vector<int64_t> first_panels, first_rows;
  int64_t rows_before = 0;
  for (int m = 0; m < call.num_matrices; ++m) {
    const QuantisedMatrix& matrix = call.matrices[m];
    if (!is_sound(matrix.kind, call.columns) || matrix.rows < 1) return bad_layout;
    first_panels.push_back(num_panels);
    first_rows.push_back(rows_before);
    num_panels += (matrix.rows + kPanelRows - 1) / kPanelRows;
    rows_before += matrix.rows;
  }
  const QuantisedRows rows = row_scratch.reserve(call.num_rows, call.columns);
  if (num_panels * kPanelRows * call.columns < kSerialCodes) num_threads = 1;
  const bool parallel_rows = num_threads > 1 && call.num_rows > kSerialRows;
  if (!parallel_rows) {
    float* scratch = reserve_floats(call.columns);
    for (int64_t row = 0; row < call.num_rows; ++row) kernels.quantise_row(call, row, rows, scratch);
  }
  const auto multiply = [&](int64_t index) {
    int m = call.num_matrices - 1;
    while (first_panels[m] > index) --m;
    kernels.multiply_panel(call.matrices[m], index - first_panels[m], rows, call.num_rows,
                           call.output + first_rows[m], call.output_stride);
  };
  if (num_threads <= 1) {
    for (int64_t index = 0; index < num_panels; ++index) multiply(index);
    return ok;
  }
#pragma omp parallel num_threads(num_threads)
  {
    if (parallel_rows) {
      float* scratch = reserve_floats(call.columns);
#pragma omp for schedule(static)
      for (int64_t row = 0; row < call.num_rows; ++row) kernels.quantise_row(call, row, rows, scratch);
    }
#pragma omp for schedule(static) nowait
    for (int64_t index = 0; index < num_panels; ++index) multiply(index);
  }
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
  return (rows + octavo::kPanelRows - 1) / octavo::kPanelRows * octavo::panel_bytes(weights, columns);
}

OCTAVO_EXPORT int octavo_pack_stored_rows(int kind, const uint8_t* rows, int64_t first_row, int64_t num_rows,
                                          int64_t columns, uint8_t* panels, int num_threads) {
  const WeightKind weights = static_cast<WeightKind>(kind);
  if (!octavo::is_sound(weights, columns) || first_row % octavo::kPanelRows) return octavo::bad_layout;
  octavo::pack_stored_rows(weights, rows, first_row, num_rows, columns, panels, num_threads);
  return octavo::ok;
}

OCTAVO_EXPORT int octavo_pack_float_rows(int kind, const float* rows, int64_t first_row, int64_t num_rows,
                                         int64_t columns, uint8_t* panels, int num_threads) {
  const WeightKind weights = static_cast<WeightKind>(kind);
  const bool makes = weights == WeightKind::q8_0 || weights == WeightKind::q4_0;
  if (!makes || !octavo::is_sound(weights, columns) || first_row % octavo::kPanelRows) return octavo::bad_layout;
  octavo::pack_float_rows(weights, rows, first_row, num_rows, columns, panels, num_threads);
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

// Rows `ids` of a matrix as float32 [num_ids, columns]; every id must be a row.
OCTAVO_EXPORT int octavo_unpack_rows(int variant, const octavo::QuantisedMatrix* matrix, int64_t columns,
                                     const int64_t* ids, int64_t num_ids, float* output) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  if (!octavo::is_sound(matrix->kind, columns)) return octavo::bad_layout;
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= matrix->rows) return octavo::bad_layout;
  }
  for (int64_t i = 0; i < num_ids; ++i) {
    octavo::product_variants()[variant]->unpack_row(*matrix, columns, ids[i], output + i * columns);
  }
  return octavo::ok;
}
