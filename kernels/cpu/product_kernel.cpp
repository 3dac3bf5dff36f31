// Products with quantised weights, one panel at a time, compiled once per instruction set (see setup.py).
//
// Layout and numerics are those of quantised_matrix.h. Knows nothing of threads or of other panels.
#include <algorithm>
#include <type_traits>

#include "group_totals.h"
#include "input_row.h"
#include "output_tile.h"
#include "panel.h"
#include "prefetch.h"
#include "quad_sums.h"
#include "quantised_matrix.h"

namespace {

using namespace octavo;

// What takes the offset of weights' codes back.
template <int offset>
inline int32_t offset_sum(const InputGroup& input) {
  static_assert(offset == 8 || offset == 16 || offset == 128);
  return offset == 128 ? input.minus_128 : offset == 16 ? input.minus_16 : input.minus_8;
}

// Likewise, of the codes of one half of the columns, whose sum is -`minus_32` / 32.
template <int offset>
inline int32_t half_offset_sum(int32_t minus_32) {
  static_assert(offset == 0 || offset == 4 || offset == 32);
  return offset == 32 ? minus_32 : offset == 4 ? minus_32 / 8 : 0;
}

// Adds the products of one group, whose halves have scales of their own, with `kRows` inputs.
template <class Weights, int kRows>
inline __attribute__((always_inline)) void add_halves(const Weights& weights, const InputGroup* inputs,
                                                      Float16* totals) {
  constexpr int offset = kTakesOffset ? 0 : Weights::offset;
  Int16 sums[kRows] = {};
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    sums[m] = splat(half_offset_sum<offset>(inputs[m].minus_32_first));
  });
  add_quads<Weights, 0, 4, kRows>(weights, inputs, sums);
  Float16 first[kRows];
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    first[m] = scaled_half(weights, sums[m]);
    sums[m] = splat(half_offset_sum<offset>(inputs[m].minus_32_second));
  });
  add_quads<Weights, 4, 4, kRows>(weights, inputs, sums);
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    totals[m] = with_halves(weights, inputs[m], first[m], sums[m], totals[m]);
  });
}

// Likewise, where all columns have the same scale.
template <class Weights, int kRows>
inline __attribute__((always_inline)) void add_whole(const Weights& weights, const InputGroup* inputs,
                                                     Float16* totals) {
  Int16 sums[kRows] = {};
  if constexpr (Weights::offset != 0 && !kTakesOffset) {
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      sums[m] = splat(offset_sum<Weights::offset>(inputs[m]));
    });
  } else if constexpr (Weights::factors == Factors::zero) {
    const Int16 zeros = cast<Int16>(weights.scales[1]);
    repeat<kRows>([&](int m) __attribute__((always_inline)) { sums[m] = zeros * splat(inputs[m].minus_1); });
  }
  add_quads<Weights, 0, 8, kRows>(weights, inputs, sums);
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    totals[m] = with_whole(weights, inputs[m], sums[m], totals[m]);
  });
}

// Likewise, of codes that are floats. Products are exact; even and odd columns are summed apart, in ascending order.
template <class Weights, int kRows>
inline __attribute__((always_inline)) void add_floats(const Weights& weights, const InputGroup* inputs,
                                                      Float16* totals) {
  float x[kRows][kGroup];
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(inputs[m].codes);
    store_vector(x[m], bytes<Sbyte16>(codes));
    store_vector(x[m] + 16, bytes<Sbyte16>(codes + 16));
  });
  asm("" : "+m"(x));  // keeps them in memory: multiplications broadcast from there, where lanes would have to move
  Float16 even[kRows] = {}, odd[kRows] = {};
  repeat<8>([&](int j) __attribute__((always_inline)) {
    Float16 columns[4];
    unpack_floats(weights.quads[j], columns);
    repeat<4>([&](int k) __attribute__((always_inline)) {
      repeat<kRows>([&](int m) __attribute__((always_inline)) {
        Float16& sum = k % 2 ? odd[m] : even[m];
        sum = multiply_add(columns[k], x[m][4 * j + k] - Float16{}, sum);
      });
    });
  });
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    totals[m] = multiply_add(weights.scales[0] * inputs[m].scale, even[m] + odd[m], totals[m]);
  });
}

template <class Weights, int kRows>
inline __attribute__((always_inline)) void add_rows(const Weights& weights, const InputGroup* inputs, Float16* totals) {
  if constexpr (Weights::has_floats) {
    add_floats<Weights, kRows>(weights, inputs, totals);
  } else if constexpr (Weights::factors == Factors::halves || Weights::factors == Factors::halves_minima) {
    add_halves<Weights, kRows>(weights, inputs, totals);
  } else {
    add_whole<Weights, kRows>(weights, inputs, totals);
  }
}

// Groups as they lie in a panel, for rows that meet them all at once. Memory is asked for those that follow, into the second cache: the
// first one has no room for so many.
template <WeightKind kind>
struct PackedGroups {
  static constexpr int64_t kDistance = 8192;
  static constexpr int64_t kBytes = panel_bytes(kind, kGroup * kSuperGroups) / kSuperGroups;  // of a group

