// Products of codes of which an instruction adds four to each sum: numbers of 16 bits are multiplied as two bytes, the
// upper and the lower.
#pragma once

#include <array>

#include "code_numbers.h"

namespace {

constexpr int kBytes = 4 * kLanes;  // in a vector
constexpr int kQuad = 4;            // bytes whose products an instruction adds up

// A query row of whole numbers q = 256 * upper + lower, each an int8; rows of `dim` elements.
struct QueryCodes {
  Place* row;
  int dim;

  int8_t* upper() const { return reinterpret_cast<int8_t*>(row); }
  int8_t* lower() const { return upper() + dim; }
  float& scale() const { return reinterpret_cast<float*>(row)[dim / 2]; }
  // 128 * sum of q: what adding 128 to every code of a key adds to its product with this row.
  int32_t& surplus() const { return reinterpret_cast<int32_t*>(row)[dim / 2 + 1]; }
};

// The weights of a pair of 16 bits, w = 256 * upper + lower, each a byte, over the scores that they are of.
struct WeightCodes {
  float* row;

  uint8_t* upper() const { return reinterpret_cast<uint8_t*>(row); }
  uint8_t* lower() const { return upper() + kTileKeys; }
  float& unit() const { return row[kTileKeys / 2]; }
};

// In assembler: GCC 12 copies every sum before the intrinsic adds to it.
inline __m512i add_products(__m512i sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
  return sum;
}

// Writes the lower bytes of a vector's numbers.
inline void store_bytes(void* target, vint numbers) {
  _mm_storeu_si128(static_cast<__m128i*>(target), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(numbers)));
}

// Quantises query rows in place.
inline void quantise_query(const Scratch& s, int pairs, int dim) {
  for (int pair = 0; pair < pairs; ++pair) {
    float* row = s.query + static_cast<int64_t>(pair) * dim;
    const QueryCodes codes{reinterpret_cast<Place*>(row), dim};
    vint most = {};
    for (int i = 0; i < dim; i += kLanes) most = larger_magnitude(most, load(row + i));
    const Unit16 unit(most, kLargestQuery);
    vint sum = {};
    int8_t lower[kLongestCodes];
    for (int i = 0; i < dim; i += kLanes) {
      const vint number = nearest(load(row + i) * unit.per_one);
      const vint low = (number << 24) >> 24;
      sum += number;
      store_bytes(codes.upper() + i, (number - low) >> 8);
      store_bytes(lower + i, low);
    }
    memcpy(codes.lower(), lower, dim);
    codes.scale() = unit.size;
    codes.surplus() = 128 * _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(sum));
  }
}

// Lane sums of four vectors.
inline __m128i sum_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

template <class Key, int kRows>
inline void score_block(const Place* query, const i8* const* keys, int dim, float* scores) {
  __m512i sums[kRows][kKeyBlock] = {};
  const i8 *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  const int8_t* part = reinterpret_cast<const int8_t*>(query);  // of the first row; others' lie 4 * dim bytes apart
  const auto add_part = [&](const int8_t* part) {
    for (int i = 0; i < dim; i += kBytes) {
      const auto load_key = [i](const i8* key) {  // + 128, as the instruction takes no two signed operands
        return _mm512_xor_si512(_mm512_loadu_si512(key + i), _mm512_set1_epi8(-128));
      };
      const __m512i key[kKeyBlock] = {load_key(k0), load_key(k1), load_key(k2), load_key(k3)};
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const __m512i q = _mm512_loadu_si512(part + static_cast<int64_t>(row) * dim * 4 + i);
#pragma GCC unroll 4
        for (int k = 0; k < kKeyBlock; ++k) sums[row][k] = add_products(sums[row][k], key[k], q);
      }
    }
  };
  add_part(part);
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int k = 0; k < kKeyBlock; ++k) sums[row][k] = _mm512_slli_epi32(sums[row][k], 8);
  }
  add_part(part + dim);
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const QueryCodes codes{const_cast<Place*>(query) + row * dim, dim};
    const __m128i sum = sum_lanes(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    const __m128 dots = _mm_cvtepi32_ps(_mm_sub_epi32(sum, _mm_set1_epi32(codes.surplus())));
    _mm_storeu_ps(scores + row * kTileKeys, _mm_mul_ps(dots, _mm_set1_ps(codes.scale())));
  }
}

// Leaves the codes of a tile's weights over them.
inline void quantise_weights(float* row) {
  constexpr int kVectors = kTileKeys / kLanes;
  vfloat weights[kVectors];
  vint most = {};
  for (int i = 0; i < kVectors; ++i) {
    weights[i] = load(row + i * kLanes);
    most = larger_magnitude(most, weights[i]);
  }
  const Unit16 unit(most, kLargestWeight);
  const WeightCodes codes{row};
  for (int i = 0; i < kVectors; ++i) {
    const vint number = nearest(weights[i] * unit.per_one);
    store_bytes(codes.upper() + i * kLanes, number >> 8);
    store_bytes(codes.lower() + i * kLanes, number);
  }
  codes.unit() = unit.size;
}

