// Attention of one tile of keys: scores, online softmax, weighted values, in register blocks.
//
// Every function works on the pairs of a unit, a pair being a query row and one of the KV head's query heads; pairs
// ascend by row. Internal linkage throughout, for the reason given in simd.h.
#pragma once

#include <cmath>
#include <type_traits>

#include "paged_attention.h"
#include "simd.h"
#include "tile_blocks.h"

namespace {

using octavo::Unit;

// Running softmax of every pair: sum over keys of e^(score - maximum) times value, and times 1.
struct State {
  float* weighted;  // [pairs, padded_dim]
  float* maxima;    // [pairs]
  float* sums;      // [pairs]

  State() = default;
  State(float* base, int pairs, int dim)
      : weighted(base), maxima(base + static_cast<int64_t>(pairs) * dim), sums(maxima + pairs) {}

  void clear(int pairs, int dim) const {
    memset(weighted, 0, sizeof(float) * pairs * dim);
    memset(sums, 0, sizeof(float) * pairs);
    for (int pair = 0; pair < pairs; ++pair) maxima[pair] = -INFINITY;
  }
};

// Scratch of one unit, carved from one allocation.
struct Scratch {
  float* query;        // [pairs, padded_dim], or bfloat16 numbers in its place
  float* scores;       // [pairs, kTileKeys], then the weights, or bfloat16 numbers at the beginning of each row
  float* keys;         // [kTileKeys, padded_dim + kRowGap], widened, or bfloat16 numbers
  float* values;       // likewise
  float* corrections;  // [pairs]
  float* split;        // one partial slot
  float* total;        // one partial slot
  int32_t* first_key;  // [pairs], visible range within the tile
  int32_t* last_key;   // [pairs], one past

  static int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }

  static int64_t floats(int pairs, int dim) {
    return round_up(static_cast<int64_t>(pairs) * dim) + round_up(pairs * kTileKeys) + 2 * kTileKeys * (dim + kRowGap) +
           3 * round_up(pairs) + 2 * round_up(octavo::partial_floats(pairs, dim));
  }

  Scratch() = default;
  Scratch(float* base, int pairs, int dim) {
    const auto take = [&base](int64_t count) {
      float* part = base;
      base += round_up(count);
      return part;
    };
    query = take(static_cast<int64_t>(pairs) * dim);
    scores = take(pairs * kTileKeys);
    keys = take(kTileKeys * (dim + kRowGap));
    values = take(kTileKeys * (dim + kRowGap));
    corrections = take(pairs);
    split = take(octavo::partial_floats(pairs, dim));
    total = take(octavo::partial_floats(pairs, dim));
    first_key = reinterpret_cast<int32_t*>(take(pairs));
    last_key = reinterpret_cast<int32_t*>(take(pairs));
  }
};

// The part of a tile that some row sees: positions start + begin .. start + end - 1.
struct Tile {
  int start;
  int begin;
  int end;

  Tile(const Unit& unit, int start)
      : start(start), begin(max(unit.kv_begin - start, 0)), end(min(unit.kv_end - start, kTileKeys)) {}
};

template <class Page>
constexpr bool kQuantised = sizeof(Page) == 1;

// Where the scales of a tile's keys and values lie, for those of keys in one page.
struct ScaleRun {
  const float* keys;
  const float* values;
  int begin, end;  // keys of the tile
};

// What the keys and values of a tile are to be multiplied by, and where it is to be taken from. It is taken when the tile's
// turn has come: by then memory has had time to bring it.
template <bool quantised>
struct Factors {};
template <>
struct Factors<true> {
  float key_factors[kTileKeys];
  float value_factors[kTileKeys];
  ScaleRun runs[kTileKeys];
  int num_runs = 0;
};

// Where the keys and values of a tile's positions lie.
template <class Page>
struct Rows : Factors<kQuantised<Page>> {
  const Page* keys[kTileKeys];
  const Page* values[kTileKeys];
};

// What of the tile after this one is to be fetched: a whole tile ahead, since memory takes longer to bring keys or values
// than it takes to score or to weigh as many.
#if defined(OCTAVO_SPREADS)
template <class Page>
using NextTile = Upcoming*;

inline LinesAhead* keys_of(Upcoming* upcoming) { return upcoming == nullptr ? nullptr : &upcoming->keys; }
inline LinesAhead* values_of(Upcoming* upcoming) { return upcoming == nullptr ? nullptr : &upcoming->values; }