  const Panel& panel;

  Group<kind> at(int64_t group) const {
    const uint8_t* ahead = panel.start + group * kBytes + kDistance;
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
    const uint8_t* lower_ahead = panel.lower + group * 256 + kDistance;
    for (int i = 0; lower_bytes(kind, kGroup) != 0 && i < 256; i += 64) __builtin_prefetch(lower_ahead + i, 0, 2);
    return unpack_group<kind>(panel, group);
  }
};

// Groups that are read several times: the first time unpacks them for all, on the way, where that is work. Meanwhile
// memory is asked for the next panel.
template <WeightKind kind>
struct SharedGroups {
  static constexpr int64_t kRun = 64;  // so many stay in the nearer caches, beside the inputs
  static constexpr bool kKeeps = code_bytes(kind) < 512;

  const Panel& panel;
  NextPanel<kind> next;
  int64_t first = 0;  // of the run
  Group<kind> kept[kKeeps ? kRun : 1];

  SharedGroups(const Panel& panel, int64_t readings)
      : panel(panel), next(panel, panel.groups * readings) {}
};

template <WeightKind kind>
struct FirstReading {
  SharedGroups<kind>& groups;

  Group<kind> at(int64_t group) const {
    groups.next.step();
    const Group<kind> unpacked = unpack_group<kind>(groups.panel, group);
    if (groups.kKeeps) groups.kept[group - groups.first] = unpacked;
    return unpacked;
  }
};

template <WeightKind kind>
struct LaterReading {
  SharedGroups<kind>& groups;

  auto at(int64_t group) const -> std::conditional_t<SharedGroups<kind>::kKeeps, const Group<kind>&, Group<kind>> {
    groups.next.step();
    if constexpr (SharedGroups<kind>::kKeeps) {
      return groups.kept[group - groups.first];
    } else {
      return unpack_group<kind>(groups.panel, group);
    }
  }
};

// Multiplies groups [first, last) with `kRows` input rows of a tile, from `row` on. From the second run of groups on,
// `output` holds the totals so far.
template <WeightKind kind, int kRows, class Groups>
void multiply_rows(const Groups& groups, int64_t first, int64_t last, const QuantisedRows& rows, int64_t row,
                   const OutputTile& output) {
  const int stride = kRowsAtOnce == kTileRows ? kRows : rows.tile_rows(row / kTileRows * kTileRows);
  Float16 totals[kRows] = {};
  if (first) output.load<kRows>(row, kRows, totals);
  const InputGroup* inputs = &rows.at(row, first);
  for (int64_t group = first; group < last; ++group, inputs += stride) {
    add_rows<Group<kind>, kRows>(groups.at(group), inputs, totals);
  }
  output.store<kRows>(row, kRows, totals);
}

// Likewise with the rows that are left, kRowsAtOnce at most.
template <WeightKind kind, int kRows = kRowsAtOnce, class Groups>
void multiply_left(const Groups& groups, int64_t first, int64_t last, const QuantisedRows& rows, int64_t row,
                   const OutputTile& output) {
  if constexpr (kRows > 1) {
    if (rows.num_rows - row < kRows) return multiply_left<kind, kRows - 1>(groups, first, last, rows, row, output);
  }
  multiply_rows<kind, kRows>(groups, first, last, rows, row, output);
}

// Goes by runs of groups.
template <WeightKind kind>
void multiply_repeatedly(const Panel& panel, const QuantisedRows& rows, int64_t first_row, int64_t last_row,
                         const OutputTile& output) {
  SharedGroups<kind> groups(panel, (last_row - first_row + kRowsAtOnce - 1) / kRowsAtOnce);
  for (int64_t last; groups.first < panel.groups; groups.first = last) {
    last = std::min(panel.groups, groups.first + groups.kRun);
    multiply_rows<kind, kRowsAtOnce>(FirstReading<kind>{groups}, groups.first, last, rows, first_row, output);
    for (int64_t row = first_row + kRowsAtOnce; row < last_row; row += kRowsAtOnce) {
      multiply_left<kind>(LaterReading<kind>{groups}, groups.first, last, rows, row, output);
    }
  }
}

template <WeightKind kind>
void multiply_all(const Panel& panel, const QuantisedRows& rows, int64_t first, int64_t last,
                  const OutputTile& output) {
  if (last - first > kRowsAtOnce) return multiply_repeatedly<kind>(panel, rows, first, last, output);
  multiply_left<kind>(PackedGroups<kind>{panel}, 0, panel.groups, rows, first, output);
}

void multiply_panel(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first,
                    int64_t last, float* output, int64_t output_stride) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  const OutputTile tile = output_tile_of(matrix, index, output, output_stride);
  with_kind(matrix.kind, [&](auto kind) { multiply_all<kind()>(panel, rows, first, last, tile); });
}

