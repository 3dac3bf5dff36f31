// Where the keys and values of a tile lie in their pages, and their scales.
//
// Internal linkage throughout, for the reason given in simd.h.
#pragma once

#include "paged_attention.h"
#include "simd.h"
#include "tile.h"

namespace {

using octavo::AttendCall;
using octavo::Piece;

// Whether a tile is located when the one before it is attended, and its scales asked for then. Otherwise line_up does.
#if defined(OCTAVO_SPREADS)
constexpr bool kLocatesAhead = false;
#else
constexpr bool kLocatesAhead = true;
#endif

// Takes the scales of a tile whose turn has come, times the unit in which its elements are read.
template <class Page>
inline void take_factors(Rows<Page>& rows) {
  for (int at = 0; at < kTileKeys; ++at) rows.key_factors[at] = rows.value_factors[at] = 1.0f;
  for (int i = 0; i < rows.num_runs; ++i) {
    const ScaleRun& run = rows.runs[i];
    for (int at = run.begin; at < run.end; ++at) {
      rows.key_factors[at] = run.keys[at - run.begin] * kCodeUnit<Page>;
      rows.value_factors[at] = run.values[at - run.begin] * kCodeUnit<Page>;
    }
  }
}

// Entries outside the visible part repeat a visible row: register blocks may touch them, and their scores are masked.
template <class Page>
void locate(const AttendCall& call, const Unit& unit, const Tile& tile, Rows<Page>& rows) {
  const int32_t* table = call.block_table + unit.sequence * call.block_table_stride;
  const int64_t head = static_cast<int64_t>(unit.kv_head) * call.block_size * call.head_dim;
  const int64_t head_dim = call.head_dim;
  if constexpr (kQuantised<Page>) rows.num_runs = 0;
  int key = tile.begin;
  while (key < tile.end) {
    const int position = tile.start + key;
    const int block = position / call.block_size;
    const int64_t page = table[block];
    const int64_t offset = head + static_cast<int64_t>(position - block * call.block_size) * call.head_dim;
    const Page* key_row = static_cast<const Page*>(call.key_pages) + page * call.key_page_stride + offset;
    const Page* value_row = static_cast<const Page*>(call.value_pages) + page * call.value_page_stride + offset;
    const int end = min(tile.end, key + (block + 1) * call.block_size - position);
    if constexpr (kQuantised<Page>) {
      const int64_t slot = unit.kv_head * call.block_size + position - block * call.block_size;
      const float* key_scales = call.key_scales + page * call.key_scale_stride + slot;
      const float* value_scales = call.value_scales + page * call.value_scale_stride + slot;
      if (kLocatesAhead) {
        prefetch(key_scales, end - key);
        prefetch(value_scales, end - key);
      }
      rows.runs[rows.num_runs++] = {key_scales, value_scales, key, end};
    }
    for (int i = 0; i < end - key; ++i) {
      rows.keys[key + i] = key_row + i * head_dim;
      rows.values[key + i] = value_row + i * head_dim;
    }
    key = end;
  }
  const auto repeat = [&rows, &tile](int at) {
    rows.keys[at] = rows.keys[tile.begin];
    rows.values[at] = rows.values[tile.begin];
  };
  for (int at = 0; at < tile.begin; ++at) repeat(at);
  for (int at = tile.end; at < kTileKeys; ++at) repeat(at);
}

void mark_visible(const AttendCall& call, const Unit& unit, const Tile& tile, const Scratch& s) {
  const int group = call.group();
  for (int row = 0; row < unit.num_rows; ++row) {
    const int position = unit.first_position + row;
    const int begin = call.window > 0 ? max(tile.begin, position - call.window + 1 - tile.start) : tile.begin;
    const int end = min(tile.end, position + 1 - tile.start);
    for (int head = 0; head < group; ++head) {
      s.first_key[row * group + head] = begin;
      s.last_key[row * group + head] = end;
    }
  }
}

#if defined(OCTAVO_SPREADS)
// The lines of a tile of all units of a piece: of each page one run, which may have more than is seen where a sequence ends.
template <class Page>
void line_up(const AttendCall& call, const Piece& piece, const Tile& tile, TileLines& lines) {
  const Unit& unit = *piece.unit;
  const int32_t* table = call.block_table + unit.sequence * call.block_table_stride;
  lines.num_runs = 0;
  for (int key = tile.begin; key < tile.end;) {
    const int position = tile.start + key;
    const int block = position / call.block_size, in_block = position - block * call.block_size;
    const int count = min(tile.end - key, call.block_size - in_block);
    const int64_t page = table[block];
    const int64_t slot = static_cast<int64_t>(unit.kv_head) * call.block_size + in_block;
    const int64_t slots = static_cast<int64_t>(piece.num_units - 1) * call.block_size + count;
    const int64_t bytes = slots * call.head_dim * sizeof(Page);
    const Page* keys = static_cast<const Page*>(call.key_pages) + page * call.key_page_stride + slot * call.head_dim;
    const Page* values =
        static_cast<const Page*>(call.value_pages) + page * call.value_page_stride + slot * call.head_dim;
    lines.key_runs[lines.num_runs] = LineRun(keys, bytes);
    lines.value_runs[lines.num_runs++] = LineRun(values, bytes);
    if constexpr (kQuantised<Page>) {
      prefetch(call.key_scales + page * call.key_scale_stride + slot, slots);
      prefetch(call.value_scales + page * call.value_scale_stride + slot, slots);
    }
    key += count;
  }
}
#endif

}  // namespace
