// Peaks, weights and near tokens of slices of logits, compiled once per instruction set (see setup.py). Contract:
// sampling.h.
#include <cmath>
#include <cstring>

#include "sampling.h"
#include "simd.h"

namespace {

using namespace octavo;

constexpr int64_t kBlock = kPeakTokens * kLanes;  // lane i of its vectors has peak i
constexpr int kHalf = kLanes / 2;

// A slice block by block; what is missing of the last one is NaN.
class Blocks {
 public:
  Blocks(const float* logits, int64_t count) : logits_(logits), count_(count) {}

  int64_t size() const { return (count_ + kBlock - 1) / kBlock; }

  const float* operator[](int64_t block) {
    const int64_t start = block * kBlock;
    if (start + kBlock <= count_) return logits_ + start;
    for (float& value : padded_) value = NAN;
    memcpy(padded_, logits_ + start, sizeof(float) * (count_ - start));
    return padded_;
  }

 private:
  const float* logits_;
  int64_t count_;
  float padded_[kBlock];
};

// Zero also where both are infinite.
template <class Vector>
Vector distance(Vector logits, float peak) {
  return logits == peak ? Vector{} : peak - logits;
}

float find_peaks(const float* logits, int64_t count, float* peaks) {
  Blocks blocks(logits, count);
  vfloat largest = broadcast(-INFINITY);
  for (int64_t block = 0; block < kSliceTokens / kBlock; ++block) {
    vfloat peak = broadcast(-INFINITY);
    if (block < blocks.size()) {
      const float* values = blocks[block];
      for (int64_t i = 0; i < kBlock; i += kLanes) peak = maximum(load(values + i), peak);  // NaN is never larger
    }
    store(peaks + block * kLanes, peak);
    largest = maximum(peak, largest);
  }
  return max_lanes(largest);
}

vdouble weights_of(vfloat_half distances, vdouble sharpness) {
  return power_of_half(__builtin_convertvector(distances, vdouble), sharpness);
}

vfloat_half load_half(const float* p) {
  vfloat_half x;
  memcpy(&x, p, sizeof x);
  return x;
}

double sum_weights(const float* logits, int64_t count, const float* peaks, float peak, double sharpness) {
  constexpr int kSums = 4;  // as many chains of additions
  const vdouble sharp = sharpness - vdouble{};
  // 1 more than what still has a weight, so that rounding here skips none
  const double limit = 1022.0 / sharpness;
  const float farthest = limit < 3e38 ? static_cast<float>(limit) : 3e38f;
  Blocks blocks(logits, count);
  vdouble sums[kSums] = {};
  for (int64_t block = 0; block < blocks.size(); ++block) {
    if (mask_of(distance(load(peaks + block * kLanes), peak) <= farthest) == 0) continue;
    const float* values = blocks[block];
    for (int64_t i = 0; i < kBlock; i += kSums * kHalf) {
      for (int j = 0; j < kSums; ++j) {
        sums[j] += weights_of(distance(load_half(values + i + j * kHalf), peak), sharp);
      }
    }
  }
  const vdouble sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0.0;
  for (int lane = 0; lane < kHalf; ++lane) total += sum[lane];
  return total;
}

// Appends the lanes of `mask`.
int64_t append(uint32_t mask, vfloat distances, vint ids, float* distances_end, int32_t* ids_end) {
#if defined(__AVX512F__)
  const __mmask16 lanes = static_cast<__mmask16>(mask);
  store(distances_end, reinterpret_cast<vfloat>(_mm512_maskz_compress_ps(lanes, distances)));
  const __m512i packed = _mm512_maskz_compress_epi32(lanes, reinterpret_cast<__m512i>(ids));
  memcpy(ids_end, &packed, sizeof packed);
  return __builtin_popcount(mask);
#else
  int64_t count = 0;
  for (; mask != 0; mask &= mask - 1, ++count) {
    const int lane = __builtin_ctz(mask);
    distances_end[count] = distances[lane];
    ids_end[count] = ids[lane];
  }
  return count;
#endif
}

int64_t collect(const float* logits, int64_t count, int32_t first_id, const float* peaks, float peak, float limit,
                float* distances, int32_t* ids) {
  static_assert(kLanes <= kCollectSlack, "append writes whole vectors");
  vint lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  Blocks blocks(logits, count);
  int64_t found = 0;
  for (int64_t block = 0; block < blocks.size(); ++block) {
    if (mask_of(distance(load(peaks + block * kLanes), peak) <= limit) == 0) continue;
    const float* values = blocks[block];
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const vfloat away = distance(load(values + i), peak);
      const uint32_t mask = mask_of(away <= limit);
      if (mask == 0) continue;
      const vint token_ids = lanes + static_cast<int32_t>(first_id + block * kBlock + i);
      found += append(mask, away, token_ids, distances + found, ids + found);
    }
  }
  return found;
}

void weigh(const float* distances, int64_t count, double sharpness, double* weights) {
  const vdouble sharp = sharpness - vdouble{};
  int64_t i = 0;
  for (; i + kHalf <= count; i += kHalf) {
    const vdouble weight = weights_of(load_half(distances + i), sharp);
    memcpy(weights + i, &weight, sizeof weight);
  }
  if (i == count) return;
  vfloat_half rest = {};
  memcpy(&rest, distances + i, sizeof(float) * (count - i));
  const vdouble weight = weights_of(rest, sharp);
  memcpy(weights + i, &weight, sizeof(double) * (count - i));
}

}  // namespace

namespace octavo {
extern const SamplingTable OCTAVO_SAMPLING = {find_peaks, sum_weights, collect, weigh};
}  // namespace octavo
