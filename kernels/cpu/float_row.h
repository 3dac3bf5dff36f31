// Rows of narrow elements as rows of floats, and the order of elements in which those of pages are cheapest to load.
//
// To widen bfloat16 numbers in their order, AVX2 takes a slow instruction for each vector, since its halves exchange
// little. But a shift makes floats of all even ones of 16, and a mask of all odd ones. So there neighbours are spread
// over two vectors, and whatever is multiplied with a row of a page, or comes of it, is kept in the same order. Codes of
// e4m3 become floats likewise, once they have 16 bits each.
#pragma once

#include <cstdint>
#include <cstring>

#include "paged_attention.h"
#include "simd.h"

namespace {

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

// In the order in which its page's elements are loaded.
template <class Page>
inline void widen_page_row(const Page* source, float* target, int head_dim, int dim) {
  widen_row(source, target, head_dim, dim);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
#define OCTAVO_SPREADS

constexpr int kParts = 2;  // vectors that are loaded together

// Whether pages of a dtype are read so.
inline bool spreads(octavo::DType pages) {
  return pages == octavo::DType::bfloat16 || pages == octavo::DType::float8_e4m3;
}

// What is multiplied with elements of pages is multiplied by this before, and what comes of it after: half-way between
// what elements read as and what they are (see kCodeUnit), so that scales of any sensible size leave room.
inline float unit_of(octavo::DType pages) { return pages == octavo::DType::float8_e4m3 ? kQueryUnit : 1.0f; }

// Vector `part` of the kParts * kLanes elements from p on.
template <class Element>
inline vfloat load_part(const Element* p, int part) {
  return load(p + part * kLanes);
}

inline vfloat load_part(const bf16* p, int part) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i bits = part == 0 ? _mm256_slli_epi32(both, 16) : _mm256_and_si256(both, _mm256_set1_epi32(-0x10000));
  return reinterpret_cast<vfloat>(bits);
}

// A code's sign and fields at the place of a float's: see kCodeUnit.
inline vfloat load_part(const f8* p, int part) {
  const __m256i both = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits = part == 0 ? _mm256_slli_epi32(both, 20) : _mm256_slli_epi32(both, 4);
  return reinterpret_cast<vfloat>(_mm256_and_si256(bits, _mm256_set1_epi32(-0x78100000)));
}

// Brings a row of floats, `count` a multiple of 16, times `unit`, into the order in which elements are spread.
inline void spread_row(float* row, int64_t count, float unit) {
  const auto in_order = [](__m256 x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); };
  for (int64_t i = 0; i < count; i += kParts * kLanes) {
    const vfloat first = load(row + i) * unit, second = load(row + i + kLanes) * unit;
    store(row + i, in_order(_mm256_shuffle_ps(first, second, 0x88)));
    store(row + i + kLanes, in_order(_mm256_shuffle_ps(first, second, 0xdd)));
  }
}

// And back, times `unit`.
inline void gather_row(float* row, int64_t count, float unit) {
  for (int64_t i = 0; i < count; i += kParts * kLanes) {
    const vfloat even = load(row + i) * unit, odd = load(row + i + kLanes) * unit;
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    store(row + i, _mm256_permute2f128_ps(low, high, 0x20));
    store(row + i + kLanes, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

template <class Page>
inline void widen_spread_row(const Page* source, float* target, int head_dim, int dim) {
  const auto widen = [target](const Page* from, int i) {
    for (int part = 0; part < kParts; ++part) store(target + i + part * kLanes, load_part(from, part));
  };
  constexpr int kStep = kParts * kLanes;
  int i = 0;
  for (; i + kStep <= head_dim; i += kStep) widen(source + i, i);
  if (i == dim) return;
  Page tail[kStep] = {};
  memcpy(tail, source + i, sizeof(Page) * (head_dim - i));
  widen(tail, i);
}

inline void widen_page_row(const bf16* source, float* target, int head_dim, int dim) {
  widen_spread_row(source, target, head_dim, dim);
}
inline void widen_page_row(const f8* source, float* target, int head_dim, int dim) {
  widen_spread_row(source, target, head_dim, dim);
}
#else
constexpr int kParts = 1;

inline bool spreads(octavo::DType) { return false; }
inline float unit_of(octavo::DType) { return 1.0f; }
inline void spread_row(float*, int64_t, float) {}
inline void gather_row(float*, int64_t, float) {}
#endif

}  // namespace
