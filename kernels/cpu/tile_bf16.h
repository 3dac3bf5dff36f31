// Attention of one tile by products of bfloat16 numbers, of which an instruction makes twice as many as of floats.
//
// For pages of bfloat16, and of e4m3, whose codes are bfloat16 numbers exactly. Queries and weights are
// rounded to bfloat16; products and sums are float32. An instruction adds two products to each sum: those of two
// neighbouring elements of a key, or of two neighbouring keys' values, which are interleaved for it. Whether that is
// done in registers or, where many pairs share the tile, once in scratch changes no bit. Numbers too small for a normal
// float count as 0.
#pragma once

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define OCTAVO_MULTIPLIES_BF16

#include <array>

#include "tile.h"

namespace {

constexpr int kHalves = 2 * kLanes;     // bfloat16 numbers in a vector
constexpr int kInterleavingPairs = 12;  // from this many pairs on, interleaving a tile once is cheaper than before each use

inline vfloat add_products(vfloat sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// Two values of one column, of neighbouring keys.
struct ValuePair {
  bf16 first, second;
};

// How `step` elements of a key, or of the values of two keys, become vectors of bfloat16 numbers. Vectors of a key have
// an order of elements that the query shares (`narrow_query`); those of values hold 16 pairs in the order of columns.
template <class Page>
struct Halves;

template <>
struct Halves<bf16> {
  static constexpr int step = kHalves;

  static void load_key(const bf16* key, __m512i* halves) { halves[0] = _mm512_loadu_si512(key); }

  static void interleave(const bf16* first, const bf16* second, __m512i* pairs) {
    static constexpr auto order = [] {
      std::array<uint16_t, 2 * kHalves> index{};
      for (int i = 0; i < 2 * kHalves; ++i) index[i] = i / 2 + i % 2 * kHalves;
      return index;
    }();
    const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
    pairs[0] = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(order.data()), b);
    pairs[1] = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(order.data() + kHalves), b);
  }
};

template <>
struct Halves<ValuePair> {
  static constexpr int step = kLanes;

  static void interleave(const ValuePair* first, const ValuePair*, __m512i* pairs) {
    pairs[0] = _mm512_loadu_si512(first);
  }
};

constexpr uint16_t e4m3_as_bf16(int code) {  // / 256, see kCodeUnit
  int exponent = code >> 3, mantissa = code & 7;
  if (exponent == 0) {
    if (mantissa == 0) return 0;
    exponent = 1;
    for (; mantissa < 8; mantissa <<= 1) --exponent;
  }
  return static_cast<uint16_t>((exponent - 7 - 8 + 127) << 7 | (mantissa & 7) << 4);
}

// The upper or lower bytes of what the codes of e4m3 without their sign are as bfloat16.
using CodeTable = std::array<uint8_t, 128>;

constexpr CodeTable code_table(int shift) {
  CodeTable table{};
  for (int code = 0; code < 128; ++code) table[code] = static_cast<uint8_t>(e4m3_as_bf16(code) >> shift);
  return table;
}

template <>
struct Halves<f8> {
  static constexpr int step = 2 * kHalves;

  static void load_key(const f8* key, __m512i* halves) { widen(_mm512_loadu_si512(key), halves); }

  static void interleave(const f8* first, const f8* second, __m512i* pairs) {
    static constexpr auto order = [] {  // puts pairs where they are widened from
      std::array<uint8_t, 128> index{};
      for (int i = 0; i < 128; ++i) {
        const int column = i / 64 * 32 + i % 16 / 8 * 16 + i % 64 / 16 * 4 + i % 8 / 2;
        index[i] = static_cast<uint8_t>(column + i % 2 * 64);
      }
      return index;
    }();
    const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
    widen(_mm512_permutex2var_epi8(a, _mm512_loadu_si512(order.data()), b), pairs);
    widen(_mm512_permutex2var_epi8(a, _mm512_loadu_si512(order.data() + 64), b), pairs + 2);
  }

 private:
  // Of every 16 codes, the first 8 into one vector and the last 8 into the other.
  static void widen(__m512i codes, __m512i* halves) {
    static constexpr CodeTable lower = code_table(0), upper = code_table(8);
    const auto look_up = [codes](const CodeTable& table) {  // by seven bits: signs are not looked at
      const __m512i first = _mm512_loadu_si512(table.data()), second = _mm512_loadu_si512(table.data() + 64);
      return _mm512_permutex2var_epi8(first, codes, second);
    };
    constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
    const __m512i low = look_up(lower);
    const __m512i high = _mm512_ternarylogic_epi32(look_up(upper), codes, _mm512_set1_epi8(-128), kFirstOrBoth);
    halves[0] = _mm512_unpacklo_epi8(low, high);
    halves[1] = _mm512_unpackhi_epi8(low, high);
  }
};

template <class Page>
constexpr int kLeastVectors<bf16, Page> = Halves<Page>::step / kLanes;

// Depends on the call only: a decode must do as its prefill does.
inline bool multiplies_bf16(const octavo::AttendCall& call) {
  if (call.pages_dtype == octavo::DType::bfloat16) return call.head_dim % Halves<bf16>::step == 0;
  return call.pages_dtype == octavo::DType::float8_e4m3 && call.head_dim % Halves<f8>::step == 0;
}

