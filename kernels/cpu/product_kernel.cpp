// Products with quantised weights, one panel at a time, compiled once per instruction set (see setup.py).
//
// Layout and numerics are those of quantised_matrix.h. Knows nothing of threads or of other panels.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "group_totals.h"
#include "input_row.h"
#include "output_tile.h"
#include "panel.h"
#include "prefetch.h"
#include "quantised_matrix.h"

namespace {

using namespace octavo;

#if defined(__AVX512VNNI__)
constexpr bool kTogether = true;  // a quad of weights meets all rows of a tile, whose sums are in registers
#else
constexpr bool kTogether = false;
#endif

template <int kRows>
constexpr bool kRowsTogether = kTogether || kRows == 1;

// What takes the offset of weights' codes back.
template <int offset>
inline int32_t offset_sum(const InputGroup& input) {
  static_assert(offset == 8 || offset == 16 || offset == 128);
  return offset == 128 ? input.minus_128 : offset == 16 ? input.minus_16 : input.minus_8;
}

// Adds quads [first, first + count) of weights and of each input to `sums`. Of few rows, a second sum of each keeps
// instructions from waiting for one another.
template <int first, int count, int kRows>
inline __attribute__((always_inline)) void add_quads(const Byte64* quads, const InputGroup* inputs, Int16* sums) {
  constexpr bool kTwoSums = kRows <= 2;
  Int16 odd[kRows] = {};
  repeat<count>([&](int j) __attribute__((always_inline)) {
    const Byte64 quad = quads[first + j];
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      Int16& sum = kTwoSums && j % 2 ? odd[m] : sums[m];
      sum = dot_quad(sum, quad, inputs[m].codes + 4 * (first + j));
    });
  });
  if (kTwoSums) repeat<kRows>([&](int m) __attribute__((always_inline)) { sums[m] += odd[m]; });
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
  constexpr int offset = Weights::offset;
  Int16 sums[kRows] = {};
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    sums[m] = splat(half_offset_sum<offset>(inputs[m].minus_32_first));
  });
  add_quads<0, 4, kRows>(weights.quads, inputs, sums);
  Float16 first[kRows];
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    first[m] = scaled_half(weights, sums[m]);
    sums[m] = splat(half_offset_sum<offset>(inputs[m].minus_32_second));
  });
  add_quads<4, 4, kRows>(weights.quads, inputs, sums);
  repeat<kRows>([&](int m) __attribute__((always_inline)) {
    totals[m] = with_halves(weights, inputs[m], first[m], sums[m], totals[m]);
  });
}