struct UpperNibbles {
  static constexpr int largest = 15, offset = 0;

  Byte64 quads[8];
};

// Of kRows input rows from `row` on, a bit for each; see ProductTable. A code is 16 u + l, and l lies in 0 .. 15: 7.5
// stands in for it, and is wrong by 7.5 at most.
template <int kRows>
uint32_t rows_that_may_reach(const Panel& panel, const QuantisedRows& rows, int64_t row, const float* slack,
                             const float* least) {
  const uint8_t* codes = panel.codes;
  const int64_t stride = rows.tile_rows(row / kTileRows * kTileRows);
  const InputGroup* inputs = &rows.at(row, 0);
  slack += row * panel.groups;
  Float16 most[kRows] = {};
  for (int64_t group = 0; group < panel.groups; ++group, codes += 256, inputs += stride) {
    for (int line = 0; line < 4; ++line) __builtin_prefetch(codes + 4096 + 64 * line);
    UpperNibbles nibbles;
    repeat<4>([&](int j) __attribute__((always_inline)) {
      const Byte64 pairs = load_vector<Byte64>(codes + 64 * j);
      nibbles.quads[j] = pairs & 0x0f;
      nibbles.quads[j + 4] = shifted<-4>(pairs) & 0x0f;
    });
    Int16 sums[kRows] = {};
    add_quads<UpperNibbles, 0, 8, kRows>(nibbles, inputs, sums);
    const Float16 factor = halves(panel.start + group * 2 * kPanelRows);
    const Int16 sign = cast<Int16>(factor) & splat(INT32_MIN);
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      // twice (16 u + 7.5 - 128) x, which is whole
      const Int16 twice = splat(241 * inputs[m].minus_1) + (sums[m] << 5);
      // lower nibbles add the most with one sign where the factor is positive, with the other where it is negative
      const Int16 upwards = cast<Int16>(slack[m * panel.groups + group] - Float16{}) | sign;
      const Float16 value = multiply_add(converted<Float16>(twice), 0.5f * inputs[m].scale - Float16{}, cast<Float16>(upwards));
      most[m] = multiply_add(factor, value, most[m]);
    });
  }
  uint32_t reaching = 0;
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    reaching |= static_cast<uint32_t>(any_lane(~(most[m] < least[m] - Float16{}))) << m;  // also where it is no number
  });
  return reaching;
}

template <int kRows = kRowsAtOnce>
uint32_t left_that_may_reach(const Panel& panel, const QuantisedRows& rows, int64_t row, int64_t last, const float* slack,
                             const float* least) {
  if constexpr (kRows > 1) {
    if (last - row < kRows) return left_that_may_reach<kRows - 1>(panel, rows, row, last, slack, least);
  }
  return rows_that_may_reach<kRows>(panel, rows, row, slack, least);
}

uint32_t may_reach(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first, int64_t last,
                   const float* slack, const float* least) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  uint32_t reaching = 0;
  for (int64_t row = first; row < last; row += kRowsAtOnce) {
    reaching |= left_that_may_reach(panel, rows, row, last, slack, least + (row - first)) << (row - first);
  }
  return reaching;
}

// The weight of column k of a group.
template <class Weights>
float weight_of(const Weights& weights, int k, int lane) {
  if constexpr (Weights::has_floats) {
    Float16 columns[4];
    unpack_floats(weights.quads[k / 4], columns);
    return weights.scales[0][lane] * columns[k % 4][lane];
  }
  constexpr Factors factors = Weights::factors;
  constexpr bool has_halves = factors == Factors::halves || factors == Factors::halves_minima;
  const int half = has_halves ? k / (kGroup / 2) : 0;
  int32_t code = weights.quads[k / 4][lane * 4 + k % 4] - Weights::offset;
  if constexpr (factors == Factors::zero) code -= cast<Int16>(weights.scales[1])[lane];
  const float product = weights.scales[half][lane] * static_cast<float>(code);
  if constexpr (factors == Factors::minimum) return product - weights.scales[1][lane];
  if constexpr (factors == Factors::halves_minima) return product - weights.scales[2 + half][lane];
  return product;
}

template <WeightKind kind>
void unpack(const Panel& panel, int lane, float* output) {
  for (int64_t group = 0; group < panel.groups; ++group) {
    const Group<kind> weights = unpack_group<kind>(panel, group);
    for (int k = 0; k < kGroup; ++k) output[group * kGroup + k] = weight_of(weights, k, lane);
  }
}

void unpack_row(const QuantisedMatrix& matrix, int64_t columns, int64_t row, float* output) {
  const Panel panel = panel_of(matrix, row / kPanelRows, columns);
  const int lane = static_cast<int>(row % kPanelRows);
  with_kind(matrix.kind, [&](auto kind) { unpack<kind()>(panel, lane, output); });
}

}  // namespace

namespace octavo {
extern const ProductTable OCTAVO_PRODUCTS = {quantise_row, multiply_panel, may_reach, unpack_row, kMostSieved};
}  // namespace octavo
