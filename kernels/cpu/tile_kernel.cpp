// Paged causal attention for one unit of work, compiled once per instruction set (see setup.py).
//
// A unit is a run of query rows of one sequence under one KV head, times the query heads of that KV head: its pairs. The
// kernel walks the unit's keys in tiles of 64 positions: scores, online softmax, weighted values. Keys and values are read
// where they lie in their pages; tiles of 16-bit pages that many pairs share are first widened to float32 scratch.
// Knows nothing of threads or of other units.
#include <cmath>

#include "paged_attention.h"
#include "simd.h"

namespace {

using octavo::AttendCall;
using octavo::DType;
using octavo::kSplitKeys;
using octavo::kTileKeys;
using octavo::Unit;

constexpr int kKeyBlock = 4;         // keys per register block of the scores
constexpr int kCachedKeys = 16;      // keys that stay in L1 while all pairs pass
constexpr int kWideningPairs = 12;   // from this many pairs on, widening a tile once is cheaper than in registers
constexpr int kColumnVectors = 4;    // vectors of head_dim per register block of the values

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

// Running softmax of every pair: sum over keys of e^(score - maximum) times value, and times 1.
struct State {
  float* weighted;  // [pairs, padded_dim]
  float* maxima;    // [pairs]
  float* sums;      // [pairs]

  State(float* base, int pairs, int dim)
      : weighted(base), maxima(base + static_cast<int64_t>(pairs) * dim), sums(maxima + pairs) {}

  void clear(int pairs, int dim) {
    memset(weighted, 0, sizeof(float) * pairs * dim);
    memset(sums, 0, sizeof(float) * pairs);
    for (int pair = 0; pair < pairs; ++pair) maxima[pair] = -INFINITY;
  }
};

// Scratch of one unit, carved from one allocation.
struct Scratch {
  float* query;      // [pairs, padded_dim], scaled
  float* scores;     // [pairs, kTileKeys], then the weights
  float* keys;       // [kTileKeys, padded_dim], widened
  float* values;     // likewise
  float* corrections;  // [pairs]
  float* split;      // one partial slot
  float* total;      // one partial slot
  int32_t* first_key;  // [pairs], visible range within the tile
  int32_t* last_key;   // [pairs], one past

  static int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }

  static int64_t floats(int pairs, int dim) {
    return round_up(static_cast<int64_t>(pairs) * dim) + round_up(pairs * kTileKeys) + 2 * kTileKeys * dim +
           3 * round_up(pairs) + 2 * round_up(octavo::partial_floats(pairs, dim));
  }

