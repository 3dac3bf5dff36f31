// Products with quantised weights, one panel at a time, compiled once per instruction set (see setup.py).
//
// Layout and numerics are those of quantised_matrix.h. Knows nothing of threads or of other panels.
#include <algorithm>
#include <cstring>

#include "input_row.h"
#include "panel.h"
#include "quantised_matrix.h"

namespace {

using namespace octavo;

// Adds the products of one group with `kRows` input rows from `row` on.
template <WeightKind kind, int kRows>
inline void add_group(const Group& weights, const QuantisedRows& rows, int64_t row, int64_t group, Float16* totals) {
  for (int m = 0; m < kRows; ++m) {
    const InputGroup& input = rows.at(row + m, group);
    const int8_t* x = input.codes;
    if (kind == WeightKind::q6_k) {
      Int16 first = splat_shifted<kOffsetBits<kind>>(input.negated_first_sum);
      Int16 second = splat_shifted<kOffsetBits<kind>>(input.negated_sum) - first;
      for (int j = 0; j < 4; ++j) {
        first = dot_quad(first, weights.quads[j], x + 4 * j);
        second = dot_quad(second, weights.quads[j + 4], x + 16 + 4 * j);
      }
      const Float16 sum = weights.scales.factor * __builtin_convertvector(first, Float16);
      totals[m] = multiply_add(multiply_add(weights.scales.second_factor, __builtin_convertvector(second, Float16), sum),
                               input.scale - Float16{}, totals[m]);
    } else {
      Int16 even = {}, odd = {};
      if (kOffsetBits<kind>) even = splat_shifted<kOffsetBits<kind>>(input.negated_sum);
      for (int j = 0; j < 8; j += 2) {
        even = dot_quad(even, weights.quads[j], x + 4 * j);
        odd = dot_quad(odd, weights.quads[j + 1], x + 4 * (j + 1));
      }
      const Float16 sum = __builtin_convertvector(even + odd, Float16);
      totals[m] = multiply_add(weights.scales.factor * input.scale, sum, totals[m]);
      if (kind == WeightKind::q4_k) {
        totals[m] = multiply_add(weights.scales.minimum, input.correction - Float16{}, totals[m]);
      }
    }
  }
}

// Where the outputs of a panel go: `count` of each input row.
struct OutputTile {
  float* start;
  int64_t stride;
  int count;

  template <int kRows>
  void load(int64_t row, Float16* totals) const {
    for (int m = 0; m < kRows; ++m) memcpy(&totals[m], start + (row + m) * stride, sizeof(float) * count);
  }

  template <int kRows>
  void store(int64_t row, const Float16* totals) const {
    for (int m = 0; m < kRows; ++m) memcpy(start + (row + m) * stride, &totals[m], sizeof(float) * count);
  }
};

template <WeightKind kind, int kRows>
inline void multiply_rows(const Panel& panel, const QuantisedRows& rows, int64_t row, const OutputTile& output) {
  Float16 totals[kRows] = {};
  for (int64_t group = 0; group < panel.groups; ++group) {
    add_group<kind, kRows>(unpack_group<kind>(panel, group), rows, row, group, totals);
  }
  output.store<kRows>(row, totals);
}

// Continues with groups [first, last), which are unpacked, from totals that `output` holds.
template <WeightKind kind, int kRows>
inline void multiply_rows(const Group* unpacked, int64_t first, int64_t last, const QuantisedRows& rows, int64_t row,
                          const OutputTile& output) {
  Float16 totals[kRows] = {};
  if (first) output.load<kRows>(row, totals);
  for (int64_t group = first; group < last; ++group) {
    add_group<kind, kRows>(unpacked[group - first], rows, row, group, totals);
  }
  output.store<kRows>(row, totals);
}

// All rows, so many that each group is unpacked once for all of them. It goes by runs of groups that stay in the first
// cache.
template <WeightKind kind>
void multiply_many(const Panel& panel, const QuantisedRows& rows, int64_t num_rows, const OutputTile& output) {
  constexpr int64_t kRun = 20;
  for (int64_t first = 0; first < panel.groups; first += kRun) {
    const int64_t last = std::min(panel.groups, first + kRun);
    Group unpacked[kRun];
    for (int64_t group = first; group < last; ++group) unpacked[group - first] = unpack_group<kind>(panel, group);
    int64_t row = 0;
    for (; row + 8 <= num_rows; row += 8) multiply_rows<kind, 8>(unpacked, first, last, rows, row, output);
    for (; row < num_rows; ++row) multiply_rows<kind, 1>(unpacked, first, last, rows, row, output);
  }
}

// From so many input rows on, each group is unpacked once for all of them, where that is work.
template <WeightKind kind>
constexpr int64_t kRowsWorthUnpacking = kind == WeightKind::q8_0 ? INT64_MAX : 16;

template <WeightKind kind>
void multiply_all(const Panel& panel, const QuantisedRows& rows, int64_t num_rows, const OutputTile& output) {
  if (num_rows >= kRowsWorthUnpacking<kind>) return multiply_many<kind>(panel, rows, num_rows, output);
  int64_t row = 0;
  for (; row + 8 <= num_rows; row += 8) multiply_rows<kind, 8>(panel, rows, row, output);
  for (; row + 4 <= num_rows; row += 4) multiply_rows<kind, 4>(panel, rows, row, output);
  for (; row + 2 <= num_rows; row += 2) multiply_rows<kind, 2>(panel, rows, row, output);
  for (; row < num_rows; ++row) multiply_rows<kind, 1>(panel, rows, row, output);
}

Panel panel_of(const QuantisedMatrix& matrix, int64_t index, int64_t columns) {
  return {matrix.panel(index, columns), matrix.lower(index, columns), columns / kGroup};
}

void multiply_panel(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t num_rows,
                    float* output, int64_t output_stride) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  const int64_t left = matrix.rows - index * kPanelRows;
  const int num_outputs = left < kPanelRows ? static_cast<int>(left) : kPanelRows;
  const OutputTile tile{output + index * kPanelRows, output_stride, num_outputs};
  switch (matrix.kind) {
    case WeightKind::q8_0: return multiply_all<WeightKind::q8_0>(panel, rows, num_rows, tile);
    case WeightKind::q5_0: return multiply_all<WeightKind::q5_0>(panel, rows, num_rows, tile);
    case WeightKind::q4_0: return multiply_all<WeightKind::q4_0>(panel, rows, num_rows, tile);
    case WeightKind::q4_k: return multiply_all<WeightKind::q4_k>(panel, rows, num_rows, tile);
    case WeightKind::q6_k: return multiply_all<WeightKind::q6_k>(panel, rows, num_rows, tile);
    case WeightKind::q8_planes: return multiply_all<WeightKind::q8_planes>(panel, rows, num_rows, tile);
  }
}

