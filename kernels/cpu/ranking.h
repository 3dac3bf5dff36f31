// Tokens in the order from likely to unlikely, without sorting them: the shortest run of it that has enough weight.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sampling.h"

namespace octavo {

// The first tokens of a ranking.
struct Prefix {
  int64_t count;
  double weight;
  int64_t last;  // place of the one that comes last
};

// `size` tokens by ascending distance, equals by place. They lie in buckets of equal width; the bucket where a search
// ends is divided in the same way, until it is small enough to be sorted or its tokens are all equally far. Sums depend
// on the tokens and their order only.
class Ranking {
 public:
  // Distances are finite. `members` and `buckets` are scratch for `size` elements.
  Ranking(const SamplingTable& kernels, const float* distances, const double* weights, int64_t size, int32_t* members,
          uint16_t* buckets)
      : distances_(distances), weights_(weights), size_(size), members_(members), buckets_(buckets) {
    if (size <= kSorted) return;
    whole_.clear();
    kernels.divide(distances, size, Histogram::kBuckets, buckets);
    for (int64_t place = 0; place < size; ++place) whole_.add(buckets[place], weights[place]);
  }

  int64_t size() const { return size_; }

  // The shortest prefix with `enough(count, weight)`, which must stay true when either grows; all, if there is none.
  template <class Enough>
  Prefix shortest(Enough enough) {
    Prefix before{0, 0.0, -1};
    int64_t count = size_;
    if (size_ <= kSorted) {
      for (int64_t place = 0; place < size_; ++place) members_[place] = static_cast<int32_t>(place);
    } else {
      const int chosen = whole_.walk(before, enough);
      count = 0;
      for (int64_t place = 0; place < size_; ++place) {
        if (buckets_[place] == chosen) members_[count++] = static_cast<int32_t>(place);
      }
    }
    while (count > kSorted) {
      part_.spread(distances_, members_, count);
      if (part_.is_point()) return of_equals(before, count, enough);
      for (int64_t i = 0; i < count; ++i) {
        part_.add(part_.bucket(distances_[members_[i]]), weights_[members_[i]]);
      }
      const int chosen = part_.walk(before, enough);
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (part_.bucket(distances_[members_[i]]) == chosen) members_[kept++] = members_[i];
      }
      count = kept;
    }
    return of_sorted(before, count, enough);
  }

 private:
  static constexpr int64_t kSorted = 128;

  class Histogram {
   public:
    static constexpr int kBuckets = 1024;

    void clear() {
      std::fill_n(counts_, kBuckets, 0);
      std::fill_n(weights_, kBuckets, 0.0);
    }

    void spread(const float* distances, const int32_t* members, int64_t count) {
      float nearest = distances[members[0]], farthest = nearest;
      for (int64_t i = 1; i < count; ++i) {
        nearest = std::min(nearest, distances[members[i]]);
        farthest = std::max(farthest, distances[members[i]]);
      }
      nearest_ = nearest;
      const double width = static_cast<double>(farthest) - nearest;
      per_distance_ = width > 0.0 ? kBuckets / width : 0.0;
      clear();
    }

    bool is_point() const { return per_distance_ == 0.0; }

    int bucket(float distance) const {
      return std::min(kBuckets - 1, static_cast<int>((static_cast<double>(distance) - nearest_) * per_distance_));
    }

    void add(int bucket, double weight) {
      ++counts_[bucket];
      weights_[bucket] += weight;
    }

    // The bucket in which there is enough, or the last with a token; `before` grows by those before it.
    template <class Enough>
    int walk(Prefix& before, Enough enough) const {
      int last = kBuckets - 1;
      while (counts_[last] == 0) --last;
      for (int bucket = 0; bucket < last; ++bucket) {
        const int64_t count = before.count + counts_[bucket];
        const double weight = before.weight + weights_[bucket];
        if (counts_[bucket] != 0 && enough(count, weight)) return bucket;
        before.count = count, before.weight = weight;
      }
      return last;
    }

   private:
    double nearest_;
    double per_distance_;
    int32_t counts_[kBuckets];
    double weights_[kBuckets];
  };

  template <class Enough>
  Prefix of_equals(Prefix before, int64_t count, Enough enough) const {
    const double weight = weights_[members_[0]];
    int64_t few = 0, many = count;  // `few` are not enough
    while (many - few > 1) {
      const int64_t middle = few + (many - few) / 2;
      (enough(before.count + middle, before.weight + middle * weight) ? many : few) = middle;
    }
    return {before.count + many, before.weight + many * weight, members_[many - 1]};
  }

  template <class Enough>
  Prefix of_sorted(Prefix before, int64_t count, Enough enough) const {
    std::sort(members_, members_ + count, [this](int32_t a, int32_t b) {
      return distances_[a] != distances_[b] ? distances_[a] < distances_[b] : a < b;
    });
    for (int64_t i = 0; i < count; ++i) {
      before = {before.count + 1, before.weight + weights_[members_[i]], members_[i]};
      if (enough(before.count, before.weight)) break;
    }
    return before;
  }

  const float* distances_;
  const double* weights_;
  int64_t size_;
  int32_t* members_;
  uint16_t* buckets_;
  Histogram whole_;
  Histogram part_;
};

}  // namespace octavo
