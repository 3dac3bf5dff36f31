// Attention of one tile of int8 pages by products of codes: they are multiplied as they are, with queries and weights of
// 16 bits (code_numbers.h).
#pragma once

#include "code_numbers.h"

#if defined(OCTAVO_MULTIPLIES_CODES)
#if defined(OCTAVO_ADDS_QUADS)
#include "code_quads.h"
#else
#include "code_pairs.h"
#endif

namespace {

inline void attend_tile(const i8*, const octavo::AttendCall& call, int pairs, const Tile& tile, const Rows<i8>& rows,
                        NextTile<i8> upcoming, const Scratch& s, const State& state) {
  const int dim = call.head_dim;
  score_tile<Place>(s, pairs, rows.keys, keys_of(upcoming), tile, dim);
  soften_tile<Place>(s, state, pairs, call.scale, call.softcap, rows);
  weigh_codes(s, state, pairs, tile, rows.values, values_of(upcoming), dim);
}

}  // namespace

#endif
