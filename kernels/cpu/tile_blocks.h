// Register blocks of a tile: scores of some pairs and keys, weighted values of some pairs and columns.
//
// Internal linkage throughout, for the reason given in simd.h.
#pragma once

#include "float_row.h"
#include "paged_attention.h"
#include "simd.h"

namespace {

using octavo::kTileKeys;

constexpr int kKeyBlock = 4;       // keys per register block of the scores
constexpr int kCachedKeys = 16;    // keys that stay in L1 while all pairs pass

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

template <int kRows>
inline void store_scores(const vfloat (&sums)[kRows][kKeyBlock], float* scores) {
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const vfloat4 dots = sum_lanes(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    memcpy(scores + row * kTileKeys, &dots, sizeof dots);
  }
}

// Asks for part of a row ahead of its use: pages lie apart, and the hardware's prefetchers stop at every border.
template <class Page>
inline void prefetch(const Page* row, int count) {
  for (int i = 0; i < count; i += 64 / static_cast<int>(sizeof(Page))) __builtin_prefetch(row + i, 0, 2);
}

#if defined(OCTAVO_SPREADS)  // 16 registers

// Floats between widened rows: without them the same columns of many rows fall into the same sets of L1.
constexpr int kRowGap = 16;

// Blocks are functions of their own: inlined, they run short of registers for pointers.
//
// As many sums at once as hide how long each takes, in registers of which as many are left as there are factors.
template <int kRows>
constexpr int kKeysAtOnce = kRows <= 2 ? 4 : 2;
template <int kRows>
constexpr int kVectorsAtOnce = kRows == 1 ? 8 : kRows == 2 ? 4 : 2;
constexpr int kColumnVectors = 8;  // vectors of head_dim whose values stay in L1 while all pairs pass

// Without this GCC loads a factor once more for each instruction that it is in.
inline vfloat in_register(vfloat x) {
  asm("" : "+x"(x));
  return x;
}

// Asks for rows that follow each other line by line, which memory and its prefetchers like best.
template <class Page, bool fetches>
class LinesAhead {
 public:
  // From the element on that is `element` elements behind the beginning of the first row. No rows unless it fetches.
  LinesAhead(const Page* const* rows, int num_rows, int dim, int element)
      : row_(rows + element / dim), end_(rows + num_rows), column_(element % dim), dim_(dim) {}

  // The share of a step that reads so many elements after as many others as are given: evenly, as lines are needed.
  void fetch_share(int elements_before, int elements) {
    if (!fetches) return;
    if (elements >= kLine) {
      for (int i = 0; i < elements / kLine; ++i) fetch();
    } else if (elements_before % kLine == 0) {
      fetch();
    }
  }

 private:
  static constexpr int kLine = 64 / static_cast<int>(sizeof(Page));  // elements

  void fetch() {
    if (row_ >= end_) return;
    __builtin_prefetch(*row_ + column_, 0, 2);
    column_ += kLine;
    if (column_ < dim_) return;
    column_ = 0;
    ++row_;
  }

  const Page* const* row_;
  const Page* const* end_;
  int column_;
  int dim_;
};

template <class Key, int kRows, bool fetches, class Page>
[[gnu::noinline]] void score_keys(const float* query, const Key* const* keys, const Page* const* upcoming, int dim,
                                  float* scores) {
  constexpr int kKeys = kKeysAtOnce<kRows>, kStep = kParts * kLanes;
  vfloat sums[kRows][kKeyBlock];
#pragma GCC unroll 2
  for (int first = 0; first < kKeyBlock; first += kKeys) {
    vfloat part[kRows][kKeys];
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) part[row][k] = vfloat{};
    }
    LinesAhead<Page, fetches> ahead(upcoming + first, kKeys, dim, 0);
    for (int i = 0; i < dim; i += kStep) {
      ahead.fetch_share(kKeys * i, kKeys * kStep);
#pragma GCC unroll 2
      for (int v = 0; v < kParts; ++v) {
        vfloat key[kKeys];
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) key[k] = in_register(load_part(keys[first + k] + i, v));
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          const vfloat q = in_register(load(query + row * dim + i + v * kLanes));
#pragma GCC unroll 4
          for (int k = 0; k < kKeys; ++k) part[row][k] = fma(q, key[k], part[row][k]);
        }
      }
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) sums[row][first + k] = part[row][k];
    }
  }
  store_scores<kRows>(sums, scores);
}

template <class Key, int kRows, class Page>
inline void score_block(const float* query, const Key* const* keys, const Page* const* upcoming, int dim,
                        float* scores) {
  const auto score = upcoming == nullptr ? score_keys<Key, kRows, false, Page> : score_keys<Key, kRows, true, Page>;
  score(query, keys, upcoming, dim, scores);
}

// Whether each block of a few columns of values asks for its own share of lines. Of wider elements a block has half a line
// or more: there the one that begins a line asks for all of it, and the others are spared the counting.
template <class Page>
constexpr bool kFetchesEvenly = sizeof(Page) == 1;