// A code is 16 u + l, and l lies in 0 .. 15: 7.5 stands in for it, and is wrong by 7.5 at most.
bool may_reach(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t row, const float* slack,
               float least) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  const uint8_t* codes = panel.start + scale_bytes(WeightKind::q8_planes, rows.columns);
  Float16 most = {};
  for (int64_t group = 0; group < panel.groups; ++group, codes += 256) {
    const InputGroup& input = rows.at(row, group);
    const int8_t* x = input.codes;
    for (int line = 0; line < 4; ++line) __builtin_prefetch(codes + 4096 + 64 * line);
    Int16 even = {}, odd = {};
    for (int j = 0; j < 4; ++j) {
      const Byte64 pairs = load_vector<Byte64>(codes + 64 * j);
      even = dot_quad(even, pairs & 0x0f, x + 4 * j);
      odd = dot_quad(odd, reinterpret_cast<Byte64>(reinterpret_cast<Uint16>(pairs) >> 4) & 0x0f, x + 4 * (j + 4));
    }
    // twice (16 u + 7.5 - 128) x, which is whole
    const Int16 twice = splat(241 * input.negated_sum) + ((even + odd) << 5);
    const Float16 factor = halves(panel.start + group * 2 * kPanelRows);
    // lower nibbles add the most with one sign where the factor is positive, with the other where it is negative
    const Int16 upwards =
        reinterpret_cast<Int16>(slack[group] - Float16{}) | (reinterpret_cast<Int16>(factor) & splat(INT32_MIN));
    const Float16 value = multiply_add(__builtin_convertvector(twice, Float16), 0.5f * input.scale - Float16{},
                                       reinterpret_cast<Float16>(upwards));
    most = multiply_add(factor, value, most);
  }
  return any_lane(~(most < least));  // also where it is no number
}

template <WeightKind kind>
void unpack(const Panel& panel, int lane, float* output) {
  constexpr int offset = kOffsetBits<kind> ? 1 << kOffsetBits<kind> : 0;
  for (int64_t group = 0; group < panel.groups; ++group) {
    const Group weights = unpack_group<kind>(panel, group);
    for (int k = 0; k < kGroup; ++k) {
      const bool is_second = kind == WeightKind::q6_k && k >= 16;
      const float factor = is_second ? weights.scales.second_factor[lane] : weights.scales.factor[lane];
      const float code = static_cast<float>(weights.quads[k / 4][lane * 4 + k % 4] - offset);
      output[group * kGroup + k] = factor * code - weights.scales.minimum[lane];
    }
  }
}

void unpack_row(const QuantisedMatrix& matrix, int64_t columns, int64_t row, float* output) {
  const Panel panel = panel_of(matrix, row / kPanelRows, columns);
  const int lane = static_cast<int>(row % kPanelRows);
  switch (matrix.kind) {
    case WeightKind::q8_0: return unpack<WeightKind::q8_0>(panel, lane, output);
    case WeightKind::q5_0: return unpack<WeightKind::q5_0>(panel, lane, output);
    case WeightKind::q4_0: return unpack<WeightKind::q4_0>(panel, lane, output);
    case WeightKind::q4_k: return unpack<WeightKind::q4_k>(panel, lane, output);
    case WeightKind::q6_k: return unpack<WeightKind::q6_k>(panel, lane, output);
    case WeightKind::q8_planes: return unpack<WeightKind::q8_planes>(panel, lane, output);
  }
}

}  // namespace

namespace octavo {
extern const ProductTable OCTAVO_PRODUCTS = {quantise_row, multiply_panel, may_reach, unpack_row};
}  // namespace octavo
