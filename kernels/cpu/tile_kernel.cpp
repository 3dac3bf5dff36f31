// Paged causal attention for one unit of work, compiled once per instruction set (see setup.py).
//
// A unit is a run of query rows of one sequence under one KV head, times the query heads of that KV head: its pairs.
// The kernel walks the unit's keys in tiles of 64 positions. Keys and values are read where they lie in their pages;
// tiles of narrower pages that many pairs share are first widened to float32 scratch, unless numbers are multiplied as
// bfloat16 (tile_bf16.h) or as codes (tile_codes.h). The scales of quantised pages are multiplied into scores and weights,
// never into rows. Knows nothing of threads or of other units.
#include <cmath>

#include "float_row.h"
#include "paged_attention.h"
#include "simd.h"
#include "tile.h"
#include "tile_bf16.h"
#include "tile_codes.h"
#include "tile_rows.h"

namespace {

using octavo::DType;
using octavo::kMostUnits;
using octavo::kSplitKeys;

constexpr int kWideningPairs = 12;  // from this many pairs on, widening a tile once is cheaper than in registers

#if defined(OCTAVO_SPREADS)
constexpr int64_t kTileBytes = 128 * 1024;  // this tile's and the next's stay in half of the second cache
#else
constexpr int64_t kTileBytes = 0;
#endif

template <class Page>
inline bool widens(const AttendCall& call, int pairs) {
  return call.head_dim != call.padded_dim() || (sizeof(Page) < sizeof(float) && pairs >= kWideningPairs);
}

// `upcoming` is the next tile, to be fetched meanwhile, or null.
template <class Page>
void attend_tile(const float*, const AttendCall& call, int pairs, const Tile& tile, const Rows<Page>& rows,
                 NextTile<Page> upcoming, const Scratch& s, const State& state) {
  const int dim = call.padded_dim();
  if (!widens<Page>(call, pairs)) {
    score_tile<float>(s, pairs, rows.keys, keys_of(upcoming), tile, dim);
    soften_tile<float>(s, state, pairs, call.scale, call.softcap, rows);
    weigh_tile<float>(s, state, pairs, rows.values, values_of(upcoming), dim);
    return;
  }
  Rows<float> wide;
  for (int key = 0; key < kTileKeys; ++key) {
    wide.keys[key] = s.keys + key * (dim + kRowGap);
    wide.values[key] = s.values + key * (dim + kRowGap);
  }
  for (int key = tile.begin; key < tile.end; ++key) {
    widen_page_row(rows.keys[key], s.keys + key * (dim + kRowGap), call.head_dim, dim);
  }
  score_tile<float>(s, pairs, wide.keys, kNothingAhead, tile, dim);
  soften_tile<float>(s, state, pairs, call.scale, call.softcap, rows);
  for (int key = tile.begin; key < tile.end; ++key) {
    widen_page_row(rows.values[key], s.values + key * (dim + kRowGap), call.head_dim, dim);
  }
  weigh_tile<float>(s, state, pairs, wide.values, kNothingAhead, dim);
}

#if defined(OCTAVO_SPREADS)
// Attends one split of a piece's units into their `states`, from nothing, by products of Number (float, or codes). The
// next tile's lines are fetched meanwhile, after the last one's those of the first of `next`.
template <class Number, class Page>
void attend_split(const AttendCall& call, const Piece& piece, int split, const Piece* next, const Scratch* scratch,
                  const State* states) {
  const int pairs = piece.unit->num_rows * call.group(), dim = call.padded_dim();
  for (int i = 0; i < piece.num_units; ++i) states[i].clear(pairs, dim);
  const int end = min((split + 1) * kSplitKeys, piece.unit->kv_end);
  const int first = max(split * kSplitKeys, piece.unit->kv_begin / kTileKeys * kTileKeys);
  Rows<Page> rows;
  TileLines lines;
  for (int start = first; start < end; start += kTileKeys) {
    if (start + kTileKeys < piece.last_key()) {
      line_up<Page>(call, piece, Tile(*piece.unit, start + kTileKeys), lines);
    } else if (next != nullptr) {
      line_up<Page>(call, *next, Tile(*next->unit, next->first_key() / kTileKeys * kTileKeys), lines);
    } else {
      lines.num_runs = 0;
    }
    Upcoming upcoming(lines);
    NextTile<Page> ahead = lines.num_runs == 0 ? nullptr : &upcoming;
    const Tile tile(*piece.unit, start);
    for (int i = 0; i < piece.num_units; ++i) {
      const Unit& unit = piece.unit[i];
      locate(call, unit, tile, rows);
      if constexpr (kQuantised<Page>) take_factors(rows);
      mark_visible(call, unit, tile, scratch[i]);
      const Number* chosen = nullptr;
      attend_tile(chosen, call, pairs, tile, rows, ahead, scratch[i], states[i]);
    }
  }
}
#else
// Attends one split of a piece into `state`, from nothing, by products of Number (float or bf16). Tiles are fetched one
// ahead, after the last one the first of `next`.
template <class Number, class Page>
void attend_split(const AttendCall& call, const Piece& piece, int split, const Piece* next, const Scratch& s,
                  State state) {
  const Unit& unit = *piece.unit;
  state.clear(unit.num_rows * call.group(), call.padded_dim());
  const int end = min((split + 1) * kSplitKeys, unit.kv_end);
  const int first = max(split * kSplitKeys, unit.kv_begin / kTileKeys * kTileKeys);
  Rows<Page> rows[2];
  locate(call, unit, Tile(unit, first), rows[0]);
  for (int start = first, current = 0; start < end; start += kTileKeys, current ^= 1) {
    const Rows<Page>* upcoming = &rows[current ^ 1];
    if (start + kTileKeys < piece.last_key()) {
      locate(call, unit, Tile(unit, start + kTileKeys), rows[current ^ 1]);
    } else if (next != nullptr) {
      locate(call, *next->unit, Tile(*next->unit, next->first_key() / kTileKeys * kTileKeys), rows[current ^ 1]);
    } else {
      upcoming = nullptr;
    }
    const Tile tile(unit, start);
    if constexpr (kQuantised<Page>) take_factors(rows[current]);
    mark_visible(call, unit, tile, s);
    const Number* chosen = nullptr;
    attend_tile(chosen, call, unit.num_rows * call.group(), tile, rows[current], upcoming, s, state);
  }
}
#endif

// Folds the next split's state into the total (log-sum-exp merge). One without a maximum has seen nothing, or scores that
// are no numbers, which its sum shows.
void fold(State total, State next, int pairs, int dim) {
  for (int pair = 0; pair < pairs; ++pair) {
    const float left = total.maxima[pair], right = next.maxima[pair];
    if (right == -INFINITY && next.sums[pair] == 0.0f) continue;
    const float maximum = left > right ? left : right;
    const float keep = exp(left - maximum), add = exp(right - maximum);
    float* to = total.weighted + static_cast<int64_t>(pair) * dim;
    const float* from = next.weighted + static_cast<int64_t>(pair) * dim;
    for (int i = 0; i < dim; i += kLanes) store(to + i, fma(broadcast(add), load(from + i), load(to + i) * keep));
    total.sums[pair] = total.sums[pair] * keep + next.sums[pair] * add;
    total.maxima[pair] = maximum;
  }
}

// Where the query of a pair begins in the call.
template <class Element>
const Element* query_row(const AttendCall& call, const Unit& unit, int pair) {
  const int group = call.group();
  const Element* token = static_cast<const Element*>(call.query) + (unit.first_token + pair / group) * call.query_stride;
  return token + (static_cast<int64_t>(unit.kv_head) * group + pair % group) * call.head_dim;
}

template <class Element>
void widen_query(const AttendCall& call, const Unit& unit, const Scratch& s) {
  const int pairs = unit.num_rows * call.group(), dim = call.padded_dim();
  for (int pair = 0; pair < pairs; ++pair) {
    widen_row(query_row<Element>(call, unit, pair), s.query + static_cast<int64_t>(pair) * dim, call.head_dim, dim);
  }
}

void load_query(const AttendCall& call, const Unit& unit, const Scratch& s) {
  switch (call.query_dtype) {
    case DType::float32: widen_query<float>(call, unit, s); break;
    case DType::bfloat16: widen_query<bf16>(call, unit, s); break;
    case DType::float16: widen_query<f16>(call, unit, s); break;
    default: return;  // queries are never quantised
  }
  if (spreads(call.pages_dtype)) {
    const int64_t count = static_cast<int64_t>(unit.num_rows) * call.group() * call.padded_dim();
    spread_row(s.query, count, unit_of(call.pages_dtype));
  }
}

// What the weighted values of a pair are divided by: all weights, and that of its head's sink. The latter may be
// infinite, where all others are 0 beside it.
inline float divisor(const AttendCall& call, int head, const State& total, int pair) {
  const float sum = total.sums[pair];
  return call.sinks == nullptr ? sum : sum + std::exp(call.sinks[head] - total.maxima[pair]);
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
      const float all = divisor(call, unit.kv_head * group + head, total, pair);
      // Adding 0 turns -0 into +0: whether an underflowed sum kept its sign may depend on how many masked keys
      // followed.
      for (int i = 0; i < dim; i += kLanes) store(weighted + i, load(weighted + i) / all + 0.0f);
      if (spreads(call.pages_dtype)) gather_row(weighted, dim, unit_of(call.pages_dtype));
      narrow_row(weighted, target + static_cast<int64_t>(head) * call.head_dim, call.head_dim);
    }
  }
}

