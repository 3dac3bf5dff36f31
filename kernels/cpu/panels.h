// The panels of a product, and how they are shared out among threads: what products and their argmax have in
// common.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "amx.h"
#include "quantised_matrix.h"
#include "team.h"

namespace octavo {

constexpr int64_t kSerialRows = 4;         // input rows that are prepared faster than threads wake
constexpr int64_t kSerialCodes = 1 << 16;  // weights that are multiplied faster than threads wake
constexpr int kPartsPerThread = 8;
constexpr int kRowsPerTurn = 4;

inline bool is_sound(WeightKind kind, int64_t columns) {
  const int32_t number = static_cast<int32_t>(kind);
  return number >= 0 && number < kNumKinds && columns >= kGroup && columns % column_unit(kind) == 0;
}

inline bool is_sound(const QuantisedMatrix& matrix, int64_t columns) {
  return is_sound(matrix.kind, columns) && matrix.rows >= 1;
}

// The calling thread's memory for quantised rows, kept for its next call.
class RowScratch {
 public:
  ~RowScratch() { std::free(data_); }

  QuantisedRows reserve(int64_t num_rows, int64_t columns) {
    QuantisedRows rows{nullptr, num_rows, columns};
    const int64_t bytes = (rows.size() + kTileRows - 1) * sizeof(InputGroup);  // the last tile is read as if it were full
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = std::aligned_alloc(64, bytes);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    rows.groups = static_cast<InputGroup*>(data_);
    return rows;
  }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

inline thread_local RowScratch row_scratch;

inline float* reserve_floats(int64_t count) {
  thread_local std::vector<float> scratch;
  if (static_cast<int64_t>(scratch.size()) < count) scratch.resize(count);
  return scratch.data();
}

// The panels of all matrices of a call, numbered through.
class Panels {
 public:
  explicit Panels(const ProductCall& call) : call_(call) {
    for (int m = 0; m < call.num_matrices; ++m) {
      const QuantisedMatrix& matrix = call.matrices[m];
      is_sound_ = is_sound_ && is_sound(matrix, call.columns);
      first_panels_.push_back(count_);
      first_rows_.push_back(num_outputs_);
      count_ += num_panels(matrix.rows);
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

  // Multiplies a panel with input rows [begin, end) into its place in `output`, where row 0 of `stride` floats starts.
  Outputs multiply(const ProductTable& kernels, const QuantisedRows& rows, int64_t begin, int64_t end, int64_t panel,
                   float* output, int64_t stride) const {
    const int m = matrix_of(panel);
    const int64_t index = panel - first_panels_[m], first = first_rows_[m] + index * kPanelRows;
    kernels.multiply_panel(call_.matrices[m], index, rows, begin, end, output + first_rows_[m], stride);
    return {first, static_cast<int>(std::min<int64_t>(kPanelRows, call_.matrices[m].rows - index * kPanelRows))};
  }

  // For which of input rows [first, last) an output of the panel may be `least` or more; see ProductTable.
  uint32_t may_reach(const ProductTable& kernels, const QuantisedRows& rows, int64_t first, int64_t last, int64_t panel,
                     const float* slack, const float* least) const {
    const int m = matrix_of(panel);
    return kernels.may_reach(call_.matrices[m], panel - first_panels_[m], rows, first, last, slack, least);
  }

  bool are_planes() const {
    return std::all_of(call_.matrices, call_.matrices + call_.num_matrices,
                       [](const QuantisedMatrix& matrix) { return matrix.kind == WeightKind::q8_planes; });
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

inline void quantise_rows(const ProductCall& call, const ProductTable& kernels, const QuantisedRows& rows,
                          int64_t first, int64_t last) {
  float* scratch = reserve_floats(2 * call.columns);
  for (int64_t row = first; row < last; ++row) kernels.quantise_row(call, row, rows, scratch);
}

// Runs `work(part, first, last)` over part `part` of `num_parts` runs of panels, in ascending order.
template <class Work>
void run_part(const Panels& panels, int part, int num_parts, const Work& work) {
  work(part, panels.count() * part / num_parts, panels.count() * (part + 1) / num_parts);
  release_tiles();
}

// Runs all parts. There are more of them than threads, so that a thread that the system takes its core from holds up the
// others by one part.
template <class Work>
void run_parts(const Panels& panels, int num_threads, int num_parts, const Work& work) {
  Team::shared().run(num_threads, num_parts, [&](int part) { run_part(panels, part, num_parts, work); });
}

// Input rows in blocks of whole tiles, each small enough to stay in the second cache while it meets panel after panel.
class RowBlocks {
 public:
  explicit RowBlocks(const QuantisedRows& rows) : num_rows_(rows.num_rows) {
    const int64_t tiles = (rows.num_rows + kTileRows - 1) / kTileRows;
    const int64_t bytes = rows.size() * static_cast<int64_t>(sizeof(InputGroup));
    count_ = std::max<int64_t>(1, std::min(tiles, (bytes + kBlockBytes - 1) / kBlockBytes));
    tiles_ = tiles;
  }

  int count() const { return static_cast<int>(count_); }
  int64_t start(int64_t block) const { return std::min(num_rows_, tiles_ * block / count_ * kTileRows); }

 private:
  static constexpr int64_t kBlockBytes = 1 << 19;
  int64_t num_rows_, tiles_, count_;
};

inline void quantise(const ProductCall& call, const ProductTable& kernels, const QuantisedRows& rows, int num_threads) {
  if (call.num_rows <= kSerialRows) {
    quantise_rows(call, kernels, rows, 0, call.num_rows);
  } else {
    const int turns = static_cast<int>((call.num_rows + kRowsPerTurn - 1) / kRowsPerTurn);
    Team::shared().run(num_threads, turns, [&](int turn) {
      const int64_t first = static_cast<int64_t>(turn) * kRowsPerTurn;
      quantise_rows(call, kernels, rows, first, std::min<int64_t>(call.num_rows, first + kRowsPerTurn));
    });
  }
}

inline int parts_for(int num_threads) { return num_threads <= 1 ? 1 : num_threads * kPartsPerThread; }

inline int threads_for(const ProductCall& call, const Panels& panels, int num_threads) {
  return panels.count() * kPanelRows * call.columns < kSerialCodes ? 1 : num_threads;
}

}  // namespace octavo
