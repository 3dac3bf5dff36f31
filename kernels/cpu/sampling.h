// Rows of logits: what the C interfaces (sampling.cpp, logprobs.cpp, logit_mask.cpp) and the per-ISA kernels
// (sampling_kernel.cpp) agree on.
//
// The distance of a token is how far its logit is below the row's largest, in float32; its weight is
// 2^-(distance * sharpness), in float64, with sharpness = log2(e) / temperature. NaN is no token: it has no weight and
// is at no distance.
//
// A vocabulary is cut into slices of kSliceTokens, and a slice into as many parts as it has peaks: the largest logits of
// kPeakTokens tokens each. Weights are summed slice by slice, in an order that only the instruction set decides.
#pragma once

#include <cstdint>

namespace octavo {

// With fewer logits than this a call is over in 0.3 ms on one thread, and others gain less than they cost.
constexpr int64_t kSerialLogits = 1 << 19;

constexpr int64_t kSliceTokens = 4096;
constexpr int64_t kPeakTokens = 32;
constexpr int64_t kSlicePeaks = kSliceTokens / kPeakTokens;
constexpr int kLimits = 2;
constexpr double kEstimateError = 0x1p-21;  // float32's powers are off by 2^-22 at most, its sums by 2^-23
constexpr int64_t kWordTokens = 32;    // whose bits are a word of a mask, the lowest of the first
constexpr int64_t kCollectSlack = 16;  // elements that `collect` may write behind the last it found

struct SamplingTable {
  // Of a slice of `count` logits: its kSlicePeaks peaks, -infinity where there is none, and, returned, the largest.
  float (*find_peaks)(const float* logits, int64_t count, float* peaks);
  // The weight of a slice whose peaks are known, in a row whose largest logit is `peak`, which is not -infinity; and, if
  // there are `limits` [kLimits], the weight up to each of these distances. `sums` [1 + kLimits].
  void (*sum_weights)(const float* logits, int64_t count, const float* peaks, float peak, double sharpness,
                      const float* limits, double* sums);
  // The weight of such a slice, to kEstimateError of itself and 2^-112.
  double (*estimate_weight)(const float* logits, int64_t count, const float* peaks, float peak, double sharpness);
  // Distances of a slice that are more than `beyond` and not more than `limit`, and the ids of their tokens, by id;
  // returns how many.
  int64_t (*collect)(const float* logits, int64_t count, int32_t first_id, const float* peaks, float peak, float beyond,
                     float limit, float* distances, int32_t* ids);
  void (*weigh)(const float* distances, int64_t count, double sharpness, double* weights);
  // Buckets of equal width, from the nearest of finite distances to the farthest.
  void (*divide)(const float* distances, int64_t count, int num_buckets, uint16_t* buckets);
  // How many logits of a slice whose peaks are known are larger than `own`, or equal to it among the first `place`, which
  // may lie outside. NaN is neither.
  int64_t (*count_ahead)(const float* logits, int64_t count, const float* peaks, float own, int64_t place);
  // Makes logits whose bit is not set -infinity.
  void (*mask)(float* logits, int64_t count, const uint32_t* words);
};

// Of the build `variant`, which this machine must support.
const SamplingTable& sampling_of(int variant);

extern const SamplingTable sampling_portable;
#ifdef OCTAVO_X86
extern const SamplingTable sampling_avx2;
extern const SamplingTable sampling_avx512;
extern const SamplingTable sampling_avx512_bf16;
#endif

}  // namespace octavo