void write_output(const AttendCall& call, const Unit& unit, State total) {
  switch (call.query_dtype) {
    case DType::float32: return store_output<float>(call, unit, total);
    case DType::bfloat16: return store_output<bf16>(call, unit, total);
    case DType::float16: return store_output<f16>(call, unit, total);
    default: return;  // queries are never quantised
  }
}

#if defined(OCTAVO_SPREADS)
template <class Number, class Page>
void run_splits(const AttendCall& call, const Piece& piece, const Piece* next_piece, const Scratch* scratch) {
  const int pairs = piece.unit->num_rows * call.group(), dim = call.padded_dim();
  const bool is_whole = piece.unit->partials == nullptr;
  State states[kMostUnits], totals[kMostUnits];
  for (int i = 0; i < piece.num_units; ++i) {
    states[i] = State(scratch[i].split, pairs, dim);
    totals[i] = State(scratch[i].total, pairs, dim);
    if (is_whole) totals[i].clear(pairs, dim);
  }
  for (int split = piece.split_begin; split < piece.split_end; ++split) {
    for (int i = 0; i < piece.num_units && !is_whole; ++i) {
      const Unit& unit = piece.unit[i];
      states[i] =
          State(unit.partials + (split - unit.split_begin()) * octavo::partial_floats(pairs, dim), pairs, dim);
    }
    attend_split<Number, Page>(call, piece, split, next_piece, scratch, states);
    for (int i = 0; i < piece.num_units && is_whole; ++i) fold(totals[i], states[i], pairs, dim);
  }
  for (int i = 0; i < piece.num_units && is_whole; ++i) write_output(call, piece.unit[i], totals[i]);
}
#else
template <class Number, class Page>
void run_splits(const AttendCall& call, const Piece& piece, const Piece* next_piece, const Scratch& s) {
  const Unit& unit = *piece.unit;
  const int pairs = unit.num_rows * call.group(), dim = call.padded_dim();
  if (unit.partials != nullptr) {
    for (int split = piece.split_begin; split < piece.split_end; ++split) {
      float* slot = unit.partials + (split - unit.split_begin()) * octavo::partial_floats(pairs, dim);
      attend_split<Number, Page>(call, piece, split, next_piece, s, State(slot, pairs, dim));
    }
    return;
  }
  State total(s.total, pairs, dim), next(s.split, pairs, dim);
  total.clear(pairs, dim);
  for (int split = piece.split_begin; split < piece.split_end; ++split) {
    attend_split<Number, Page>(call, piece, split, next_piece, s, next);
    fold(total, next, pairs, dim);
  }
  write_output(call, unit, total);
}
#endif