// Vectors kFirst .. kFirst + kVectors - 1 of those from `column` on.
template <class Page, int kRows, int kVectors, int kFirst, bool fetches>
[[gnu::noinline]] void value_block(const float* weights, const float* corrections, const Page* const* values,
                        const Page* const* upcoming, int begin, int end, int column, float* weighted, int dim) {
  float* own = weighted + kFirst * kLanes;
  vfloat sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(own + row * dim + v * kLanes) * corrections[row];
  }
  LinesAhead<Page, fetches> ahead(upcoming, kTileKeys, dim, (column + kFirst * kLanes) * kTileKeys);
  for (int key = begin; key < end; ++key) {
    const Page* p = values[key] + column;
    ahead.fetch_share(kFetchesEvenly<Page> ? kVectors * kLanes * key : 0, kVectors * kLanes);
    vfloat value[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int all = kFirst + v, part = all % kParts;
      value[v] = load_part(p + (all - part) * kLanes, part);
      if (kRows > 1) value[v] = in_register(value[v]);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const vfloat weight = in_register(broadcast(weights[row * kTileKeys + key]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] = fma(weight, value[v], sums[row][v]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(own + row * dim + v * kLanes, sums[row][v]);
  }
}

template <class Page, int kRows, int kVectors, int kFirst = 0>
inline void value_blocks(const float* weights, const float* corrections, const Page* const* values,
                         const Page* const* upcoming, int begin, int end, int column, float* weighted, int dim) {
  constexpr int kLeft = kVectors - kFirst, kCount = kLeft < kVectorsAtOnce<kRows> ? kLeft : kVectorsAtOnce<kRows>;
  constexpr bool kFetches = kFetchesEvenly<Page> || kFirst * kLanes * sizeof(Page) % 64 == 0;
  const auto weigh = kFetches && upcoming != nullptr ? value_block<Page, kRows, kCount, kFirst, kFetches>
                                                     : value_block<Page, kRows, kCount, kFirst, false>;
  weigh(weights, corrections, values, upcoming, begin, end, column, weighted, dim);
  if constexpr (kCount < kLeft) {
    value_blocks<Page, kRows, kVectors, kFirst + kCount>(weights, corrections, values, upcoming, begin, end, column,
                                                         weighted, dim);
  }
}

// Scores of up to kRowBlock pairs against keys begin .. end - 1 of the tile; meanwhile fetches those rows of
// `upcoming`.
template <class Query, class Key, class Page>
inline void score_rows(const Query* query, int rows, const Key* const* keys, const Page* const* upcoming, int begin,
                       int end, int dim, float* scores) {
  for (int key = begin; key < end; key += kKeyBlock) {
    const Page* const* ahead = upcoming == nullptr ? nullptr : upcoming + key;
    if (rows == kRowBlock) {
      score_block<Key, kRowBlock>(query, keys + key, ahead, dim, scores + key);
    } else if (rows == 3) {
      score_block<Key, 3>(query, keys + key, ahead, dim, scores + key);
    } else if (rows == 2) {
      score_block<Key, 2>(query, keys + key, ahead, dim, scores + key);
    } else {
      score_block<Key, 1>(query, keys + key, ahead, dim, scores + key);
    }
  }
}

#else

constexpr int kRowGap = 0;
constexpr int kColumnVectors = 4;  // vectors of head_dim per register block of the values

template <class Key, int kRows>
inline void score_block(const float* query, const Key* const* keys, int dim, float* scores) {
  vfloat sums[kRows][kKeyBlock] = {};
  const Key *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  for (int i = 0; i < dim; i += kLanes) {
    const vfloat key[kKeyBlock] = {load(k0 + i), load(k1 + i), load(k2 + i), load(k3 + i)};
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const vfloat q = load(query + row * dim + i);
#pragma GCC unroll 4
      for (int k = 0; k < kKeyBlock; ++k) sums[row][k] = fma(q, key[k], sums[row][k]);
    }
  }
  store_scores<kRows>(sums, scores);
}

// Scores of up to kRowBlock pairs against keys begin .. end - 1 of the tile; meanwhile fetches those rows of
// `upcoming`.
template <class Query, class Key, class Page>
inline void score_rows(const Query* query, int rows, const Key* const* keys, const Page* const* upcoming, int begin,
                       int end, int dim, float* scores) {
  for (int key = begin; key < end; key += kKeyBlock) {
    if (upcoming != nullptr) {
      for (int k = key; k < key + kKeyBlock; ++k) prefetch(upcoming[k], dim);
    }
    if (rows == kRowBlock) {
      score_block<Key, kRowBlock>(query, keys + key, dim, scores + key);
    } else if (rows == 3) {
      score_block<Key, 3>(query, keys + key, dim, scores + key);
    } else if (rows == 2) {
      score_block<Key, 2>(query, keys + key, dim, scores + key);
    } else {
      score_block<Key, 1>(query, keys + key, dim, scores + key);
    }
  }
}

template <class Page, int kRows, int kVectors>
inline void value_blocks(const float* weights, const float* corrections, const Page* const* values,
                         const Page* const* upcoming, int begin, int end, int column, float* weighted, int dim) {
  vfloat sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(weighted + row * dim + v * kLanes) * corrections[row];
  }
  for (int key = begin; key < end; ++key) {
    const Page* p = values[key] + column;
    if (upcoming != nullptr) prefetch(upcoming[key] + column, kVectors * kLanes);
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

#endif

// Adds the weighted values of up to kRowBlock pairs, kVectors vectors of them; `weighted` begins where `column` is.
// Meanwhile fetches the same part of `ahead`, unless null.
template <class Page, int kVectors, class Weight>
[[gnu::always_inline]]
inline void value_rows(int rows, const Weight* weights, const float* corrections, const Page* const* values,
                       const Page* const* ahead, int begin, int end, int column, float* weighted, int dim) {
  if (rows == kRowBlock) {
    value_blocks<Page, kRowBlock, kVectors>(weights, corrections, values, ahead, begin, end, column, weighted, dim);
  } else if (rows == 3) {
    value_blocks<Page, 3, kVectors>(weights, corrections, values, ahead, begin, end, column, weighted, dim);
  } else if (rows == 2) {
    value_blocks<Page, 2, kVectors>(weights, corrections, values, ahead, begin, end, column, weighted, dim);
  } else {
    value_blocks<Page, 1, kVectors>(weights, corrections, values, ahead, begin, end, column, weighted, dim);
  }
}

}  // namespace
