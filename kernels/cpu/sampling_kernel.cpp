// Peaks, weights and near tokens of slices of logits, counts and masks, compiled once per instruction set (see setup.py). Contract:
// sampling.h.
#include <algorithm>
#include <cfloat>
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

// Distances to weights.
class Scale {
 public:
  explicit Scale(double sharpness) : sharpness_(sharpness - vdouble{}), end_(end_of(sharpness) - vdouble{}) {}

  vdouble weights(vdouble distances) const { return power_of_half(distances, sharpness_, end_); }

  vdouble weights(vfloat_half distances) const { return weights(__builtin_convertvector(distances, vdouble)); }

  // Farther tokens have no weight.
  static double end_of(double sharpness) { return std::fmin(1020.999 / sharpness, 0x1p1000); }

 private:
  vdouble sharpness_;
  vdouble end_;
};

vfloat_half load_half(const float* p) {
  vfloat_half x;
  memcpy(&x, p, sizeof x);
  return x;
}

// Lanes in order, after the chains.
double total_of(const vdouble* sums) {
  const vdouble sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0.0;
  for (int lane = 0; lane < kHalf; ++lane) total += sum[lane];
  return total;
}

template <int kNumLimits>
void sum_up_to(const float* logits, int64_t count, const float* peaks, float peak, double sharpness,
               const float* limits, double* totals) {
  constexpr int kSums = 4;  // chains of additions
  const Scale scale(sharpness);
  const double end = Scale::end_of(sharpness) * 1.000001;  // so that rounding skips none
  const float farthest = end < FLT_MAX ? static_cast<float>(end) : FLT_MAX;
  const bool is_finite = peak < INFINITY;  // then the difference is the distance
  Blocks blocks(logits, count);
  vdouble sums[1 + kNumLimits][kSums] = {};
  vdouble limit_of[1 + kNumLimits] = {};
  for (int one = 0; one < kNumLimits; ++one) limit_of[one] = static_cast<double>(limits[one]) - vdouble{};
  for (int64_t block = 0; block < blocks.size(); ++block) {
    if (mask_of(distance(load(peaks + block * kLanes), peak) <= farthest) == 0) continue;
    const float* values = blocks[block];
    for (int64_t i = 0; i < kBlock; i += kSums * kHalf) {
      for (int j = 0; j < kSums; ++j) {
        const vfloat_half near = load_half(values + i + j * kHalf);
        const vdouble away = __builtin_convertvector(is_finite ? peak - near : distance(near, peak), vdouble);
        const vdouble weight = scale.weights(away);
        sums[0][j] += weight;
        for (int one = 0; one < kNumLimits; ++one) sums[1 + one][j] += away <= limit_of[one] ? weight : vdouble{};
      }
    }
  }
  for (int one = 0; one < 1 + kNumLimits; ++one) totals[one] = total_of(sums[one]);
}

void sum_weights(const float* logits, int64_t count, const float* peaks, float peak, double sharpness,
                 const float* limits, double* sums) {
  if (limits == nullptr) return sum_up_to<0>(logits, count, peaks, peak, sharpness, nullptr, sums);
  sum_up_to<kLimits>(logits, count, peaks, peak, sharpness, limits, sums);
}

#if defined(__AVX512F__)
constexpr bool kAppendsFast = true;  // faster than a branch that is often mispredicted
#else
constexpr bool kAppendsFast = false;
#endif

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

int64_t collect(const float* logits, int64_t count, int32_t first_id, const float* peaks, float peak, float beyond,
                float limit, float* distances, int32_t* ids) {
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
      const uint32_t mask = mask_of((away > beyond) & (away <= limit));
      if (!kAppendsFast && mask == 0) continue;
      const vint token_ids = lanes + static_cast<int32_t>(first_id + block * kBlock + i);
      found += append(mask, away, token_ids, distances + found, ids + found);
    }
  }
  return found;
}

void weigh(const float* distances, int64_t count, double sharpness, double* weights) {
  const Scale scale(sharpness);
  int64_t i = 0;
  for (; i + kHalf <= count; i += kHalf) {
    const vdouble weight = scale.weights(load_half(distances + i));
    memcpy(weights + i, &weight, sizeof weight);
  }
  if (i == count) return;
  vfloat_half rest = {};
  memcpy(&rest, distances + i, sizeof(float) * (count - i));
  const vdouble weight = scale.weights(rest);
  memcpy(weights + i, &weight, sizeof(double) * (count - i));
}

int64_t count_ahead(const float* logits, int64_t count, const float* peaks, float own, int64_t place) {
  vint lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  const int32_t end = static_cast<int32_t>(std::clamp<int64_t>(place, 0, kSliceTokens));
  Blocks blocks(logits, count);
  vint found = {};  // minus one for each
  for (int64_t block = 0; block < blocks.size(); ++block) {
    if (mask_of(load(peaks + block * kLanes) >= own) == 0) continue;
    const float* values = blocks[block];
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const vfloat value = load(values + i);
      const vint is_before = lanes + static_cast<int32_t>(block * kBlock + i) < end;
      found += (value > own) | ((value == own) & is_before);
    }
  }
  int64_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total -= found[lane];
  return total;
}

void mask(float* logits, int64_t count, const uint32_t* words) {
  static_assert(kWordTokens % kLanes == 0, "a vector has one word");
  const vfloat forbidden = broadcast(-INFINITY);
  vint bits;
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = 1 << lane;
  const int64_t whole = count / kWordTokens;
  for (int64_t index = 0; index < whole; ++index) {
    const uint32_t word = words[index];
    float* values = logits + index * kWordTokens;
    if (word == 0xffffffff) continue;
    for (int i = 0; i < kWordTokens; i += kLanes) {
      const vint is_allowed = (static_cast<int32_t>(word >> i) & bits) != 0;
      store(values + i, is_allowed ? load(values + i) : forbidden);
    }
  }
  for (int64_t id = whole * kWordTokens; id < count; ++id) {
    if ((words[whole] >> (id - whole * kWordTokens) & 1) == 0) logits[id] = -INFINITY;
  }
}

}  // namespace

namespace octavo {
extern const SamplingTable OCTAVO_SAMPLING = {find_peaks, sum_weights, collect, weigh, count_ahead, mask};
}  // namespace octavo