#if defined(OCTAVO_SPREADS)
void run(const AttendCall& call, const Piece& piece, const Piece* next, float* scratch) {
  const int pairs = piece.unit->num_rows * call.group(), dim = call.padded_dim();
  Scratch own[kMostUnits];
  for (int i = 0; i < piece.num_units; ++i) {
    own[i] = Scratch(scratch + i * Scratch::floats(pairs, dim), pairs, dim);
    load_query(call, piece.unit[i], own[i]);
    if (multiplies_codes(call)) quantise_query(own[i], pairs, call.head_dim);
  }
  if (multiplies_codes(call)) return run_splits<i8, i8>(call, piece, next, own);
  switch (call.pages_dtype) {
    case DType::float32: return run_splits<float, float>(call, piece, next, own);
    case DType::bfloat16: return run_splits<float, bf16>(call, piece, next, own);
    case DType::float16: return run_splits<float, f16>(call, piece, next, own);
    case DType::int8: return run_splits<float, i8>(call, piece, next, own);
    case DType::float8_e4m3: return run_splits<float, f8>(call, piece, next, own);
  }
}
#else
void run(const AttendCall& call, const Piece& piece, const Piece* next, float* scratch) {
  const Unit& unit = *piece.unit;
  const Scratch s(scratch, unit.num_rows * call.group(), call.padded_dim());
  load_query(call, unit, s);
#if defined(OCTAVO_MULTIPLIES_CODES)
  if (multiplies_codes(call)) {
    quantise_query(s, unit.num_rows * call.group(), call.head_dim);
    return run_splits<i8, i8>(call, piece, next, s);
  }
#endif
#if defined(OCTAVO_MULTIPLIES_BF16)
  if (multiplies_bf16(call)) {
    narrow_query(s, unit.num_rows * call.group(), call.head_dim, is_quantised(call.pages_dtype));
    switch (call.pages_dtype) {
      case DType::bfloat16: return run_splits<bf16, bf16>(call, piece, next, s);
      case DType::float8_e4m3: return run_splits<bf16, f8>(call, piece, next, s);
      default: return;
    }
  }
#endif
  switch (call.pages_dtype) {
    case DType::float32: return run_splits<float, float>(call, piece, next, s);
    case DType::bfloat16: return run_splits<float, bf16>(call, piece, next, s);
    case DType::float16: return run_splits<float, f16>(call, piece, next, s);
    case DType::int8: return run_splits<float, i8>(call, piece, next, s);
    case DType::float8_e4m3: return run_splits<float, f8>(call, piece, next, s);
  }
}
#endif

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
    float wide[32];
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
    default: return;
  }
}