// Rounds the query in place, in the order in which keys of codes or of bfloat16 numbers are loaded.
inline void narrow_query(const Scratch& s, int pairs, int dim, bool has_codes) {
  bf16* halves = reinterpret_cast<bf16*>(s.query);
  const int64_t count = static_cast<int64_t>(pairs) * dim;
  for (int64_t i = 0; i < count; i += kLanes) store(halves + i, load(s.query + i));
  if (!has_codes) return;
  const __m512i first = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
  const __m512i second = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
  for (int64_t i = 0; i < count; i += 2 * kHalves) {
    const __m512i a = _mm512_loadu_si512(halves + i), b = _mm512_loadu_si512(halves + i + kHalves);
    _mm512_storeu_si512(halves + i, _mm512_permutex2var_epi64(a, first, b));
    _mm512_storeu_si512(halves + i + kHalves, _mm512_permutex2var_epi64(a, second, b));
  }
}

template <class Page, int kRows>
inline void score_block(const bf16* query, const Page* const* keys, int dim, float* scores) {
  constexpr int kVectors = Halves<Page>::step / kHalves;
  vfloat sums[kRows][kKeyBlock] = {};
  const Page *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  for (int i = 0; i < dim; i += Halves<Page>::step) {
    __m512i key[kKeyBlock][kVectors];
    Halves<Page>::load_key(k0 + i, key[0]);
    Halves<Page>::load_key(k1 + i, key[1]);
    Halves<Page>::load_key(k2 + i, key[2]);
    Halves<Page>::load_key(k3 + i, key[3]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const __m512i q = _mm512_loadu_si512(query + row * dim + i + v * kHalves);
#pragma GCC unroll 4
        for (int k = 0; k < kKeyBlock; ++k) sums[row][k] = add_products(sums[row][k], q, key[k][v]);
      }
    }
  }
  store_scores<kRows>(sums, scores);
}

// Without factors the rounded weights are summed, so that they are shares of a whole; with factors it is not they that
// are rounded.
template <bool quantised>
inline vfloat store_weights(bf16* row, int key, vfloat weights, const Factors<quantised>& factors) {
  if constexpr (quantised) {
    const __m256bh rounded = _mm512_cvtneps_pbh(weights * load(factors.value_factors + key));
    memcpy(row + key, &rounded, sizeof rounded);
    return weights;
  } else {
    const __m256bh rounded = _mm512_cvtneps_pbh(weights);
    memcpy(row + key, &rounded, sizeof rounded);
    return load(row + key);
  }
}

template <class Page, int kRows, int kVectors>
inline void value_blocks(const bf16* weights, const float* corrections, const Page* const* values,
                         const Page* const* upcoming, int begin, int end, int column, float* weighted, int dim) {
  constexpr int kPerLoad = Halves<Page>::step / kLanes;
  vfloat sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(weighted + row * dim + v * kLanes) * corrections[row];
  }
  for (int key = begin & ~1; key < end; key += 2) {
    if (upcoming != nullptr) {
      prefetch(upcoming[key] + column, kVectors * kLanes);
      prefetch(upcoming[key + 1] + column, kVectors * kLanes);
    }
    __m512i value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v += kPerLoad) {
      Halves<Page>::interleave(values[key] + column + v * kLanes, values[key + 1] + column + v * kLanes, value + v);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      int32_t both;
      memcpy(&both, weights + row * 2 * kTileKeys + key, sizeof both);
      const __m512i weight = _mm512_set1_epi32(both);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] = add_products(sums[row][v], weight, value[v]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(weighted + row * dim + v * kLanes, sums[row][v]);
  }
}

template <class Page>
inline void narrow_key(const Page* key, int dim, bf16* target) {
  for (int i = 0; i < dim; i += Halves<Page>::step) {
    __m512i halves[2];
    Halves<Page>::load_key(key + i, halves);
    _mm512_storeu_si512(target + i, halves[0]);
    _mm512_storeu_si512(target + i + kHalves, halves[1]);
  }
}

template <class Page>
inline void interleave_values(const Page* first, const Page* second, int dim, ValuePair* target) {
  constexpr int kVectors = Halves<Page>::step / kLanes;
  for (int i = 0; i < dim; i += Halves<Page>::step) {
    __m512i pairs[kVectors];
    Halves<Page>::interleave(first + i, second + i, pairs);
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(target + i + v * kLanes, pairs[v]);
  }
}

template <class Page>
void attend_tile(const bf16*, const octavo::AttendCall& call, int pairs, const Tile& tile, const Rows<Page>& rows,
                 const Rows<Page>* upcoming, const Scratch& s, const State& state) {
  const int dim = call.head_dim;
  const bool is_shared = pairs >= kInterleavingPairs;
  constexpr const bf16* const* nothing = nullptr;
  if (is_shared && kQuantised<Page>) {
    const bf16* keys[kTileKeys];
    if constexpr (kQuantised<Page>) {
      for (int key = 0; key < kTileKeys; ++key) {
        bf16* target = reinterpret_cast<bf16*>(s.keys) + key * dim;
        if (key >= tile.begin && key < tile.end) narrow_key(rows.keys[key], dim, target);
        keys[key] = target;
      }
    }
    score_tile<bf16>(s, pairs, keys, nothing, tile, dim);
  } else {
    score_tile<bf16>(s, pairs, rows.keys, keys_of(upcoming), tile, dim);
  }
  soften_tile<bf16>(s, state, pairs, call.scale, call.softcap, rows);
  if (!is_shared) return weigh_tile<bf16>(s, state, pairs, rows.values, values_of(upcoming), dim);
  const ValuePair* values[kTileKeys];
  for (int key = 0; key < kTileKeys; key += 2) {
    ValuePair* target = reinterpret_cast<ValuePair*>(s.values) + key / 2 * dim;
    if (key + 1 >= tile.begin && key < tile.end) interleave_values(rows.values[key], rows.values[key + 1], dim, target);
    values[key] = values[key + 1] = target;
  }
  constexpr const ValuePair* const* none = nullptr;
  weigh_tile<bf16>(s, state, pairs, values, none, dim);
}

}  // namespace

#endif
