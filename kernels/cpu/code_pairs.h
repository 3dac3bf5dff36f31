// Products of codes of which an instruction adds two to each sum: codes are widened to 16 bits, and numbers of 16 bits
// multiplied as they are.
#pragma once

#include "code_numbers.h"

namespace {

constexpr int kShorts = 2 * kLanes;       // in a vector
constexpr int kWeightOffset = 128 * 256;  // taken from weights, which leaves signed numbers of 16 bits

// A row of numbers of 16 bits in place of as many floats, and behind them their unit.
struct Numbers {
  float* row;
  int count;

  int16_t* numbers() const { return reinterpret_cast<int16_t*>(row); }
  float& unit() const { return row[count / 2]; }

  // Of floats, of which the largest becomes `steps`; `offset` is taken from each.
  void quantise(float steps, int offset) const {
    vint most = {};
    for (int i = 0; i < count; i += kLanes) most = larger_magnitude(most, load(row + i));
    const Unit16 size(most, steps);
    for (int i = 0; i < count; i += kLanes) {
      const vint number = nearest(load(row + i) * size.per_one) - offset;
      const __m256i both = reinterpret_cast<__m256i>(number);
      const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers() + i), shorts);
    }
    unit() = size.size;
  }
};

inline void quantise_query(const Scratch& s, int pairs, int dim) {
  for (int pair = 0; pair < pairs; ++pair) {
    Numbers{s.query + static_cast<int64_t>(pair) * dim, dim}.quantise(kLargestQuery, 0);
  }
}

inline __m256i widened(const i8* codes) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}

// In assembler: with intrinsics GCC 12 copies every sum, or keeps it in memory.
inline __m256i add_products(__m256i sum, __m256i a, __m256i b) {
  __m256i products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=x"(products) : "x"(a), "x"(b));
  return sum;
}

// Lane sums of four vectors.
inline __m128i sum_lanes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const __m256i abcd = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}

template <int kRows, bool fetches>
[[gnu::noinline]] void score_codes(const Place* query, const i8* const* keys, LinesAhead* upcoming, int dim,
                                   float* scores) {
  LinesAhead ahead;
  if (fetches) ahead = *upcoming;
  constexpr int kKeys = kKeysAtOnce<kRows>;
  __m256i sums[kRows][kKeyBlock];
#pragma GCC unroll 2
  for (int first = 0; first < kKeyBlock; first += kKeys) {
    __m256i part[kRows][kKeys];
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) part[row][k] = _mm256_setzero_si256();
    }
    for (int i = 0; i < dim; i += kCodesAtOnce) {
      if (fetches) ahead.fetch_share(0, kKeys * kCodesAtOnce);
#pragma GCC unroll 4
      for (int j = i; j < i + kCodesAtOnce; j += kShorts) {
        __m256i key[kKeys];
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) key[k] = widened(keys[first + k] + j);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          const int16_t* numbers = reinterpret_cast<const int16_t*>(query + static_cast<int64_t>(row) * dim);
          const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + j));
#pragma GCC unroll 4
          for (int k = 0; k < kKeys; ++k) part[row][k] = add_products(part[row][k], q, key[k]);
        }
      }
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) sums[row][first + k] = part[row][k];
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const float unit = reinterpret_cast<const float*>(query + static_cast<int64_t>(row) * dim)[dim / 2];
    const __m128i dots = sum_lanes(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    _mm_storeu_ps(scores + row * kTileKeys, _mm_mul_ps(_mm_cvtepi32_ps(dots), _mm_set1_ps(unit)));
  }
  if (fetches) *upcoming = ahead;
}