void convert(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count) {
  switch (source_dtype) {
    case DType::float32: return convert_from<float>(source, target, target_dtype, count);
    case DType::bfloat16: return convert_from<bf16>(source, target, target_dtype, count);
    case DType::float16: return convert_from<f16>(source, target, target_dtype, count);
    default: return;
  }
}

// The next up to kLanes elements of a row, zeros after its end.
template <class Source>
inline vfloat load_some(const Source* source, int64_t count) {
  if (count >= kLanes) return load(source);
  Source tail[kLanes] = {};
  memcpy(tail, source, sizeof(Source) * count);
  return load(tail);
}

template <class Source, class Target>
float quantise_row(const Source* source, Target* target, float largest, int64_t count) {
  vint most = {};
  for (int64_t i = 0; i < count; i += kLanes) most = larger_magnitude(most, load_some(source + i, count - i));
  int32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits = max(bits, most[lane]);
  if (bits >= 0x7f800000) {
    memset(target, 0, sizeof(Target) * count);
    return NAN;
  }
  float absmax;
  memcpy(&absmax, &bits, sizeof absmax);
  const float scale = absmax / largest;
  const float divisor = scale > 0 ? scale : 1.0f;
  for (int64_t i = 0; i < count; i += kLanes) {
    vfloat quotient = load_some(source + i, count - i) / divisor;
    quotient = quotient > largest ? broadcast(largest) : quotient < -largest ? broadcast(-largest) : quotient;
    Target codes[kLanes];
    store(codes, quotient);
    memcpy(target + i, codes, sizeof(Target) * (count - i < kLanes ? count - i : kLanes));
  }
  return scale;
}

template <class Source>
float quantise_from(const void* source, void* target, DType target_dtype, int64_t count) {
  const Source* from = static_cast<const Source*>(source);
  if (target_dtype == DType::int8) return quantise_row(from, static_cast<i8*>(target), 127.0f, count);
  return quantise_row(from, static_cast<f8*>(target), 448.0f, count);
}

float quantise(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count) {
  switch (source_dtype) {
    case DType::float32: return quantise_from<float>(source, target, target_dtype, count);
    case DType::bfloat16: return quantise_from<bf16>(source, target, target_dtype, count);
    case DType::float16: return quantise_from<f16>(source, target, target_dtype, count);
    default: return NAN;
  }
}

}  // namespace

namespace octavo {
extern const KernelTable OCTAVO_KERNELS = {Scratch::floats, run, merge, convert, quantise, kTileBytes};
}  // namespace octavo
