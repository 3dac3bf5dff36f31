// Peaks, weights and near tokens of slices of logits, counts and masks, compiled once per instruction set (see
// setup.py). Contract: sampling.h.
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

vdouble widened(vfloat_half x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vdouble>(_mm512_cvtps_pd(reinterpret_cast<__m256>(x)));  // compilers make more of it
#else
  return __builtin_convertvector(x, vdouble);
#endif
}

// Distances to weights.
class Scale {
 public:
  explicit Scale(double sharpness) : sharpness_(sharpness - vdouble{}), end_(end_of(sharpness) - vdouble{}) {}

  vdouble weights(vdouble distances) const { return power_of_half(distances, sharpness_, end_); }

  vdouble weights(vfloat_half distances) const { return weights(widened(distances)); }

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

// Of a finite `peak` the difference is the distance.
template <int kNumLimits, bool kIsFinite>
void sum_up_to(const float* logits, int64_t count, const float* peaks, float peak, double sharpness,
               const float* limits, double* totals) {
  constexpr int kSums = 4;  // chains of additions
  const Scale scale(sharpness);
  const double end = Scale::end_of(sharpness) * 1.000001;  // so that rounding skips none
  const float farthest = end < FLT_MAX ? static_cast<float>(end) : FLT_MAX;
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
        const vdouble away = widened(kIsFinite ? peak - near : distance(near, peak));
        const vdouble weight = scale.weights(away);
        sums[0][j] += weight;
        for (int one = 0; one < kNumLimits; ++one) {
          vdouble& sum = sums[1 + one][j];
          sum = away <= limit_of[one] ? sum + weight : sum;
        }
      }
    }
  }
  for (int one = 0; one < 1 + kNumLimits; ++one) totals[one] = total_of(sums[one]);
}

#if defined(__AVX2__) || defined(__aarch64__)
constexpr bool kHasFma = true;
#else
constexpr bool kHasFma = false;
#endif

// Distances to weights in float32, to 2^-22 relative (of all distances, tried for many a sharpness). A rounded product
// of distance and sharpness would be too far off; fma takes its whole part off before it rounds.
class RoughScale {
 public:
  explicit RoughScale(double sharpness)
      : high_(broadcast(static_cast<float>(sharpness))),
        low_(broadcast(static_cast<float>(sharpness - static_cast<double>(high_[0])))),
        end_(broadcast(end_of(sharpness))) {}

  vfloat weights(vfloat distances) const {
    const vfloat magic = broadcast(0x1.8p23f);  // adding it rounds to an integer in the low mantissa bits
    const vfloat shifted = fma(distances, -high_, magic);
    const vfloat f = fma(distances, -low_, fma(distances, -high_, magic - shifted));  // -0.5 .. 0.5
    vfloat y = broadcast(0x1.430912p-13f);
    y = fma(y, f, broadcast(0x1.5d87fep-10f));
    y = fma(y, f, broadcast(0x1.3b2ab6p-7f));
    y = fma(y, f, broadcast(0x1.c6b08ep-5f));
    y = fma(y, f, broadcast(0x1.ebfbe0p-3f));
    y = fma(y, f, broadcast(0x1.62e430p-1f));
    y = fma(y, f, broadcast(1.0f));
    const vfloat scaled = as_float(as_int(y) + (as_int(shifted) << 23));
    return distances < end_ ? scaled : vfloat{};  // nor has NaN a weight
  }

  // Farther tokens weigh too little to matter, each less than 2^-124 of the largest.
  static float end_of(double sharpness) { return static_cast<float>(124.5 / sharpness); }

 private:
  vfloat high_;
  vfloat low_;  // the rest of the sharpness
  vfloat end_;
};

double sum_roughly(const float* logits, int64_t count, const float* peaks, float peak, double sharpness) {
  constexpr int kSums = 4;
  const RoughScale scale(sharpness);
  const float end = RoughScale::end_of(sharpness);
  Blocks blocks(logits, count);
  vdouble sums[2] = {};
  for (int64_t block = 0; block < blocks.size(); ++block) {
    if (mask_of(peak - load(peaks + block * kLanes) < end) == 0) continue;
    const float* values = blocks[block];
    for (int64_t i = 0; i < kBlock; i += kSums * kLanes) {
      vfloat four[kSums];
      for (int j = 0; j < kSums; ++j) four[j] = scale.weights(peak - load(values + i + j * kLanes));
      const vfloat sum = (four[0] + four[1]) + (four[2] + four[3]);  // rounds twice
      vfloat_half halves[2];
      memcpy(halves, &sum, sizeof halves);
      for (int j = 0; j < 2; ++j) sums[j] += widened(halves[j]);
    }
  }
  const vdouble sum = sums[0] + sums[1];
  double total = 0.0;
  for (int lane = 0; lane < kHalf; ++lane) total += sum[lane];
  return total;
}