constexpr LinesAhead* kNothingAhead = nullptr;
#else
template <class Page>
using NextTile = const Rows<Page>*;

template <class Page>
const Page* const* keys_of(const Rows<Page>* upcoming) {
  return upcoming == nullptr ? nullptr : upcoming->keys;
}

template <class Page>
const Page* const* values_of(const Rows<Page>* upcoming) {
  return upcoming == nullptr ? nullptr : upcoming->values;
}

constexpr const float* const* kNothingAhead = nullptr;
#endif

// Scores of all pairs; meanwhile fetches `upcoming`, the keys of the next tile, unless null.
template <class Query, class Key, class Ahead>
void score_tile(const Scratch& s, int pairs, const Key* const* keys, Ahead upcoming, const Tile& tile, int dim) {
  const Query* query = reinterpret_cast<const Query*>(s.query);
  const int first = tile.begin / kKeyBlock * kKeyBlock;
  for (int cached = first; cached < tile.end; cached += kCachedKeys) {
    for (int pair = 0; pair < pairs; pair += kRowBlock) {
      const int rows = min(kRowBlock, pairs - pair);
      // Rows ascend in position, so the first sees the earliest key and the last the latest.
      const int begin = max(cached, s.first_key[pair] / kKeyBlock * kKeyBlock);
      const int end = min(cached + kCachedKeys, s.last_key[pair + rows - 1]);
      const Ahead ahead = pair == 0 ? upcoming : nullptr;
      float* scores = s.scores + pair * kTileKeys;
      score_rows(query + static_cast<int64_t>(pair) * dim, rows, keys, ahead, begin, end, dim, scores);
    }
  }
}

inline void multiply_tile(float* scores, const float* factors) {
  for (int key = 0; key < kTileKeys; key += kLanes) store(scores + key, load(scores + key) * load(factors + key));
}

// Vectors of head_dim that are weighed at a time where fewer than kColumnVectors are left.
template <class Weight, class Page>
constexpr int kLeastVectors = kParts;

template <class Weight>
inline const Weight* weights_of(const Scratch& s, int pair) {
  return reinterpret_cast<const Weight*>(s.scores + pair * kTileKeys);
}

// Stores a vector of weights over the scores they are of; returns them as they add up.
template <bool quantised>
inline vfloat store_weights(float* row, int key, vfloat weights, const Factors<quantised>& factors) {
  if constexpr (quantised) {
    store(row + key, weights * load(factors.value_factors + key));
  } else {
    store(row + key, weights);
  }
  return weights;
}

// Scales and caps the scores of all pairs, hides what a pair does not see, and raises the maxima to them. The exponents of
// the corrections are left in their place. For quantised pages the factors of the keys come in first.
template <class Page>
void limit_scores(const Scratch& s, const State& state, int pairs, float scale, float softcap, const Rows<Page>& rows) {
  constexpr int kVectors = kTileKeys / kLanes;
  for (int pair = 0; pair < pairs; ++pair) {
    float* scores = s.scores + pair * kTileKeys;
    const int begin = s.first_key[pair], end = s.last_key[pair];
    s.corrections[pair] = 0.0f;
    if (begin >= end) continue;
    if constexpr (kQuantised<Page>) multiply_tile(scores, rows.key_factors);
    for (int key = 0; key < begin; ++key) scores[key] = -INFINITY;
    for (int key = end; key < kTileKeys; ++key) scores[key] = -INFINITY;
    vfloat tile[kVectors];
    for (int i = 0; i < kVectors; ++i) tile[i] = load(scores + i * kLanes) * scale;
    if (softcap > 0) {
      for (int i = 0; i < kVectors; ++i) {
        const vfloat capped = softcap * tanh(tile[i] / softcap);
        tile[i] = tile[i] == -INFINITY ? tile[i] : capped;
      }
    }
    vfloat best = tile[0];
    for (int i = 1; i < kVectors; ++i) best = maximum(best, tile[i]);
    for (int i = 0; i < kVectors; ++i) store(scores + i * kLanes, tile[i]);
    const float old = state.maxima[pair];
    const float tile_maximum = max_lanes(best);
    state.maxima[pair] = old > tile_maximum ? old : tile_maximum;
    s.corrections[pair] = old - state.maxima[pair];
  }
}