// Likewise, where all columns have the same scale.
template <class Weights, int kRows>
inline __attribute__((always_inline)) void add_whole(const Weights& weights, const InputGroup* inputs,
                                                     Float16* totals) {
  Int16 sums[kRows] = {};
  if constexpr (Weights::offset != 0) {
    repeat<kRows>([&](int m) __attribute__((always_inline)) {
      sums[m] = splat(offset_sum<Weights::offset>(inputs[m]));
    });
  } else if constexpr (Weights::factors == Factors::zero) {
    const Int16 zeros = reinterpret_cast<Int16>(weights.scales[1]);
    repeat<kRows>([&](int m) __attribute__((always_inline)) { sums[m] = zeros * splat(inputs[m].minus_1); });
  }
  add_quads<0, 8, kRows>(weights.quads, inputs, sums);
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
    const Float16 first = bytes<Sbyte16>(codes), second = bytes<Sbyte16>(codes + 16);
    memcpy(x[m], &first, sizeof first), memcpy(x[m] + 16, &second, sizeof second);
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

// `count` is kRows where rows go together, and at most that where they do not.
template <WeightKind kind, int kRows>
inline __attribute__((always_inline)) void add_group(const Group<kind>& weights, const InputGroup* inputs, int count,
                                                     Float16* totals) {
  if constexpr (kRowsTogether<kRows>) {
    add_rows<Group<kind>, kRows>(weights, inputs, totals);
  } else {
    for (int m = 0; m < count; ++m) add_rows<Group<kind>, 1>(weights, inputs + m, totals + m);
  }
}

// Groups as they lie in a panel, for a single tile. Memory is asked for those that follow, into the second cache: the
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

// Groups that several tiles read: the first one unpacks them for all, on the way, where that is work. Meanwhile memory
// is asked for the next panel.
template <WeightKind kind>
struct SharedGroups {
  static constexpr int64_t kRun = 64;  // so many stay in the nearer caches, beside the inputs
  static constexpr bool kKeeps = code_bytes(kind) < 512;

  const Panel& panel;
  NextPanel<kind> next;
  int64_t first = 0;  // of the run
  Group<kind> kept[kKeeps ? kRun : 1];

  SharedGroups(const Panel& panel, int64_t num_tiles)
      : panel(panel), next(panel, panel.groups * num_tiles) {}
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

// Multiplies groups [first, last) with a tile of `kRows` input rows from `row` on. From the second run of groups on,
// `output` holds the totals so far.
template <WeightKind kind, int kRows, class Groups>
void multiply_tile(const Groups& groups, int64_t first, int64_t last, const QuantisedRows& rows, int64_t row,
                   const OutputTile& output) {
  const int count = kRowsTogether<kRows> ? kRows : rows.tile_rows(row);
  Float16 totals[kRows] = {};
  if (first) output.load<kRows>(row, count, totals);
  const InputGroup* inputs = rows.tile(row) + first * count;
  for (int64_t group = first; group < last; ++group, inputs += count) {
    add_group<kind, kRows>(groups.at(group), inputs, count, totals);
  }
  output.store<kRows>(row, count, totals);
}

template <WeightKind kind, class Groups>
void multiply_tile(const Groups& groups, int64_t first, int64_t last, const QuantisedRows& rows, int64_t row,
                   const OutputTile& output) {
  switch (rows.tile_rows(row)) {
    case 1: return multiply_tile<kind, 1>(groups, first, last, rows, row, output);
    case 2: return multiply_tile<kind, kTogether ? 2 : kTileRows>(groups, first, last, rows, row, output);
    case 3: return multiply_tile<kind, kTogether ? 3 : kTileRows>(groups, first, last, rows, row, output);
    case 4: return multiply_tile<kind, kTogether ? 4 : kTileRows>(groups, first, last, rows, row, output);
    case 5: return multiply_tile<kind, kTogether ? 5 : kTileRows>(groups, first, last, rows, row, output);
    case 6: return multiply_tile<kind, kTogether ? 6 : kTileRows>(groups, first, last, rows, row, output);
    case 7: return multiply_tile<kind, kTogether ? 7 : kTileRows>(groups, first, last, rows, row, output);
    default: return multiply_tile<kind, kTileRows>(groups, first, last, rows, row, output);
  }
}

// Goes by runs of groups.
template <WeightKind kind>
void multiply_tiles(const Panel& panel, const QuantisedRows& rows, int64_t first_row, int64_t last_row,
                    const OutputTile& output) {
  SharedGroups<kind> groups(panel, (last_row - first_row + kTileRows - 1) / kTileRows);
  for (int64_t last; groups.first < panel.groups; groups.first = last) {
    last = std::min(panel.groups, groups.first + groups.kRun);
    multiply_tile<kind, kTileRows>(FirstReading<kind>{groups}, groups.first, last, rows, first_row, output);
    for (int64_t row = first_row + kTileRows; row < last_row; row += kTileRows) {
      multiply_tile<kind>(LaterReading<kind>{groups}, groups.first, last, rows, row, output);
    }
  }
}

template <WeightKind kind>
void multiply_all(const Panel& panel, const QuantisedRows& rows, int64_t first, int64_t last,
                  const OutputTile& output) {
  if (last - first > kTileRows) return multiply_tiles<kind>(panel, rows, first, last, output);
  multiply_tile<kind>(PackedGroups<kind>{panel}, 0, panel.groups, rows, first, output);
}

void multiply_panel(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first,
                    int64_t last, float* output, int64_t output_stride) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  const OutputTile tile = output_tile_of(matrix, index, output, output_stride);
  with_kind(matrix.kind, [&](auto kind) { multiply_all<kind()>(panel, rows, first, last, tile); });
}

// A code is 16 u + l, and l lies in 0 .. 15: 7.5 stands in for it, and is wrong by 7.5 at most.
bool may_reach(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t row, const float* slack,
               float least) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  const uint8_t* codes = panel.codes;
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
    const Int16 twice = splat(241 * input.minus_1) + ((even + odd) << 5);
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
  if constexpr (factors == Factors::zero) code -= reinterpret_cast<Int16>(weights.scales[1])[lane];
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
extern const ProductTable OCTAVO_PRODUCTS = {quantise_row, multiply_panel, may_reach, unpack_row};
}  // namespace octavo