// Puts the values of four neighbouring keys side by side, column by column.
inline void interleave_quad(const i8* const* values, int dim, int8_t* target) {
  static constexpr auto bytes = [] {
    std::array<uint8_t, 2 * kBytes> index{};
    for (int i = 0; i < 2 * kBytes; ++i) index[i] = static_cast<uint8_t>(i / 2 + i % 2 * kBytes);
    return index;
  }();
  static constexpr auto pairs = [] {
    std::array<uint16_t, kBytes> index{};
    for (int i = 0; i < kBytes; ++i) index[i] = static_cast<uint16_t>(i / 2 + i % 2 * kBytes / 2);
    return index;
  }();
  const __m512i first_bytes = _mm512_loadu_si512(bytes.data()), last_bytes = _mm512_loadu_si512(bytes.data() + kBytes);
  const __m512i first_pairs = _mm512_loadu_si512(pairs.data());
  const __m512i last_pairs = _mm512_loadu_si512(pairs.data() + kBytes / 2);
  for (int i = 0; i < dim; i += kBytes, target += kQuad * kBytes) {
    const __m512i a = _mm512_loadu_si512(values[0] + i), b = _mm512_loadu_si512(values[1] + i);
    const __m512i c = _mm512_loadu_si512(values[2] + i), d = _mm512_loadu_si512(values[3] + i);
    const auto store_columns = [&](const __m512i& order, int8_t* to) {
      const __m512i ab = _mm512_permutex2var_epi8(a, order, b), cd = _mm512_permutex2var_epi8(c, order, d);
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(ab, first_pairs, cd));
      _mm512_storeu_si512(to + kBytes, _mm512_permutex2var_epi16(ab, last_pairs, cd));
    };
    store_columns(first_bytes, target);
    store_columns(last_bytes, target + 2 * kBytes);
  }
}

// Adds the weighted values of 64 columns; `quads` are those of the tile's first four keys, others' lie 4 * dim bytes
// apart.
template <int kRows>
inline void value_block(float* weights, const float* corrections, const int8_t* quads, const i8* const* upcoming,
                        int begin, int end, int column, float* weighted, int dim) {
  __m512i sums[kRows][kColumnVectors] = {};
  const auto add_part = [&](int part) {
    for (int key = begin / kQuad * kQuad; key < end; key += kQuad) {
      const int8_t* quad = quads + static_cast<int64_t>(key) * dim;
      if (upcoming != nullptr) {
        for (int k = key + part * kQuad / 2; k < key + (part + 1) * kQuad / 2; ++k) prefetch(upcoming[k] + column, kBytes);
      }
      __m512i value[kColumnVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kColumnVectors; ++v) value[v] = _mm512_loadu_si512(quad + v * kBytes);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        int32_t four;
        memcpy(&four, reinterpret_cast<const uint8_t*>(weights + row * kTileKeys) + part * kTileKeys + key, sizeof four);
        const __m512i weight = _mm512_set1_epi32(four);
#pragma GCC unroll 4
        for (int v = 0; v < kColumnVectors; ++v) sums[row][v] = add_products(sums[row][v], weight, value[v]);
      }
    }
  };
  add_part(0);
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kColumnVectors; ++v) sums[row][v] = _mm512_slli_epi32(sums[row][v], 8);
  }
  add_part(1);
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const vfloat unit = broadcast(WeightCodes{weights + row * kTileKeys}.unit());
#pragma GCC unroll 4
    for (int v = 0; v < kColumnVectors; ++v) {
      float* to = weighted + row * dim + v * kLanes;
      store(to, fma(_mm512_cvtepi32_ps(sums[row][v]), unit, load(to) * corrections[row]));
    }
  }
}

inline void weigh_quads(const Scratch& s, const State& state, int pairs, const i8* const* upcoming, int dim) {
  const int8_t* quads = reinterpret_cast<const int8_t*>(s.values);
  for (int column = 0; column < dim; column += kBytes) {
    for (int pair = 0; pair < pairs; pair += kRowBlock) {
      const int rows = min(kRowBlock, pairs - pair);
      const int begin = s.first_key[pair], end = s.last_key[pair + rows - 1];
      float* weights = s.scores + pair * kTileKeys;
      const float* corrections = s.corrections + pair;
      float* weighted = state.weighted + static_cast<int64_t>(pair) * dim + column;
      const int8_t* columns = quads + kQuad * column;
      const i8* const* ahead = pair == 0 ? upcoming : nullptr;
      if (rows == kRowBlock) {
        value_block<kRowBlock>(weights, corrections, columns, ahead, begin, end, column, weighted, dim);
      } else if (rows == 3) {
        value_block<3>(weights, corrections, columns, ahead, begin, end, column, weighted, dim);
      } else if (rows == 2) {
        value_block<2>(weights, corrections, columns, ahead, begin, end, column, weighted, dim);
      } else {
        value_block<1>(weights, corrections, columns, ahead, begin, end, column, weighted, dim);
      }
    }
  }
}

// Adds the tile's weighted values, which are put side by side in scratch first.
inline void weigh_codes(const Scratch& s, const State& state, int pairs, const Tile& tile, const i8* const* values,
                        const i8* const* upcoming, int dim) {
  for (int key = tile.begin / kQuad * kQuad; key < tile.end; key += kQuad) {
    interleave_quad(values + key, dim, reinterpret_cast<int8_t*>(s.values) + static_cast<int64_t>(key) * dim);
  }
  for (int pair = 0; pair < pairs; ++pair) quantise_weights(s.scores + pair * kTileKeys);
  weigh_quads(s, state, pairs, upcoming, dim);
}

}  // namespace
