// C interface of products with quantised weights: checks sizes, shares the panels out among OpenMP threads.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "dispatch.h"
#include "quantised_matrix.h"
#include "weight_layout.h"

namespace octavo {
namespace {

constexpr int64_t kSerialRows = 4;           // input rows that are prepared faster than threads wake
constexpr int64_t kSerialCodes = 1 << 16;    // weights that are multiplied faster than threads wake
constexpr int kPartsPerThread = 8;
constexpr int kRowsPerTurn = 4;

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
    const int64_t code_bytes = (num_rows * columns + 63) / 64 * 64;
    const int64_t bytes = code_bytes + (num_rows * groups * sizeof(InputGroup) + 63) / 64 * 64;
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return {reinterpret_cast<int8_t*>(data_), reinterpret_cast<InputGroup*>(data_ + code_bytes), columns};
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

// The panels of all matrices of a call, numbered through.
class Panels {
 public:
  explicit Panels(const ProductCall& call) : call_(call) {
    for (int m = 0; m < call.num_matrices; ++m) {
      const QuantisedMatrix& matrix = call.matrices[m];
      is_sound_ = is_sound_ && is_sound(matrix.kind, call.columns) && matrix.rows >= 1;
      first_panels_.push_back(count_);
      first_rows_.push_back(num_outputs_);
      count_ += (matrix.rows + kPanelRows - 1) / kPanelRows;
      num_outputs_ += matrix.rows;
    }
  }

  bool are_sound() const { return is_sound_; }
  int64_t count() const { return count_; }

  // Output rows [first, first + count) that a panel gives.
  struct Outputs {
    int64_t first;
    int count;
  };

  // Multiplies a panel into its place in `output`, the start of an output row of `stride` floats.
  Outputs multiply(const ProductTable& kernels, const QuantisedRows& rows, int64_t panel, float* output,
                   int64_t stride) const {
    const int m = matrix_of(panel);
    const int64_t index = panel - first_panels_[m], first = first_rows_[m] + index * kPanelRows;
    kernels.multiply_panel(call_.matrices[m], index, rows, call_.num_rows, output + first_rows_[m], stride);
    return {first, static_cast<int>(std::min<int64_t>(kPanelRows, call_.matrices[m].rows - index * kPanelRows))};
  }

  // Output row of the panel's first weight row.
  int64_t first_output(int64_t panel) const {
    const int m = matrix_of(panel);
    return first_rows_[m] + (panel - first_panels_[m]) * kPanelRows;
  }

 private:
  int matrix_of(int64_t panel) const {
    int m = call_.num_matrices - 1;
    while (first_panels_[m] > panel) --m;
    return m;
  }

  const ProductCall& call_;
  std::vector<int64_t> first_panels_, first_rows_;
  int64_t count_ = 0, num_outputs_ = 0;
  bool is_sound_ = true;
};

// Quantises the input, then runs `work(part, first, last)` over `num_parts` runs of panels, in ascending order. There
// are more parts than threads, so that a thread that the system takes its core from holds up the others by one part.
template <class Work>
void run(const ProductCall& call, const ProductTable& kernels, const Panels& panels, const QuantisedRows& rows,
         int num_threads, int num_parts, const Work& work) {
  const bool parallel_rows = num_threads > 1 && call.num_rows > kSerialRows;
  if (!parallel_rows) {
    float* scratch = reserve_floats(call.columns);
    for (int64_t row = 0; row < call.num_rows; ++row) kernels.quantise_row(call, row, rows, scratch);
  }
  const auto run_part = [&](int part) {
    work(part, panels.count() * part / num_parts, panels.count() * (part + 1) / num_parts);
  };
  if (num_threads <= 1) {
    for (int part = 0; part < num_parts; ++part) run_part(part);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    if (parallel_rows) {
      float* scratch = reserve_floats(call.columns);
#pragma omp for schedule(dynamic, kRowsPerTurn)
      for (int64_t row = 0; row < call.num_rows; ++row) kernels.quantise_row(call, row, rows, scratch);
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int part = 0; part < num_parts; ++part) run_part(part);
  }
}

int parts_for(int num_threads) { return num_threads <= 1 ? 1 : num_threads * kPartsPerThread; }

int threads_for(const ProductCall& call, const Panels& panels, int num_threads) {
  return panels.count() * kPanelRows * call.columns < kSerialCodes ? 1 : num_threads;
}

Status product(const ProductCall& call, const ProductTable& kernels, int num_threads) {
  const Panels panels(call);
  if (!panels.are_sound()) return bad_layout;
  const QuantisedRows rows = row_scratch.reserve(call.num_rows, call.columns);
  num_threads = threads_for(call, panels, num_threads);
  run(call, kernels, panels, rows, num_threads, parts_for(num_threads), [&](int, int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; ++panel) {
      panels.multiply(kernels, rows, panel, call.output, call.output_stride);
    }
  });
  return ok;
}

// The largest output of a row that a part has seen, and the first place that has it.
struct Best {
  float value = -std::numeric_limits<float>::infinity();
  int64_t index = 0;
};

// Outputs are never stored: each panel's are looked at while they are in the cache.
Status argmax(const ProductCall& call, const ProductTable& kernels, int num_threads, int64_t* indices) {
  const Panels panels(call);
  if (!panels.are_sound()) return bad_layout;
  const QuantisedRows rows = row_scratch.reserve(call.num_rows, call.columns);
  num_threads = threads_for(call, panels, num_threads);
  const int num_parts = parts_for(num_threads);
  std::vector<std::vector<Best>> bests(num_parts, std::vector<Best>(call.num_rows));
  run(call, kernels, panels, rows, num_threads, num_parts, [&](int part, int64_t first, int64_t last) {
    std::vector<Best>& best = bests[part];
    std::vector<float> tile(call.num_rows * kPanelRows);
    for (int64_t panel = first; panel < last; ++panel) {
      // a place in an output row of which only this panel's part exists
      const int64_t start = panels.first_output(panel);
      const Panels::Outputs outputs = panels.multiply(kernels, rows, panel, tile.data() - start, kPanelRows);
      for (int64_t row = 0; row < call.num_rows; ++row) {
        const float* values = tile.data() + row * kPanelRows;
        float most = values[0];
        for (int i = 1; i < outputs.count; ++i) most = values[i] > most ? values[i] : most;
        if (!(most > best[row].value)) continue;
        const int place = static_cast<int>(std::find(values, values + outputs.count, most) - values);
        best[row] = {most, outputs.first + place};
      }
    }
  });
  for (int64_t row = 0; row < call.num_rows; ++row) {
    Best best = bests[0][row];
    for (int part = 1; part < num_parts; ++part) {
      if (bests[part][row].value > best.value) best = bests[part][row];
    }
    indices[row] = best.index;
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
  if (!octavo::is_sound(matrix->kind, columns)) return octavo::bad_layout;
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= matrix->rows) return octavo::bad_layout;
  }
  for (int64_t i = 0; i < num_ids; ++i) {
    octavo::product_variants()[variant]->unpack_row(*matrix, columns, ids[i], output + i * columns);
  }
  return octavo::ok;
}
