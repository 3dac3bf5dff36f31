// One row of logits and its token: what is known of its slices, which of its tokens matter, and the search among these.
//
// Every filter keeps the likeliest tokens, so that a distance bounds what can be drawn. Where the weight of a wide row
// is spread over very many tokens, a sketch of it guesses where filters and draw end: tokens nearer than that are only
// weighed, and searched are those around it. Otherwise the weight of all, of which top-p keeps a share, is estimated.
// A wrong guess, and an estimate that does not tell, are noticed and cost time, not truth.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "ranking.h"
#include "sampling.h"
#include "sampling_sketch.h"
#include "scratch.h"

namespace octavo {

struct SamplingRow {
  double temperature;  // 0: the largest logit, the first of equals
  double top_k;        // 0: off
  double top_p;        // 1: off
  double min_p;        // 0: off
  double draw;         // in [0, 1)
};

// The memory of a thread, kept for its next call; what a row does not need is never touched.
struct RowScratch {
  Scratch<float> distances, logits;
  Scratch<double> weights;
  Scratch<int32_t> ids, members;
  Scratch<uint16_t> buckets;

  bool reserve(int64_t vocab_size) {
    const int64_t tokens = (vocab_size + kSliceTokens - 1) / kSliceTokens * kSliceTokens;
    return distances.reserve(tokens + kCollectSlack) && ids.reserve(tokens + kCollectSlack) &&
           members.reserve(tokens) && weights.reserve(tokens) && buckets.reserve(tokens);
  }
};

float rounded_up(double distance) {
  if (!(distance < FLT_MAX)) return FLT_MAX;
  return std::nextafter(static_cast<float>(distance), std::numeric_limits<float>::infinity());
}

// What is known of a row before its tokens are weighed. Guesses only save time: each is checked when it is used.
struct Plan {
  double weight;   // of the row, to kEstimateError, where top-p asks for it
  bool is_spread;  // over so many tokens that the ends of what is kept and drawn can be guessed
  Bracket kept;    // where min-p ends, `far` alone, or top-p
  Bracket drawn;
  float reach;  // of top-p, of a row that is not spread
};

// Where a search ended: the token, its distance, and the weight up to it.
struct Place {
  bool is_found;
  float distance;
  int32_t id;
  double weight;
};

// What top-p keeps weighs at least so much: a number that is known to lie between two.
struct Wanted {
  double least;
  double most;
};

// The memory of a row's slices.
struct Slices {
  float* peaks;     // [num_slices, kSlicePeaks]
  float* largest;   // [num_slices]
  double* weights;  // [num_slices, 1 + kLimits]
  Plan* plan;
};

// One row of a call, in the order of its methods: peaks, estimates if they are needed, a plan, weights if they are
// needed, a token.
class Row {
 public:
  Row(const SamplingTable& kernels, const float* logits, int64_t vocab_size, const SamplingRow& wish, Slices slices)
      : kernels_(kernels),
        logits_(logits),
        vocab_size_(vocab_size),
        wish_(wish),
        slices_(slices),
        sharpness_(1.4426950408889634 / std::max(wish.temperature, 1e-300)) {}

  int64_t num_slices() const { return (vocab_size_ + kSliceTokens - 1) / kSliceTokens; }

  void find_peaks(int64_t slice) {
    slices_.largest[slice] = kernels_.find_peaks(start_of(slice), tokens_of(slice), peaks_of(slice));
  }

  bool needs_estimates() const { return weighs_share() && wish_.temperature > 0.0 && peak() > -INFINITY; }

  void estimate(int64_t slice) {
    slices_.weights[slice * (1 + kLimits)] =
        kernels_.estimate_weight(start_of(slice), tokens_of(slice), peaks_of(slice), peak(), sharpness_);
  }

  void make_plan(RowScratch& scratch) {
    *slices_.plan = {needs_estimates() ? weight() : 0.0, false, {-1.0f, FLT_MAX}, {-1.0f, FLT_MAX}, FLT_MAX};
    const bool has_top_p = wish_.top_p < 1.0, has_min_p = wish_.min_p > 0.0;
    if (vocab_size_ < kSketchedTokens || wish_.temperature <= 0.0 || has_top_k() || has_top_p == has_min_p) return;
    if (peak() == -INFINITY || (has_min_p && num_near_peaks(farthest_likely()) < kManyPeaks)) return;
    sketch(scratch);
  }

  bool needs_weights() const {
    if (wish_.temperature <= 0.0 || peak() == -INFINITY) return false;
    return has_no_filter() || slices_.plan->is_spread;
  }