  Scratch(float* base, int pairs, int dim) {
    const auto take = [&base](int64_t count) {
      float* part = base;
      base += round_up(count);
      return part;
    };
    query = take(static_cast<int64_t>(pairs) * dim);
    scores = take(pairs * kTileKeys);
    keys = take(kTileKeys * dim);
    values = take(kTileKeys * dim);
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
};

template <class Source>
inline void widen_row(const Source* source, float* target, int head_dim, int dim) {
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(target + i, load(source + i));
  if (i < head_dim) {
    Source tail[kLanes] = {};
    memcpy(tail, source + i, sizeof(Source) * (head_dim - i));
    store(target + i, load(tail));
    i += kLanes;
  }
  for (; i < dim; i += kLanes) store(target + i, vfloat{});
}

template <class Target>
inline void narrow_row(const float* source, Target* target, int head_dim) {
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(target + i, load(source + i));
  if (i < head_dim) {
    Target tail[kLanes];
    store(tail, load(source + i));
    memcpy(target + i, tail, sizeof(Target) * (head_dim - i));
  }
}

template <class Page, int kRows>
inline void score_block(const float* query, const Page* const* keys, int dim, float* scores) {
  vfloat sums[kRows][kKeyBlock] = {};
  const Page *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  for (int i = 0; i < dim; i += kLanes) {
    const vfloat key[kKeyBlock] = {load(k0 + i), load(k1 + i), load(k2 + i), load(k3 + i)};
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const vfloat q = load(query + row * dim + i);
#pragma GCC unroll 4
      for (int k = 0; k < kKeyBlock; ++k) sums[row][k] = fma(q, key[k], sums[row][k]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const vfloat4 dots = sum_lanes(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    memcpy(scores + row * kTileKeys, &dots, sizeof dots);
  }
}

// Scores of the pairs of one register block against keys begin .. end - 1 of the tile.
template <class Page>
inline void score_rows(const Scratch& s, int pair, int rows, const Page* const* keys, int begin, int end, int dim) {
  const float* query = s.query + static_cast<int64_t>(pair) * dim;
  for (int key = begin; key < end; key += kKeyBlock) {
    float* scores = s.scores + pair * kTileKeys + key;
    if (rows == kRowBlock) {
      score_block<Page, kRowBlock>(query, keys + key, dim, scores);
    } else if (rows == 3) {
      score_block<Page, 3>(query, keys + key, dim, scores);
    } else if (rows == 2) {
      score_block<Page, 2>(query, keys + key, dim, scores);
    } else {
      score_block<Page, 1>(query, keys + key, dim, scores);
    }
  }
}

template <class Page>
void score_tile(const Scratch& s, int pairs, const Page* const* keys, const Tile& tile, int dim) {
  const int first = tile.begin / kKeyBlock * kKeyBlock;
  for (int cached = first; cached < tile.end; cached += kCachedKeys) {
    for (int pair = 0; pair < pairs; pair += kRowBlock) {
      const int rows = min(kRowBlock, pairs - pair);
      // Rows ascend in position, so the first sees the earliest key and the last the latest.
      const int begin = max(cached, s.first_key[pair] / kKeyBlock * kKeyBlock);
      const int end = min(cached + kCachedKeys, s.last_key[pair + rows - 1]);
      score_rows(s, pair, rows, keys, begin, end, dim);
    }
  }
}

// Turns scores into weights e^(score - maximum), exactly 0 where masked, and folds the tile into maxima and sums.
void soften_tile(const Scratch& s, const State& state, int pairs, float softcap) {
  constexpr int kVectors = kTileKeys / kLanes;
  for (int pair = 0; pair < pairs; ++pair) {
    float* scores = s.scores + pair * kTileKeys;
    const int begin = s.first_key[pair], end = s.last_key[pair];
    if (begin >= end) {
      s.corrections[pair] = 1.0f;
      memset(scores, 0, sizeof(float) * kTileKeys);
      continue;
    }
    for (int key = 0; key < begin; ++key) scores[key] = -INFINITY;
    for (int key = end; key < kTileKeys; ++key) scores[key] = -INFINITY;
    vfloat tile[kVectors];
    for (int i = 0; i < kVectors; ++i) tile[i] = load(scores + i * kLanes);
    if (softcap > 0) {
      for (int i = 0; i < kVectors; ++i) {
        const vfloat capped = softcap * tanh(tile[i] / softcap);
        tile[i] = tile[i] == -INFINITY ? tile[i] : capped;
      }
    }
    vfloat best = tile[0];
    for (int i = 1; i < kVectors; ++i) best = maximum(best, tile[i]);
    const float old = state.maxima[pair];
    const float tile_maximum = max_lanes(best);
    const float maximum = old > tile_maximum ? old : tile_maximum;
    const float correction = exp(old - maximum);
    vfloat sum = {};
    for (int i = 0; i < kVectors; ++i) {
      const vfloat weight = exp(tile[i] - maximum);
      store(scores + i * kLanes, weight);
      sum += weight;
    }
    state.maxima[pair] = maximum;
    state.sums[pair] = state.sums[pair] * correction + sum_lanes(sum);
    s.corrections[pair] = correction;
  }
}

template <class Page, int kRows, int kVectors>
inline void value_block(const float* weights, const float* corrections, const Page* const* values, int begin, int end,
                        int column, float* weighted, int dim) {
  vfloat sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(weighted + row * dim + v * kLanes) * corrections[row];
  }
  for (int key = begin; key < end; ++key) {
    const Page* p = values[key] + column;
    vfloat value[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) value[v] = load(p + v * kLanes);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const vfloat weight = broadcast(weights[row * kTileKeys + key]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] = fma(weight, value[v], sums[row][v]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(weighted + row * dim + v * kLanes, sums[row][v]);
  }
}

template <class Page, int kVectors>
inline void value_columns(const Scratch& s, const State& state, int pairs, const Page* const* values, int column,
                          int dim) {
  for (int pair = 0; pair < pairs; pair += kRowBlock) {
    const int rows = min(kRowBlock, pairs - pair);
    const int begin = s.first_key[pair], end = s.last_key[pair + rows - 1];
    const float* weights = s.scores + pair * kTileKeys;
    const float* corrections = s.corrections + pair;
    float* weighted = state.weighted + static_cast<int64_t>(pair) * dim + column;
    if (rows == kRowBlock) {
      value_block<Page, kRowBlock, kVectors>(weights, corrections, values, begin, end, column, weighted, dim);
    } else if (rows == 3) {
      value_block<Page, 3, kVectors>(weights, corrections, values, begin, end, column, weighted, dim);
    } else if (rows == 2) {
      value_block<Page, 2, kVectors>(weights, corrections, values, begin, end, column, weighted, dim);
    } else {
      value_block<Page, 1, kVectors>(weights, corrections, values, begin, end, column, weighted, dim);
    }
  }
}

template <class Page>
void weigh_tile(const Scratch& s, const State& state, int pairs, const Page* const* values, int dim) {
  int column = 0;
  for (; column + kColumnVectors * kLanes <= dim; column += kColumnVectors * kLanes) {
    value_columns<Page, kColumnVectors>(s, state, pairs, values, column, dim);
  }
  for (; column < dim; column += kLanes) value_columns<Page, 1>(s, state, pairs, values, column, dim);
}

// Where each key of the tile lies. Entries that pad a register block repeat a visible row: their scores are masked later.
template <class Page>
void locate_rows(const AttendCall& call, const Unit& unit, const Tile& tile, const Page** keys, const Page** values) {
  const int32_t* table = call.block_table + unit.sequence * call.block_table_stride;
  const int64_t head = static_cast<int64_t>(unit.kv_head) * call.block_size * call.head_dim;
  int key = tile.begin;
  while (key < tile.end) {
    const int position = tile.start + key;
    const int block = position / call.block_size;
    const int64_t page = table[block];
    const int64_t offset = head + static_cast<int64_t>(position - block * call.block_size) * call.head_dim;
    const Page* key_row = static_cast<const Page*>(call.key_pages) + page * call.key_page_stride + offset;
    const Page* value_row = static_cast<const Page*>(call.value_pages) + page * call.value_page_stride + offset;
    const int end = min(tile.end, key + (block + 1) * call.block_size - position);
    for (; key < end; ++key) {
      keys[key] = key_row;
      values[key] = value_row;
      key_row += call.head_dim;
      value_row += call.head_dim;
    }
  }
  for (int pad = tile.begin / kKeyBlock * kKeyBlock; pad < tile.begin; ++pad) keys[pad] = keys[tile.begin];
  for (int pad = tile.end; pad % kKeyBlock != 0; ++pad) keys[pad] = keys[tile.begin];
}

template <class Row>
inline void attend_rows(const Scratch& s, const State& state, int pairs, const Row* const* keys,
                        const Row* const* values, const Tile& tile, const AttendCall& call) {
  const int dim = call.padded_dim();
  score_tile(s, pairs, keys, tile, dim);
  soften_tile(s, state, pairs, call.softcap);
  weigh_tile(s, state, pairs, values, dim);
}

template <class Page>
void attend_tile(const AttendCall& call, const Unit& unit, const Tile& tile, const Scratch& s, const State& state) {
  const int group = call.group(), pairs = unit.num_rows * group, dim = call.padded_dim();
  for (int row = 0; row < unit.num_rows; ++row) {
    const int position = unit.first_position + row;
    const int begin = call.window > 0 ? max(tile.begin, position - call.window + 1 - tile.start) : tile.begin;
    const int end = min(tile.end, position + 1 - tile.start);
    for (int head = 0; head < group; ++head) {
      s.first_key[row * group + head] = begin;
      s.last_key[row * group + head] = end;
    }
  }
  const Page *keys[kTileKeys], *values[kTileKeys];
  locate_rows(call, unit, tile, keys, values);
  const bool widen = call.head_dim != dim || (sizeof(Page) < sizeof(float) && pairs >= kWideningPairs);
  if (!widen) {
    attend_rows(s, state, pairs, keys, values, tile, call);
    return;
  }
  const float *wide_keys[kTileKeys], *wide_values[kTileKeys];
  for (int key = 0; key < kTileKeys; ++key) {
    wide_keys[key] = s.keys + key * dim;
    wide_values[key] = s.values + key * dim;
  }
  for (int key = tile.begin; key < tile.end; ++key) {
    widen_row(keys[key], s.keys + key * dim, call.head_dim, dim);
    widen_row(values[key], s.values + key * dim, call.head_dim, dim);
  }
  attend_rows(s, state, pairs, wide_keys, wide_values, tile, call);
}

template <class Page>
void attend_split(const AttendCall& call, const Unit& unit, int split, const Scratch& s, State state) {
  const int pairs = unit.num_rows * call.group();
  state.clear(pairs, call.padded_dim());
  const int end = min((split + 1) * kSplitKeys, unit.kv_end);
  for (int start = split * kSplitKeys; start < end; start += kTileKeys) {
    const Tile tile = {start, max(unit.kv_begin - start, 0), min(end - start, kTileKeys)};
    if (tile.begin < tile.end) attend_tile<Page>(call, unit, tile, s, state);
  }
}

// Folds the next split's state into the total (log-sum-exp merge).
void fold(State total, State next, int pairs, int dim) {
  for (int pair = 0; pair < pairs; ++pair) {
    const float left = total.maxima[pair], right = next.maxima[pair];
    if (right == -INFINITY) continue;
    const float maximum = left > right ? left : right;
    const float keep = exp(left - maximum), add = exp(right - maximum);
    float* to = total.weighted + static_cast<int64_t>(pair) * dim;
    const float* from = next.weighted + static_cast<int64_t>(pair) * dim;
    for (int i = 0; i < dim; i += kLanes) store(to + i, fma(broadcast(add), load(from + i), load(to + i) * keep));
    total.sums[pair] = total.sums[pair] * keep + next.sums[pair] * add;
    total.maxima[pair] = maximum;
  }
}

template <class Element>
void load_query(const AttendCall& call, const Unit& unit, const Scratch& s) {
  const int group = call.group(), dim = call.padded_dim();
  const int64_t first_head = static_cast<int64_t>(unit.kv_head) * group;
  for (int row = 0; row < unit.num_rows; ++row) {
    const Element* source = static_cast<const Element*>(call.query) + (unit.first_token + row) * call.query_stride;
    for (int head = 0; head < group; ++head) {
      float* target = s.query + static_cast<int64_t>(row * group + head) * dim;
      widen_row(source + (first_head + head) * call.head_dim, target, call.head_dim, dim);
      for (int i = 0; i < dim; i += kLanes) store(target + i, load(target + i) * call.scale);
    }
  }
}

template <class Element>
void store_output(const AttendCall& call, const Unit& unit, State total) {
  const int group = call.group(), dim = call.padded_dim();
  for (int row = 0; row < unit.num_rows; ++row) {
    const int64_t token = unit.first_token + row;
    Element* target = static_cast<Element*>(call.output) +
                      (token * call.num_q_heads + static_cast<int64_t>(unit.kv_head) * group) * call.head_dim;
    for (int head = 0; head < group; ++head) {
      const int pair = row * group + head;
      float* weighted = total.weighted + static_cast<int64_t>(pair) * dim;
      // Adding 0 turns -0 into +0: whether an underflowed sum kept its sign may depend on how many masked keys followed.
      for (int i = 0; i < dim; i += kLanes) store(weighted + i, load(weighted + i) / total.sums[pair] + 0.0f);
      narrow_row(weighted, target + static_cast<int64_t>(head) * call.head_dim, call.head_dim);
    }
  }
}

void write_output(const AttendCall& call, const Unit& unit, State total) {
  switch (call.query_dtype) {
    case DType::float32: return store_output<float>(call, unit, total);
    case DType::bfloat16: return store_output<bf16>(call, unit, total);
    case DType::float16: return store_output<f16>(call, unit, total);
  }
}

template <class Page>
void run_splits(const AttendCall& call, const Unit& unit, int split_begin, int split_end, const Scratch& s) {
  const int pairs = unit.num_rows * call.group(), dim = call.padded_dim();
  if (unit.partials != nullptr) {
    for (int split = split_begin; split < split_end; ++split) {
      float* slot = unit.partials + (split - unit.split_begin()) * octavo::partial_floats(pairs, dim);
      attend_split<Page>(call, unit, split, s, State(slot, pairs, dim));
    }
    return;
  }
  State total(s.total, pairs, dim), next(s.split, pairs, dim);
  total.clear(pairs, dim);
  for (int split = split_begin; split < split_end; ++split) {
    attend_split<Page>(call, unit, split, s, next);
    fold(total, next, pairs, dim);
  }
  write_output(call, unit, total);
}

void run(const AttendCall& call, const Unit& unit, int split_begin, int split_end, float* scratch) {
  const Scratch s(scratch, unit.num_rows * call.group(), call.padded_dim());
  switch (call.query_dtype) {
    case DType::float32: load_query<float>(call, unit, s); break;
    case DType::bfloat16: load_query<bf16>(call, unit, s); break;
    case DType::float16: load_query<f16>(call, unit, s); break;
  }
  switch (call.pages_dtype) {
    case DType::float32: return run_splits<float>(call, unit, split_begin, split_end, s);
    case DType::bfloat16: return run_splits<bf16>(call, unit, split_begin, split_end, s);
    case DType::float16: return run_splits<f16>(call, unit, split_begin, split_end, s);
  }
}

void merge(const AttendCall& call, const Unit& unit, float* scratch) {
  const int pairs = unit.num_rows * call.group(), dim = call.padded_dim();
  State total(Scratch(scratch, pairs, dim).total, pairs, dim);
  total.clear(pairs, dim);
  for (int split = unit.split_begin(); split < unit.split_end(); ++split) {
    float* slot = unit.partials + (split - unit.split_begin()) * octavo::partial_floats(pairs, dim);
    fold(total, State(slot, pairs, dim), pairs, dim);
  }
  write_output(call, unit, total);
}

template <class Source, class Target>
void convert_row(const void* source, void* target, int64_t count) {
  const Source* from = static_cast<const Source*>(source);
  Target* to = static_cast<Target*>(target);
  for (int64_t i = 0; i < count; i += kLanes) {
    float wide[16];
    const int n = static_cast<int>(count - i < kLanes ? count - i : kLanes);
    widen_row(from + i, wide, n, n);
    narrow_row(wide, to + i, n);
  }
}

template <class Source>
void convert_from(const void* source, void* target, DType target_dtype, int64_t count) {
  switch (target_dtype) {
    case DType::float32: return convert_row<Source, float>(source, target, count);
    case DType::bfloat16: return convert_row<Source, bf16>(source, target, count);
    case DType::float16: return convert_row<Source, f16>(source, target, count);
  }
}

void convert(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count) {
  switch (source_dtype) {
    case DType::float32: return convert_from<float>(source, target, target_dtype, count);
    case DType::bfloat16: return convert_from<bf16>(source, target, target_dtype, count);
    case DType::float16: return convert_from<f16>(source, target, target_dtype, count);
  }
}

}  // namespace

namespace octavo {
extern const KernelTable OCTAVO_KERNELS = {Scratch::floats, run, merge, convert};
}  // namespace octavo