// Turns the limited scores of a pair into weights e^(score - maximum), exactly 0 where masked. Returns their sums by lane.
template <class Weight, class Page>
inline vfloat weigh_scores(float* scores, bool is_blind, float maximum, const Rows<Page>& rows) {
  if (is_blind) {
    memset(scores, 0, sizeof(float) * kTileKeys);
    return vfloat{};
  }
  vfloat sum = {};
  for (int key = 0; key < kTileKeys; key += kLanes) {
    const vfloat weight = exp(load(scores + key) - maximum);
    sum += store_weights<kQuantised<Page>>(reinterpret_cast<Weight*>(scores), key, weight, rows);
  }
  return sum;
}

// Turns scores into weights and folds the tile into maxima and sums. Step by step for all pairs, so that none waits for
// another's maximum.
template <class Weight, class Page>
void soften_tile(const Scratch& s, const State& state, int pairs, float scale, float softcap, const Rows<Page>& rows) {
  limit_scores(s, state, pairs, scale, softcap, rows);
  for (int pair = 0; pair < pairs; pair += kLanes) store(s.corrections + pair, exp(load(s.corrections + pair)));
  constexpr int kPairs = 4;  // whose sums are added up at once
  for (int first = 0; first < pairs; first += kPairs) {
    vfloat sums[kPairs] = {};
    const int count = min(kPairs, pairs - first);
    for (int i = 0; i < count; ++i) {
      const int pair = first + i;
      const bool is_blind = s.first_key[pair] >= s.last_key[pair];
      sums[i] = weigh_scores<Weight>(s.scores + pair * kTileKeys, is_blind, state.maxima[pair], rows);
    }
    const vfloat4 added = sum_lanes(sums[0], sums[1], sums[2], sums[3]);
    for (int i = 0; i < count; ++i) {
      state.sums[first + i] = state.sums[first + i] * s.corrections[first + i] + added[i];
    }
  }
}

template <class Weight, class Page, int kVectors, class Ahead>
inline void value_columns(const Scratch& s, const State& state, int pairs, const Page* const* values, Ahead upcoming,
                          int column, int dim) {
  for (int pair = 0; pair < pairs; pair += kRowBlock) {
    const int rows = min(kRowBlock, pairs - pair);
    const Ahead ahead = pair == 0 ? upcoming : nullptr;
    const Weight* weights = weights_of<Weight>(s, pair);
    const float* corrections = s.corrections + pair;
    float* weighted = state.weighted + static_cast<int64_t>(pair) * dim + column;
    const int begin = s.first_key[pair], end = s.last_key[pair + rows - 1];
    const int common_begin = s.first_key[pair + rows - 1], common_end = s.last_key[pair];
    if (!std::is_same_v<Weight, float> || (begin == common_begin && end == common_end)) {
      value_rows<Page, kVectors>(rows, weights, corrections, values, ahead, begin, end, column, weighted, dim);
      continue;
    }
    // Keys that some pairs do not see are weighed for those alone that do: where a value is no finite number, 0 times it
    // would show.
    const auto weigh_alone = [&](const float* corrections, int from, int to) {
      for (int row = 0; row < rows; ++row) {
        const int first = max(from, s.first_key[pair + row]), last = min(to, s.last_key[pair + row]);
        value_rows<Page, kVectors>(1, weights_of<Weight>(s, pair + row), corrections + row, values, Ahead{}, first, last,
                                   column, weighted + static_cast<int64_t>(row) * dim, dim);
      }
    };
    constexpr float kNone[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    weigh_alone(corrections, 0, common_begin);
    if (common_begin < common_end) {
      value_rows<Page, kVectors>(rows, weights, kNone, values, ahead, common_begin, common_end, column, weighted, dim);
    }
    weigh_alone(kNone, max(common_begin, common_end), kTileKeys);
  }
}

// Adds the tile's weighted values; meanwhile fetches `upcoming`, the values of the next tile, unless null.
template <class Weight, class Page, class Ahead>
void weigh_tile(const Scratch& s, const State& state, int pairs, const Page* const* values, Ahead upcoming, int dim) {
  int column = 0;
  for (; column + kColumnVectors * kLanes <= dim; column += kColumnVectors * kLanes) {
    value_columns<Weight, Page, kColumnVectors>(s, state, pairs, values, upcoming, column, dim);
  }
  constexpr int kRest = kLeastVectors<Weight, Page>;
  for (; column < dim; column += kRest * kLanes) {
    value_columns<Weight, Page, kRest>(s, state, pairs, values, upcoming, column, dim);
  }
}

}  // namespace