  void weigh(int64_t slice) {
    const Plan& plan = *slices_.plan;
    const float limits[kLimits] = {wish_.min_p > 0.0 ? plan.kept.far : plan.kept.near, plan.drawn.near};
    kernels_.sum_weights(start_of(slice), tokens_of(slice), peaks_of(slice), peak(), sharpness_,
                         plan.is_spread ? limits : nullptr, slices_.weights + slice * (1 + kLimits));
  }

  int64_t token(RowScratch& scratch) {
    if (peak() == -INFINITY) return token_of_nothing(scratch);
    if (wish_.temperature <= 0.0) return first_largest();
    if (has_no_filter()) return draw_by_id(scratch);
    const int64_t guessed = slices_.plan->is_spread ? draw_by_plan(scratch) : -1;
    return guessed < 0 ? draw_by_rank(scratch) : guessed;
  }

 private:
  static constexpr int64_t kSketchedTokens = 32768;  // shorter rows are searched as they are
  static constexpr int64_t kSketchedOfSlice = 64;    // the first of each slice make up the sketch
  static constexpr double kSketchedPowers = 64.0;    // of two: what weighs still less is nothing in a sketch
  static constexpr int64_t kManyPeaks = 1024;        // with fewer within min-p there is little to search
  static constexpr double kSpread = 256.0;           // tokens of equal weight that say as much as a spread row's sketch

  int64_t num_near_peaks(float distance) const {
    const float largest = peak();
    return std::count_if(slices_.peaks, slices_.peaks + num_slices() * kSlicePeaks,
                         [=](float one) { return one == largest || largest - one <= distance; });
  }

  bool has_top_k() const { return wish_.top_k > 0.0 && wish_.top_k < static_cast<double>(vocab_size_); }
  bool weighs_share() const { return wish_.top_p < 1.0 && !has_top_k(); }
  bool has_no_filter() const { return wish_.top_k <= 0.0 && wish_.top_p >= 1.0 && wish_.min_p <= 0.0; }
  const float* start_of(int64_t slice) const { return logits_ + slice * kSliceTokens; }
  int64_t tokens_of(int64_t slice) const { return std::min(kSliceTokens, vocab_size_ - slice * kSliceTokens); }
  float* peaks_of(int64_t slice) const { return slices_.peaks + slice * kSlicePeaks; }
  float peak() const { return *std::max_element(slices_.largest, slices_.largest + num_slices()); }
  double slice_weight(int64_t slice) const { return slices_.weights[slice * (1 + kLimits)]; }

  // Of the vocabulary, or of its tokens up to a limit.
  double weight(int limit = -1) const {
    double total = 0.0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) total += slices_.weights[slice * (1 + kLimits) + 1 + limit];
    return total;
  }

  // Without a logit above -infinity: as if all were equal.
  int64_t token_of_nothing(RowScratch& scratch) {
    if (!scratch.logits.reserve(vocab_size_)) return 0;
    float* zeros = scratch.logits.get();
    std::fill_n(zeros, vocab_size_, 0.0f);
    Row row(kernels_, zeros, vocab_size_, wish_, slices_);
    for (int64_t slice = 0; slice < num_slices(); ++slice) row.find_peaks(slice);
    for (int64_t slice = 0; slice < num_slices() && row.needs_estimates(); ++slice) row.estimate(slice);
    row.make_plan(scratch);
    for (int64_t slice = 0; slice < num_slices(); ++slice) row.weigh(slice);
    return row.token(scratch);
  }

  int64_t first_largest() const {
    const int64_t slice = std::max_element(slices_.largest, slices_.largest + num_slices()) - slices_.largest;
    const float* logits = start_of(slice);
    return slice * kSliceTokens + (std::find(logits, logits + tokens_of(slice), slices_.largest[slice]) - logits);
  }

