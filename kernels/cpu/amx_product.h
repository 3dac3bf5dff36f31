// Products with quantised weights by tiles: 8 or 16 rows of the input times 16 of the weights, a group at a time.
//
// A group's codes become signed, without their offset; the sums of their products are whole numbers, and so the same as by
// vectors. They pass through memory to vectors, which do with them what product_kernel.cpp does (group_totals.h), so that
// an output has the same bits. `Tiles` is AmxTiles or what stands in for it. Like simd.h, everything has internal linkage.
#pragma once

#include <algorithm>

#include "amx.h"
#include "amx_tiles.h"
#include "group_totals.h"
#include "output_tile.h"
#include "panel.h"
#include "prefetch.h"

namespace octavo {
namespace {

constexpr int64_t kTileRun = 64;  // groups of a panel that stay in the nearer caches, beside the inputs
constexpr int64_t kInFlight = 4;  // groups whose sums are on their way from tiles to vectors
constexpr int64_t kBehind = 2;    // groups that vectors are behind

template <WeightKind kind>
constexpr bool has_halves = Group<kind>::factors == Factors::halves || Group<kind>::factors == Factors::halves_minima;

// Registers 0 and 4 hold weights, 1 and 5 a tile of inputs, the others the sums of two tiles of inputs with the weights
// before them. The codes of one half of the columns are half as many, in both.
template <class Tiles>
void configure_tiles(int quads) {
  if (configured_tiles.shape == quads) return;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool is_input = tile % 4 == 1;
    config.rows[tile] = static_cast<uint8_t>(tile % 4 == 0 ? quads : kTileRows);
    config.row_bytes[tile] = static_cast<uint16_t>(is_input ? 4 * quads : 64);
  }
  Tiles::configure(config);
  configured_tiles = {quads, Tiles::release};
}

// A tile of input rows: `count` of them, which lie a group after the other.
struct InputTile {
  const InputGroup* start;
  int64_t count;

  const InputGroup* at(int64_t group) const { return start + group * count; }
};

typedef int32_t TileSums[kTileRows][kPanelRows];

// The sums of the products of each tile of inputs, from column `column` of the group on, with weights, into
// `sums` [kTiles]. A tile of fewer than 8 rows is read into those of its next group, and for nothing.
template <class Tiles, int first, int kTiles>
inline __attribute__((always_inline)) void multiply_codes(const Byte64* quads, const InputTile* inputs, int64_t group,
                                                          int column, TileSums* sums) {
  Tiles::template load<first>(quads, sizeof(Byte64));
  Tiles::template zero<first + 2>();
  Tiles::template load<first + 1>(inputs[0].at(group)->codes + column, sizeof(InputGroup));
  Tiles::template multiply<first + 2, first + 1, first>();
  Tiles::template store<first + 2>(sums[0], sizeof(Int16));
  if constexpr (kTiles == 2) {
    Tiles::template zero<first + 3>();
    Tiles::template load<first + 1>(inputs[1].at(group)->codes + column, sizeof(InputGroup));
    Tiles::template multiply<first + 3, first + 1, first>();
    Tiles::template store<first + 3>(sums[1], sizeof(Int16));
  }
}

template <WeightKind kind, int kTiles>
struct alignas(64) GroupSums {
  TileSums of[has_halves<kind> ? 2 : 1][kTiles];

  template <class Tiles>
  inline __attribute__((always_inline)) void find(const Group<kind>& weights, const InputTile* inputs, int64_t group) {
    if constexpr (has_halves<kind>) {
      multiply_codes<Tiles, 0, kTiles>(weights.quads, inputs, group, 0, of[0]);
      multiply_codes<Tiles, 4, kTiles>(weights.quads + 4, inputs, group, kGroup / 2, of[1]);
    } else if (group % 2 == 0) {
      multiply_codes<Tiles, 0, kTiles>(weights.quads, inputs, group, 0, of[0]);
    } else {
      multiply_codes<Tiles, 4, kTiles>(weights.quads, inputs, group, 0, of[0]);
    }
  }

