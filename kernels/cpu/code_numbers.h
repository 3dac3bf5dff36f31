// Queries and weights as whole numbers of 16 bits, which products with the codes of int8 pages take.
//
// A query's are in units of a part of its largest element, a weight's of the largest in its tile. Rounding is off by no more
// than 2^-16 of the largest, and sums of products are exact, in whatever order they are added. How the numbers lie and how
// they are multiplied depends on the instruction set: code_quads.h, code_pairs.h.
#pragma once

#include "tile.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define OCTAVO_MULTIPLIES_CODES
#define OCTAVO_ADDS_QUADS
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define OCTAVO_MULTIPLIES_CODES
#endif

#if defined(OCTAVO_MULTIPLIES_CODES)

namespace {

constexpr int kCodesAtOnce = 64;    // rows have a multiple of so many elements
constexpr int kLongestCodes = 512;  // elements of a row; sums of longer ones might overflow
constexpr float kLargestQuery = 127 * 256 + 127;
constexpr float kLargestWeight = 255 * 256 + 255;

// What takes the place of a float: a row of queries of them is a QueryCodes, a row of weights WeightCodes.
struct Place {
  char bytes[sizeof(float)];
};

// Depends on the call only: a decode must do as its prefill does.
inline bool multiplies_codes(const octavo::AttendCall& call) {
  return call.pages_dtype == octavo::DType::int8 && call.head_dim % kCodesAtOnce == 0 && call.head_dim <= kLongestCodes;
}

inline vint nearest(vfloat x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vint>(_mm512_cvtps_epi32(x));
#else
  return reinterpret_cast<vint>(_mm256_cvtps_epi32(x));
#endif
}

// The unit in which numbers are whole, and how many of it are 1.
struct Unit16 {
  float size, per_one;

  // In which the largest, by `most`, is `steps`. NaN if one of them is none or infinite; numbers below 2^-110 are 0.
  Unit16(vint most, float steps) : size(0.0f), per_one(0.0f) {
    const int32_t bits = max_lanes(most);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    if (bits >= 0x7f800000) {
      size = NAN;
    } else if (largest >= 0x1p-110f) {
      size = largest / steps;
      per_one = steps / largest;
    }
  }
};

// Stores a vector of weights times the factors of their values over the scores. What a row does not see, of which the
// score is -infinity, stays 0, whatever its value is.
template <bool quantised>
inline vfloat store_weights(Place* row, int key, vfloat weights, const Factors<quantised>& factors) {
  float* place = reinterpret_cast<float*>(row) + key;
  store(place, load(place) == -INFINITY ? vfloat{} : weights * load(factors.value_factors + key));
  return weights;
}

}  // namespace

#endif
