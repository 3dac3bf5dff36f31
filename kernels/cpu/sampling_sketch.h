// A sketch of a row of logits: the weights of a sample of its tokens, by their distance. It guesses, and never decides.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace octavo {

// What is sought lies beyond `near` and not beyond `far`.
struct Bracket {
  float near;
  float far;
};

class Sketch {
 public:
  // `farthest` is positive and not less than any of the distances.
  Sketch(const float* distances, const double* weights, int64_t count, float farthest)
      : width_(farthest / static_cast<float>(kBuckets)) {
    const float per_distance = static_cast<float>(kBuckets) / farthest;
    for (int64_t i = 0; i < count; ++i) {
      Bucket& own = buckets_[std::min(kBuckets - 1, static_cast<int>(distances[i] * per_distance))];
      own.weight += weights[i];
      own.squares += weights[i] * weights[i];
    }
    for (const Bucket& one : buckets_) {
      weight_ += one.weight;
      squares_ += one.squares;
    }
  }

  double weight() const { return weight_; }

  // How many tokens of equal weight say as much: Kish's effective sample size.
  double num_equals() const { return weight_ * weight_ / squares_; }

  // The standard deviation of `weight` over samples, at most.
  double deviation() const { return std::sqrt(squares_); }

  // Of the weight, that up to a distance.
  double share(float distance) const {
    double sum = 0.0;
    for (int bucket = 0; bucket < kBuckets && near(bucket) <= distance; ++bucket) sum += buckets_[bucket].weight;
    return sum / weight_;
  }

  // Of the distance up to which there is a share of the weight: three standard deviations to both sides.
  Bracket around(double share, float farthest) const {
    const double margin = 3.0 * std::sqrt(share * (1.0 - share) / num_equals()) + 3.0 / num_equals();
    Bracket bracket{-1.0f, farthest};
    if (share > margin) bracket.near = near(bucket_at((share - margin) * weight_));
    if (share + margin < 1.0) bracket.far = far(bucket_at((share + margin) * weight_));
    return bracket;
  }

  // Of the distance beyond which so much of the sample's weight would lie, were it like the row: three standard
  // deviations to both sides. What lies far away is many light tokens, and known better than what lies near.
  Bracket leaving(double left) const {
    Bracket bracket{-1.0f, 0.0f};
    int bucket = kBuckets;
    double weight = 0.0, squares = 0.0;
    for (; bucket > 0; --bucket) {
      weight += buckets_[bucket - 1].weight;
      squares += buckets_[bucket - 1].squares;
      const double deviation = 3.0 * std::sqrt(squares);
      if (bracket.far == 0.0f && weight + deviation > left) bracket.far = far(bucket - 1);
      if (weight - deviation < left) continue;
      bracket.near = near(bucket - 1);
      break;
    }
    return bracket;
  }

 private:
  static constexpr int kBuckets = 1024;
  static constexpr float kEdge = 0x1p-10f;  // more than rounding can make of a bucket's width

  struct Bucket {
    double weight = 0.0;
    double squares = 0.0;
  };

  // Just before a bucket, and just behind it.
  float near(int bucket) const { return bucket == 0 ? -1.0f : width_ * (static_cast<float>(bucket) - kEdge); }
  float far(int bucket) const { return width_ * (static_cast<float>(bucket) + (1.0f + kEdge)); }

  int bucket_at(double wanted) const {
    double sum = 0.0;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      sum += buckets_[bucket].weight;
      if (sum >= wanted) return bucket;
    }
    return kBuckets - 1;
  }

  float width_;
  double weight_ = 0.0;
  double squares_ = 0.0;
  Bucket buckets_[kBuckets];
};

}  // namespace octavo