  int64_t draw_by_id(RowScratch& scratch) const {
    const double target = wish_.draw * weight();
    double before = 0.0, sum = 0.0;
    int64_t chosen = 0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) {
      if (slice_weight(slice) == 0.0) continue;
      before = sum;
      sum += slice_weight(slice);
      chosen = slice;
      if (sum > target) break;
    }
    float* distances = scratch.distances.get();
    double* weights = scratch.weights.get();
    const int64_t count = tokens_of(chosen);
    measure(start_of(chosen), count, distances);
    kernels_.weigh(distances, count, sharpness_, weights);
    int64_t last = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (weights[i] == 0.0) continue;
      before += weights[i];
      last = i;
      if (before > target) break;
    }
    return chosen * kSliceTokens + last;
  }

  void measure(const float* logits, int64_t count, float* distances) const {
    const float largest = peak();
    for (int64_t i = 0; i < count; ++i) distances[i] = logits[i] == largest ? 0.0f : largest - logits[i];
  }

  // Tokens beyond one distance and up to another, weighed and in buckets.
  Ranking rank(RowScratch& scratch, Bracket bracket) const {
    float* distances = scratch.distances.get();
    int32_t* ids = scratch.ids.get();
    const float largest = peak();
    int64_t count = 0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) {
      count += kernels_.collect(start_of(slice), tokens_of(slice), static_cast<int32_t>(slice * kSliceTokens),
                                peaks_of(slice), largest, bracket.near, bracket.far, distances + count, ids + count);
    }
    kernels_.weigh(distances, count, sharpness_, scratch.weights.get());
    return {kernels_, distances, scratch.weights.get(), count, scratch.members.get(), scratch.buckets.get()};
  }

  int64_t draw_by_rank(RowScratch& scratch) {
    const Plan& plan = *slices_.plan;
    Wanted wanted = plan.is_spread ? exactly_wanted() : wanted_by_estimate();
    Ranking ranking = rank(scratch, {-1.0f, std::min(reach(scratch), plan.reach)});
    Prefix kept = keep(scratch, ranking, wanted);
    if (plan.reach < FLT_MAX && kept.weight < wanted.most) {
      ranking = rank(scratch, {-1.0f, reach(scratch)});
      kept = keep(scratch, ranking, wanted);
    }
    const double target = wish_.draw * kept.weight;
    const Prefix drawn = ranking.shortest([=](int64_t n, double sum) { return sum > target || n >= kept.count; });
    return scratch.ids.get()[drawn.last];
  }

  Wanted exactly_wanted() const {
    if (!weighs_share()) return {INFINITY, INFINITY};
    return {wish_.top_p * weight(), wish_.top_p * weight()};
  }

  Wanted wanted_by_estimate() const {
    if (!weighs_share()) return {INFINITY, INFINITY};
    const double estimate = wish_.top_p * slices_.plan->weight;
    return {estimate * (1.0 - kEstimateError), estimate * (1.0 + kEstimateError)};
  }

  // What the filters keep. Where an estimate of the weight does not tell, all tokens are weighed.
  Prefix keep(const RowScratch& scratch, Ranking& ranking, Wanted& wanted) {
    const int64_t most = num_likely(scratch, ranking.size());
    const double top_k = has_top_k() ? wish_.top_k : static_cast<double>(ranking.size());
    const auto up_to = [&](double share) {
      return ranking.shortest([=](int64_t n, double sum) { return n >= most || n >= top_k || sum >= share; });
    };
    if (wish_.top_p < 1.0 && has_top_k()) {
      return up_to(wish_.top_p * ranking.shortest([=](int64_t n, double) { return n >= top_k; }).weight);
    }
    const Prefix kept = up_to(wanted.least);  // and up to any weight between, if it is enough for the most
    if (!weighs_share() || kept.weight >= wanted.most || kept.count == most) return kept;
    for (int64_t slice = 0; slice < num_slices(); ++slice) weigh(slice);
    wanted = exactly_wanted();
    return up_to(wanted.least);
  }

  // How many of the tokens in the scratch min-p keeps.
  int64_t num_likely(const RowScratch& scratch, int64_t count) const {
    if (wish_.min_p <= 0.0) return count;
    const float likely = farthest_likely();
    const float* distances = scratch.distances.get();
    return std::count_if(distances, distances + count, [=](float one) { return one <= likely; });
  }

  // A distance beyond which no token can be drawn, whatever rounding does.
  float reach(RowScratch& scratch) const {
    const float limit = farthest_weight();
    if (has_top_k()) return std::min(limit, reach_of_top_k(scratch));
    if (wish_.top_p >= 1.0) return std::min(limit, farthest_likely());
    // All tokens farther than this weigh less than what top-p leaves out; one more for rounding.
    const double share = std::max(1.0 - wish_.top_p, DBL_EPSILON) * weight() / static_cast<double>(vocab_size_);
    const float reach_of_top_p = rounded_up(std::max(1.0 - std::log(share), 0.0) * wish_.temperature);
    return std::min({limit, farthest_likely(), reach_of_top_p});
  }

  float farthest_weight() const { return rounded_up(1020.0 / sharpness_); }

  // The largest distance that min-p keeps, to the last bit.
  float farthest_likely() const {
    if (wish_.min_p <= 0.0) return FLT_MAX;
    uint32_t kept = 0, dropped = 0x7f800000;  // distances order like their bits
    while (dropped - kept > 1) {
      const uint32_t middle = kept + (dropped - kept) / 2;
      float distance;
      double weight;
      std::memcpy(&distance, &middle, sizeof distance);
      kernels_.weigh(&distance, 1, sharpness_, &weight);
      (weight >= wish_.min_p ? kept : dropped) = middle;
    }
    float distance;
    std::memcpy(&distance, &kept, sizeof distance);
    return distance;
  }

  // Where k peaks are not farther than this, as many tokens are not.
  float reach_of_top_k(RowScratch& scratch) const {
    const int64_t num_peaks = num_slices() * kSlicePeaks;
    if (wish_.top_k > static_cast<double>(num_peaks)) return FLT_MAX;
    float* ordered = scratch.distances.get();
    std::copy_n(slices_.peaks, num_peaks, ordered);
    float* kth = ordered + static_cast<int64_t>(wish_.top_k) - 1;
    std::nth_element(ordered, kth, ordered + num_peaks, [](float a, float b) { return a > b; });
    return *kth == peak() ? 0.0f : std::min(peak() - *kth, FLT_MAX);
  }

  // Guesses where top-p or min-p and the draw end, from the first tokens of each slice.
  void sketch(RowScratch& scratch) const {
    float* distances = scratch.distances.get();
    double* weights = scratch.weights.get();
    int64_t count = 0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) {
      const int64_t taken = std::min(kSketchedOfSlice, tokens_of(slice));
      measure(start_of(slice), taken, distances + count);
      count += taken;
    }
    const float end = rounded_up(kSketchedPowers / sharpness_);
    float farthest = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      distances[i] = distances[i] < end ? distances[i] : end;  // so is NaN
      farthest = std::max(farthest, distances[i]);
    }
    if (!(farthest > 0x1p-100f)) return;  // equals
    kernels_.weigh(distances, count, sharpness_, weights);
    const Sketch sketch(distances, weights, count, farthest);
    const double sampled = static_cast<double>(count) / static_cast<double>(vocab_size_);
    Plan& plan = *slices_.plan;
    const double whole = plan.weight * sampled;
    // what lies in a few tokens that are not in the sample cannot be guessed from it
    const bool is_like_row = wish_.top_p >= 1.0 || std::abs(whole - sketch.weight()) <= 6 * sketch.deviation();
    plan.is_spread = sketch.num_equals() >= kSpread && is_like_row;
    if (wish_.top_p < 1.0 && !plan.is_spread) plan.reach = sketch.leaving((1.0 - wish_.top_p) * whole).far;
    if (!plan.is_spread) return;
    const auto around = [&](double share) {
      Bracket bracket = sketch.around(share, farthest_weight());
      if (wish_.top_p >= 1.0) return bracket;
      const Bracket other = sketch.leaving((1.0 - share) * whole);
      return Bracket{std::max(bracket.near, other.near), std::min(bracket.far, other.far)};
    };
    double kept = wish_.top_p;
    if (wish_.top_p < 1.0) {
      plan.kept = around(kept);
    } else {
      plan.kept.far = farthest_likely();
      kept = sketch.share(plan.kept.far);
    }
    plan.drawn = around(kept * wish_.draw);
  }

  // The token, or -1 where a guess was wrong.
  int64_t draw_by_plan(RowScratch& scratch) const {
    const Plan& plan = *slices_.plan;
    Place kept{true, plan.kept.far, std::numeric_limits<int32_t>::max(), weight(0)};
    if (wish_.top_p < 1.0) {
      const double wanted = wish_.top_p * weight();
      kept = search(scratch, plan.kept, weight(0), [=](double sum) { return sum >= wanted; });
      if (!kept.is_found) return -1;
    }
    const double target = wish_.draw * kept.weight;
    const Place drawn = search(scratch, plan.drawn, weight(1), [=](double sum) { return sum > target; });
    // sums of one weight that were added up in two ways may differ in their last bits
    const bool is_kept = drawn.distance < kept.distance || (drawn.distance == kept.distance && drawn.id <= kept.id);
    return drawn.is_found && is_kept ? drawn.id : -1;
  }

  // The first token in a bracket up to which the weight, with what lies before the bracket, is enough.
  template <class Enough>
  Place search(RowScratch& scratch, Bracket bracket, double before, Enough enough) const {
    const bool is_too_far = bracket.near >= 0.0f && enough(before);
    if (is_too_far) return {};
    Ranking ranking = rank(scratch, bracket);
    if (ranking.size() == 0) return {};
    const double start = bracket.near < 0.0f ? 0.0 : before;
    const Prefix prefix = ranking.shortest([=](int64_t, double sum) { return enough(start + sum); });
    const double sum = start + prefix.weight;
    return {enough(sum), scratch.distances.get()[prefix.last], scratch.ids.get()[prefix.last], sum};
  }

  const SamplingTable& kernels_;
  const float* logits_;
  int64_t vocab_size_;
  SamplingRow wish_;
  Slices slices_;
  double sharpness_;
};

}  // namespace octavo