  inline __attribute__((always_inline)) void add_to(const Group<kind>& weights, const InputTile* inputs, int64_t group,
                                                    Float16* totals) const {
    repeat<kTiles * kTileRows>([&](int m) __attribute__((always_inline)) {
      const int tile = m / kTileRows, row = m % kTileRows;
      const InputGroup& input = inputs[tile].at(group)[row];
      Int16 sum = load_vector<Int16>(of[0][tile][row]);
      if constexpr (has_halves<kind>) {
        const Int16 second = load_vector<Int16>(of[1][tile][row]);
        totals[m] = with_halves(weights, input, scaled_half(weights, sum), second, totals[m]);
      } else {
        if constexpr (Group<kind>::factors == Factors::zero) {
          sum = add_products(sum, cast<Int16>(weights.scales[1]), &input.minus_1);
        }
        totals[m] = with_whole(weights, input, sum, totals[m]);
      }
    });
  }
};

// Groups [first, last) of a panel as tiles take them; more than that are unpacked a run at a time.
template <WeightKind kind>
struct SignedGroups {
  Group<kind> kept[kTileRun];
  int64_t first = 0, last = 0;

  void unpack(const Panel& panel, int64_t from) {
    first = from, last = std::min(panel.groups, from + kTileRun);
    for (int64_t group = first; group < last; ++group) {
      Group<kind>& weights = kept[group - first];
      weights = unpack_group<kind>(panel, group);
      if constexpr (Group<kind>::offset != 0) {
        for (Byte64& quad : weights.quads) quad -= static_cast<uint8_t>(Group<kind>::offset);
      }
    }
  }

  const Group<kind>& at(int64_t group) const { return kept[group - first]; }
};

// Multiplies groups with `kTiles` tiles of input rows from `row` on. From the second run of groups on, `output` holds the
// totals so far. Vectors are some groups behind, so that they never wait for what tiles store.
template <class Tiles, WeightKind kind, int kTiles>
void multiply_rows(const SignedGroups<kind>& groups, const QuantisedRows& rows, int64_t row, NextPanel<kind>& next,
                   const OutputTile& output) {
  constexpr int kRows = kTiles * kTileRows;
  InputTile inputs[kTiles];
  int count = 0;
  for (InputTile& tile : inputs) {
    tile = {rows.tile(row + count), rows.tile_rows(row + count)};
    count += static_cast<int>(tile.count);
  }
  GroupSums<kind, kTiles> sums[kInFlight];
  Float16 totals[kRows] = {};
  if (groups.first) output.load<kRows>(row, count, totals);
  for (int64_t group = groups.first; group < groups.last + kBehind; ++group) {
    if (group < groups.last) {
      next.step();
      sums[group % kInFlight].template find<Tiles>(groups.at(group), inputs, group);
    }
    const int64_t found = group - kBehind;
    if (found >= groups.first) sums[found % kInFlight].add_to(groups.at(found), inputs, found, totals);
  }
  output.store<kRows>(row, count, totals);
}

template <class Tiles, WeightKind kind>
void multiply_tiles(const Panel& panel, const QuantisedRows& rows, int64_t first, int64_t last,
                    const OutputTile& output) {
  constexpr int64_t kPair = 2 * kTileRows;
  configure_tiles<Tiles>(has_halves<kind> ? 4 : 8);
  NextPanel<kind> next(panel, panel.groups * ((last - first + kPair - 1) / kPair));
  SignedGroups<kind> groups;
  while (groups.last < panel.groups) {
    groups.unpack(panel, groups.last);
    for (int64_t row = first; row < last; row += kPair) {
      if (last - row > kTileRows) {
        multiply_rows<Tiles, kind, 2>(groups, rows, row, next, output);
      } else {
        multiply_rows<Tiles, kind, 1>(groups, rows, row, next, output);
      }
    }
  }
}

// See amx.h.
template <class Tiles>
void multiply_panel_by(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first,
                       int64_t last, float* output, int64_t output_stride) {
  const Panel panel = panel_of(matrix, index, rows.columns);
  const OutputTile tile = output_tile_of(matrix, index, output, output_stride);
  with_kind(matrix.kind, [&](auto kind) {
    if constexpr (!Group<kind()>::has_floats) multiply_tiles<Tiles, kind()>(panel, rows, first, last, tile);
  });
}

}  // namespace
}  // namespace octavo