// Scores of up to kRowBlock pairs against keys begin .. end - 1 of the tile; meanwhile fetches as many lines of
// `upcoming`, unless null.
inline void score_rows(const Place* query, int rows, const i8* const* keys, LinesAhead* upcoming, int begin, int end,
                       int dim, float* scores) {
  const auto score = [&](auto with, auto without) {
    for (int key = begin; key < end; key += kKeyBlock) {
      (upcoming == nullptr ? without : with)(query, keys + key, upcoming, dim, scores + key);
    }
  };
  switch (rows) {
    case 4: return score(score_codes<4, true>, score_codes<4, false>);
    case 3: return score(score_codes<3, true>, score_codes<3, false>);
    case 2: return score(score_codes<2, true>, score_codes<2, false>);
    default: return score(score_codes<1, true>, score_codes<1, false>);
  }
}

inline void add_sum(float* to, __m256i sum, float unit, float correction) {
  store(to, fma(_mm256_cvtepi32_ps(sum), broadcast(unit), load(to) * correction));
}

// Adds the weighted values of 16 columns. The offset of the weights is taken back by the sums of the codes.
template <int kRows, bool fetches>
[[gnu::noinline]] void value_codes(const float* weights, const float* corrections, const i8* const* values,
                                   LinesAhead* upcoming, int begin, int end, int column, float* weighted, int dim) {
  LinesAhead ahead;
  if (fetches) ahead = *upcoming;
  __m256i sums[kRows][2];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm256_setzero_si256();
  __m256i codes = _mm256_setzero_si256();  // their sums, of 16 bits
  for (int key = begin / 2 * 2; key < end; key += 2) {
    if (fetches) ahead.fetch_share(kShorts * key, kShorts * 2);
    const __m256i first = widened(values[key] + column), second = widened(values[key + 1] + column);
    const __m256i pairs[2] = {_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)};
    codes = _mm256_add_epi16(codes, _mm256_add_epi16(first, second));
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      int32_t both;
      memcpy(&both, reinterpret_cast<const int16_t*>(weights + row * kTileKeys) + key, sizeof both);
      const __m256i weight = _mm256_set1_epi32(both);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[row][v] = add_products(sums[row][v], weight, pairs[v]);
    }
  }
  const __m256i none = _mm256_setzero_si256();
  const __m256i offset[2] = {_mm256_srai_epi32(_mm256_unpacklo_epi16(none, codes), 1),
                             _mm256_srai_epi32(_mm256_unpackhi_epi16(none, codes), 1)};
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const __m256i low = _mm256_add_epi32(sums[row][0], offset[0]), high = _mm256_add_epi32(sums[row][1], offset[1]);
    const float unit = weights[row * kTileKeys + kTileKeys / 2];
    float* to = weighted + row * dim;
    add_sum(to, _mm256_permute2x128_si256(low, high, 0x20), unit, corrections[row]);
    add_sum(to + kLanes, _mm256_permute2x128_si256(low, high, 0x31), unit, corrections[row]);
  }
  if (fetches) *upcoming = ahead;
}

// Adds the tile's weighted values.
inline void weigh_codes(const Scratch& s, const State& state, int pairs, const Tile&, const i8* const* values,
                        LinesAhead* upcoming, int dim) {
  for (int pair = 0; pair < pairs; ++pair) {
    Numbers{s.scores + pair * kTileKeys, kTileKeys}.quantise(kLargestWeight, kWeightOffset);
  }
  for (int column = 0; column < dim; column += kShorts) {
    for (int pair = 0; pair < pairs; pair += kRowBlock) {
      const int rows = min(kRowBlock, pairs - pair);
      LinesAhead* ahead = pair == 0 ? upcoming : nullptr;
      const auto weigh = [&](auto with, auto without) {
        (ahead == nullptr ? without : with)(s.scores + pair * kTileKeys, s.corrections + pair, values, ahead,
                                            s.first_key[pair], s.last_key[pair + rows - 1], column,
                                            state.weighted + static_cast<int64_t>(pair) * dim + column, dim);
      };
      switch (rows) {
        case 4: weigh(value_codes<4, true>, value_codes<4, false>); break;
        case 3: weigh(value_codes<3, true>, value_codes<3, false>); break;
        case 2: weigh(value_codes<2, true>, value_codes<2, false>); break;
        default: weigh(value_codes<1, true>, value_codes<1, false>);
      }
    }
  }
}

}  // namespace
