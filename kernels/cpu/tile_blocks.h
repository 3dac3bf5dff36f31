// Register blocks of a tile: scores of some pairs and keys, weighted values of some pairs and columns.
//
// Internal linkage throughout, for the reason given in simd.h.
#pragma once

#include "float_row.h"
#include "lines_ahead.h"
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

// sum + a * b. In assembler: with intrinsics GCC 12 copies sums.
inline vfloat add_product(vfloat sum, vfloat a, vfloat b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}

// Of keys begin .. end - 1, kKeyBlock at a time.
template <class Key, int kRows, bool fetches>
[[gnu::noinline]] void score_keys(const float* query, const Key* const* keys, LinesAhead* upcoming, int begin, int end,
                                  int dim, float* scores) {
  constexpr int kKeys = kKeysAtOnce<kRows>, kStep = kParts * kLanes, kKeyBytes = kKeys * sizeof(Key);
  LinesAhead ahead;
  if (fetches) ahead = *upcoming;
  for (int block = begin; block < end; block += kKeyBlock) {
    vfloat sums[kRows][kKeyBlock];
#pragma GCC unroll 2
    for (int first = 0; first < kKeyBlock; first += kKeys) {
      vfloat part[kRows][kKeys];
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) part[row][k] = vfloat{};
      }
      for (int i = 0; i < dim; i += kStep) {
        if (fetches) ahead.fetch_share(kKeyBytes * i, kKeyBytes * kStep);
#pragma GCC unroll 2
        for (int v = 0; v < kParts; ++v) {
          vfloat key[kKeys];
#pragma GCC unroll 4
          for (int k = 0; k < kKeys; ++k) key[k] = in_register(load_part(keys[block + first + k] + i, v));
#pragma GCC unroll 4
          for (int row = 0; row < kRows; ++row) {
            const vfloat q = in_register(load(query + row * dim + i + v * kLanes));
#pragma GCC unroll 4
            for (int k = 0; k < kKeys; ++k) part[row][k] = add_product(part[row][k], q, key[k]);
          }
        }
      }
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) sums[row][first + k] = part[row][k];
      }
    }
    store_scores<kRows>(sums, scores + block);
  }
  if (fetches) *upcoming = ahead;
}

// Vectors kFirst .. kFirst + kVectors - 1 of those from `column` on.
template <class Page, int kRows, int kVectors, int kFirst, bool fetches>
[[gnu::noinline]] void value_block(const float* weights, const float* corrections, const Page* const* values,
                        LinesAhead* upcoming, int begin, int end, int column, float* weighted, int dim) {
  float* own = weighted + kFirst * kLanes;
  LinesAhead ahead;
  if (fetches) ahead = *upcoming;
  vfloat sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(own + row * dim + v * kLanes) * corrections[row];
  }
  for (int key = begin; key < end; ++key) {
    const Page* p = values[key] + column;
    constexpr int kBytes = kVectors * kLanes * sizeof(Page);
    if (fetches) ahead.fetch_share(kBytes * key, kBytes);
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
  if (fetches) *upcoming = ahead;
}

template <class Page, int kRows, int kVectors, int kFirst = 0>
inline void value_vectors(const float* weights, const float* corrections, const Page* const* values,
                         LinesAhead* upcoming, int begin, int end, int column, float* weighted, int dim) {
  constexpr int kLeft = kVectors - kFirst, kCount = kLeft < kVectorsAtOnce<kRows> ? kLeft : kVectorsAtOnce<kRows>;
  const auto weigh = upcoming != nullptr ? value_block<Page, kRows, kCount, kFirst, true>
                                         : value_block<Page, kRows, kCount, kFirst, false>;
  weigh(weights, corrections, values, upcoming, begin, end, column, weighted, dim);
  if constexpr (kCount < kLeft) {
    value_vectors<Page, kRows, kVectors, kFirst + kCount>(weights, corrections, values, upcoming, begin, end, column,
                                                         weighted, dim);
  }
}

// Bytes from a row of values to the last of those that are weighed before the next columns. Lines of the same columns lie
// apart by powers of two and share few sets of L1, which has to hold them until both of their halves have been weighed.
constexpr int kValueSpan = 16 * 1024;

template <class Page, int kRows, int kVectors>
inline void value_blocks(const float* weights, const float* corrections, const Page* const* values, LinesAhead* upcoming,
                         int begin, int end, int column, float* weighted, int dim) {
  static constexpr float kNone[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  const int row_bytes = dim * static_cast<int>(sizeof(Page));
  const int keys = upcoming == nullptr ? kTileKeys : max(kValueSpan / row_bytes, 16);
  int from = begin;
  do {
    const int to = min(from + keys, end);
    value_vectors<Page, kRows, kVectors>(weights, corrections, values, upcoming, from, to, column, weighted, dim);
    corrections = kNone;
    from = to;
  } while (from < end);
}

// Scores of up to kRowBlock pairs against keys begin .. end - 1 of the tile; meanwhile fetches as many lines of
// `upcoming`, unless null.
template <class Key>
inline void score_rows(const float* query, int rows, const Key* const* keys, LinesAhead* upcoming, int begin, int end,
                       int dim, float* scores) {
  const auto score = [&](auto with, auto without) {
    (upcoming == nullptr ? without : with)(query, keys, upcoming, begin, end, dim, scores);
  };
  switch (rows) {
    case 4: return score(score_keys<Key, 4, true>, score_keys<Key, 4, false>);
    case 3: return score(score_keys<Key, 3, true>, score_keys<Key, 3, false>);
    case 2: return score(score_keys<Key, 2, true>, score_keys<Key, 2, false>);
    default: return score(score_keys<Key, 1, true>, score_keys<Key, 1, false>);
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
template <class Page, int kVectors, class Weight, class Ahead>
[[gnu::always_inline]]
inline void value_rows(int rows, const Weight* weights, const float* corrections, const Page* const* values,
                       Ahead ahead, int begin, int end, int column, float* weighted, int dim) {
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