void sum_weights(const float* logits, int64_t count, const float* peaks, float peak, double sharpness,
                 const float* limits, double* sums) {
  const bool is_finite = peak < INFINITY;
  if (limits == nullptr) {
    const auto sum = is_finite ? sum_up_to<0, true> : sum_up_to<0, false>;
    return sum(logits, count, peaks, peak, sharpness, nullptr, sums);
  }
  const auto sum = is_finite ? sum_up_to<kLimits, true> : sum_up_to<kLimits, false>;
  sum(logits, count, peaks, peak, sharpness, limits, sums);
}

double estimate_weight(const float* logits, int64_t count, const float* peaks, float peak, double sharpness) {
  if (kHasFma && peak < INFINITY && sharpness > 0x1p-20 && sharpness < 0x1p20) {
    return sum_roughly(logits, count, peaks, peak, sharpness);
  }
  double sum;
  sum_weights(logits, count, peaks, peak, sharpness, nullptr, &sum);
  return sum;
}

// Bit i is set where lane i lies between.
uint64_t mask_between(vfloat distances, float beyond, float limit) {
#if defined(__AVX512F__)
  const __mmask16 near = _mm512_cmp_ps_mask(distances, broadcast(limit), _CMP_LE_OQ);
  return _mm512_mask_cmp_ps_mask(near, distances, broadcast(beyond), _CMP_GT_OQ);
#else
  return mask_of((distances > beyond) & (distances <= limit));
#endif
}

// A bit for each logit of a block: those whose distance is more than `beyond` and not more than `limit`.
template <class Distance>
void find_near(const float* values, float beyond, float limit, uint64_t* words, Distance distance_of) {
  constexpr int kOfWord = 64 / kLanes;  // vectors
  for (int64_t word = 0; word < kBlock / 64; ++word) {
    uint64_t bits = 0;
    for (int j = 0; j < kOfWord; ++j) {
      const vfloat away = distance_of(load(values + word * 64 + j * kLanes));
      bits |= mask_between(away, beyond, limit) << (j * kLanes);
    }
    words[word] = bits;
  }
}

int64_t collect(const float* logits, int64_t count, int32_t first_id, const float* peaks, float peak, float beyond,
                float limit, float* distances, int32_t* ids) {
  constexpr int kAtOnce = 4;  // ids written whether they are there or not, since a branch for each is mispredicted
  static_assert(kAtOnce <= kCollectSlack, "what is written behind the last is overwritten or left");
  Blocks blocks(logits, count);
  uint64_t words[kBlock / 64];
  int64_t found = 0;
  for (int64_t block = 0; block < blocks.size(); ++block) {
    if (mask_of(distance(load(peaks + block * kLanes), peak) <= limit) == 0) continue;
    const float* values = blocks[block];
    if (peak < INFINITY) {
      find_near(values, beyond, limit, words, [peak](vfloat one) { return peak - one; });
    } else {
      find_near(values, beyond, limit, words, [peak](vfloat one) { return distance(one, peak); });
    }
    for (int64_t word = 0; word < kBlock / 64; ++word) {
      const int32_t start = first_id + static_cast<int32_t>(block * kBlock + word * 64);
      const int64_t end = found + __builtin_popcountll(words[word]);
      uint64_t bits = words[word];
      do {
        for (int i = 0; i < kAtOnce; ++i, bits &= bits - 1) ids[found + i] = start + __builtin_ctzll(bits | 1ull << 63);
        found += kAtOnce;
      } while (found < end);
      found = end;
    }
  }
  for (int64_t i = 0; i < found; ++i) {
    const float value = logits[ids[i] - first_id];
    distances[i] = value == peak ? 0.0f : peak - value;
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

void divide(const float* distances, int64_t count, int num_buckets, uint16_t* buckets) {
  vfloat nearest = broadcast(INFINITY), farthest = broadcast(-INFINITY);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const vfloat one = load(distances + i);
    nearest = -maximum(-one, -nearest);
    farthest = maximum(one, farthest);
  }
  float least = -max_lanes(-nearest), most = max_lanes(farthest);
  for (int64_t i = whole; i < count; ++i) {
    least = std::min(least, distances[i]);
    most = std::max(most, distances[i]);
  }
  const float per_distance = std::min(static_cast<float>(num_buckets) / (most - least), FLT_MAX);  // of equals: FLT_MAX
  for (int64_t i = 0; i < whole; i += kLanes) {
    const vint all = __builtin_convertvector((load(distances + i) - least) * per_distance, vint);
    const vint own = all < num_buckets ? all : vint{} + (num_buckets - 1);
    const vhalf narrow = __builtin_convertvector(own, vhalf);
    memcpy(buckets + i, &narrow, sizeof narrow);
  }
  for (int64_t i = whole; i < count; ++i) {
    const int own = static_cast<int>((distances[i] - least) * per_distance);
    buckets[i] = static_cast<uint16_t>(std::min(num_buckets - 1, own));
  }
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
extern const SamplingTable OCTAVO_SAMPLING = {find_peaks, sum_weights, estimate_weight, collect,
                                                weigh,      divide,      count_ahead,     mask};
}  // namespace octavo
