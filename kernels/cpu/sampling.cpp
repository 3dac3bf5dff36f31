// C interface of sampling: a token per row of logits, each row by its own parameters.
//
// Rows are shared out among threads; those that do not share out evenly are worked on slice by slice, by all threads.
// What is computed of a row and in which order of additions is the same either way (sampling.h).
#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "dispatch.h"
#include "ranking.h"
#include "sampling.h"

namespace octavo {

struct SamplingRow {
  double temperature;  // 0: the largest logit, the first of equals
  double top_k;        // 0: off
  double top_p;        // 1: off
  double min_p;        // 0: off
  double draw;         // in [0, 1)
};

// Arguments of one call. The logits of a row are contiguous; `row_stride` is in elements.
struct SamplingCall {
  const float* logits;  // [num_rows, vocab_size]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  const SamplingRow* rows;
  int64_t* tokens;  // [num_rows]
};

namespace {

const SamplingTable& sampling_of(int variant) {
  static const SamplingTable* const table[] = {
      &sampling_portable,
#ifdef OCTAVO_X86
      &sampling_avx2,
      &sampling_avx512,
      &sampling_avx512_bf16,
#endif
  };
  return *table[variant];
}

// Memory that grows and is not initialised.
template <class Element>
class Scratch {
 public:
  bool reserve(int64_t count) {
    if (count <= size_) return true;
    data_.reset(new (std::nothrow) Element[count]);
    size_ = data_ == nullptr ? 0 : count;
    return size_ == count;
  }

  Element* get() const { return data_.get(); }

 private:
  std::unique_ptr<Element[]> data_;
  int64_t size_ = 0;
};

// One thread's memory for one row, kept for its next call; what is not needed is never touched.
struct RowScratch {
  Scratch<float> peaks, distances, logits;
  Scratch<double> slice_weights, weights;
  Scratch<int32_t> ids, members;
  Scratch<uint16_t> buckets;

  bool reserve(int64_t vocab_size) {
    const int64_t slices = (vocab_size + kSliceTokens - 1) / kSliceTokens, tokens = slices * kSliceTokens;
    const int64_t with_slack = tokens + kCollectSlack;
    return peaks.reserve(slices * (kSlicePeaks + 1)) && slice_weights.reserve(slices) &&
           distances.reserve(with_slack) && ids.reserve(with_slack) && members.reserve(tokens) &&
           weights.reserve(tokens) && buckets.reserve(tokens);
  }
};

thread_local RowScratch row_scratch;

float rounded_up(double distance) {
  if (!(distance < FLT_MAX)) return FLT_MAX;
  return std::nextafter(static_cast<float>(distance), std::numeric_limits<float>::infinity());
}

// One row of a call: what is known of its slices, and its token. Whoever makes it owns the memory of the slices.
class Row {
 public:
  Row(const SamplingTable& kernels, const float* logits, int64_t vocab_size, const SamplingRow& wish, float* peaks,
      float* slice_peaks, double* slice_weights)
      : kernels_(kernels),
        logits_(logits),
        vocab_size_(vocab_size),
        wish_(wish),
        peaks_(peaks),
        slice_peaks_(slice_peaks),
        slice_weights_(slice_weights),
        sharpness_(1.4426950408889634 / std::max(wish.temperature, 1e-300)) {}

  int64_t num_slices() const { return (vocab_size_ + kSliceTokens - 1) / kSliceTokens; }

  void find_peaks(int64_t slice) {
    slice_peaks_[slice] = kernels_.find_peaks(start_of(slice), tokens_of(slice), peaks_ + slice * kSlicePeaks);
  }

  // Whether the weight of the whole vocabulary matters. Known before any peak.
  bool needs_weights() const {
    return wish_.temperature > 0.0 && (has_no_filter() || (wish_.top_p < 1.0 && !has_top_k()));
  }

  void weigh(int64_t slice) {
    if (peak() == -INFINITY) return;
    slice_weights_[slice] = kernels_.sum_weights(start_of(slice), tokens_of(slice), peaks_ + slice * kSlicePeaks,
                                                 peak(), sharpness_);
  }

  // Once the peaks are found and, if they matter, all slices weighed.
  int64_t token(RowScratch& scratch) {
    if (peak() == -INFINITY) return token_of_nothing(scratch);
    if (wish_.temperature <= 0.0) return first_largest();
    return has_no_filter() ? draw_by_id(scratch) : draw_by_rank(scratch);
  }

 private:
  bool has_top_k() const { return wish_.top_k > 0.0 && wish_.top_k < static_cast<double>(vocab_size_); }
  bool has_no_filter() const { return wish_.top_k <= 0.0 && wish_.top_p >= 1.0 && wish_.min_p <= 0.0; }
  const float* start_of(int64_t slice) const { return logits_ + slice * kSliceTokens; }
  int64_t tokens_of(int64_t slice) const { return std::min(kSliceTokens, vocab_size_ - slice * kSliceTokens); }
  float peak() const { return *std::max_element(slice_peaks_, slice_peaks_ + num_slices()); }

  double weight() const {
    double total = 0.0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) total += slice_weights_[slice];
    return total;
  }

  // Without a logit above -infinity: as if all were equal.
  int64_t token_of_nothing(RowScratch& scratch) {
    if (!scratch.logits.reserve(vocab_size_)) return 0;
    float* zeros = scratch.logits.get();
    std::fill_n(zeros, vocab_size_, 0.0f);
    Row row(kernels_, zeros, vocab_size_, wish_, peaks_, slice_peaks_, slice_weights_);
    for (int64_t slice = 0; slice < num_slices(); ++slice) row.find_peaks(slice);
    for (int64_t slice = 0; slice < num_slices(); ++slice) row.weigh(slice);
    return row.token(scratch);
  }

  int64_t first_largest() const {
    const int64_t slice = std::max_element(slice_peaks_, slice_peaks_ + num_slices()) - slice_peaks_;
    const float* logits = start_of(slice);
    return slice * kSliceTokens + (std::find(logits, logits + tokens_of(slice), slice_peaks_[slice]) - logits);
  }

  int64_t draw_by_id(RowScratch& scratch) const {
    const double target = wish_.draw * weight();
    double before = 0.0, sum = 0.0;
    int64_t chosen = 0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) {
      if (slice_weights_[slice] == 0.0) continue;
      before = sum;
      sum += slice_weights_[slice];
      chosen = slice;
      if (sum > target) break;
    }
    const float* logits = start_of(chosen);
    float* distances = scratch.distances.get();
    double* weights = scratch.weights.get();
    const int64_t count = tokens_of(chosen);
    const float largest = peak();
    for (int64_t i = 0; i < count; ++i) distances[i] = logits[i] == largest ? 0.0f : largest - logits[i];
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

  int64_t draw_by_rank(RowScratch& scratch) const {
    float* distances = scratch.distances.get();
    double* weights = scratch.weights.get();
    int32_t* ids = scratch.ids.get();
    const float limit = reach(scratch), largest = peak();
    int64_t count = 0;
    for (int64_t slice = 0; slice < num_slices(); ++slice) {
      count += kernels_.collect(start_of(slice), tokens_of(slice), static_cast<int32_t>(slice * kSliceTokens),
                                peaks_ + slice * kSlicePeaks, largest, limit, distances + count, ids + count);
    }
    kernels_.weigh(distances, count, sharpness_, weights);
    Ranking ranking(distances, weights, count, scratch.members.get(), scratch.buckets.get());

    const int64_t likely = std::count_if(weights, weights + count, [this](double one) { return one >= wish_.min_p; });
    const int64_t most = std::max<int64_t>(likely, 1);
    const double top_k = has_top_k() ? wish_.top_k : static_cast<double>(count);
    double wanted = std::numeric_limits<double>::infinity();
    if (wish_.top_p < 1.0) {
      wanted = has_top_k() ? ranking.shortest([=](int64_t n, double) { return n >= top_k; }).weight : weight();
      wanted *= wish_.top_p;
    }
    const Prefix kept = ranking.shortest(
        [=](int64_t n, double sum) { return n >= most || n >= top_k || sum >= wanted; });
    const double target = wish_.draw * kept.weight;
    const Prefix drawn =
        ranking.shortest([=](int64_t n, double sum) { return sum > target || n >= kept.count; });
    return ids[drawn.last];
  }

  // A distance that no token beyond it can be drawn from, whatever rounding does.
  float reach(RowScratch& scratch) const {
    float limit = rounded_up(1020.0 / sharpness_);  // farther ones have no weight
    if (wish_.min_p > 0.0 && !has_top_k()) {
      limit = std::min(limit, rounded_up((1e-12 - std::log(wish_.min_p)) * wish_.temperature));
    }
    if (has_top_k()) {
      limit = std::min(limit, reach_of_top_k(scratch));
    } else if (wish_.top_p < 1.0) {
      // All tokens farther than this weigh less than what top-p leaves out; one more for rounding.
      const double share = std::max(1.0 - wish_.top_p, DBL_EPSILON) * weight() / static_cast<double>(vocab_size_);
      limit = std::min(limit, rounded_up(std::max(1.0 - std::log(share), 0.0) * wish_.temperature));
    }
    return limit;
  }

  // Where k peaks are not farther than this, as many tokens are not.
  float reach_of_top_k(RowScratch& scratch) const {
    const int64_t num_peaks = num_slices() * kSlicePeaks;
    if (wish_.top_k > static_cast<double>(num_peaks)) return FLT_MAX;
    float* ordered = scratch.distances.get();
    std::copy_n(peaks_, num_peaks, ordered);
    float* kth = ordered + static_cast<int64_t>(wish_.top_k) - 1;
    std::nth_element(ordered, kth, ordered + num_peaks, [](float a, float b) { return a > b; });
    return *kth == peak() ? 0.0f : std::min(peak() - *kth, FLT_MAX);
  }

  const SamplingTable& kernels_;
  const float* logits_;
  int64_t vocab_size_;
  SamplingRow wish_;
  float* peaks_;        // [num_slices, kSlicePeaks]
  float* slice_peaks_;  // [num_slices]
  double* slice_weights_;
  double sharpness_;
};

// A call, its rows and the memory of those that all threads work on.
class Sampling {
 public:
  Sampling(const SamplingCall& call, int variant, int num_threads)
      : call_(call),
        kernels_(sampling_of(variant)),
        num_slices_((call.vocab_size + kSliceTokens - 1) / kSliceTokens),
        num_whole_(call.num_rows - call.num_rows % num_threads) {}

  bool reserve() {
    const int64_t slices = (call_.num_rows - num_whole_) * num_slices_;
    return peaks_.reserve(slices * (kSlicePeaks + 1)) && slice_weights_.reserve(slices);
  }

  // By every thread of a parallel region.
  void run() {
    RowScratch& scratch = row_scratch;
    if (!scratch.reserve(call_.vocab_size)) failed_ = true;
#pragma omp barrier
    if (failed_) return;
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_whole_; ++index) {
      Row row = make_row(index, scratch.peaks.get(), scratch.slice_weights.get());
      for (int64_t slice = 0; slice < num_slices_; ++slice) row.find_peaks(slice);
      for (int64_t slice = 0; slice < num_slices_ && row.needs_weights(); ++slice) row.weigh(slice);
      call_.tokens[index] = row.token(scratch);
    }
    const int64_t items = (call_.num_rows - num_whole_) * num_slices_;
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; ++item) shared_row(item / num_slices_).find_peaks(item % num_slices_);
#pragma omp for schedule(dynamic, 4)
    for (int64_t item = 0; item < items; ++item) {
      Row row = shared_row(item / num_slices_);
      if (row.needs_weights()) row.weigh(item % num_slices_);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = num_whole_; index < call_.num_rows; ++index) {
      call_.tokens[index] = shared_row(index - num_whole_).token(scratch);
    }
  }

  bool failed() const { return failed_; }

 private:
  Row make_row(int64_t index, float* peaks, double* slice_weights) const {
    float* slice_peaks = peaks + num_slices_ * kSlicePeaks;
    return {kernels_, call_.logits + index * call_.row_stride, call_.vocab_size, call_.rows[index],
            peaks,    slice_peaks,                             slice_weights};
  }

  Row shared_row(int64_t row) {
    return make_row(num_whole_ + row, peaks_.get() + row * num_slices_ * (kSlicePeaks + 1),
                    slice_weights_.get() + row * num_slices_);
  }

  const SamplingCall& call_;
  const SamplingTable& kernels_;
  int64_t num_slices_;
  int64_t num_whole_;  // rows that one thread each works on
  Scratch<float> peaks_;
  Scratch<double> slice_weights_;
  std::atomic<bool> failed_{false};
};

}  // namespace
}  // namespace octavo

OCTAVO_EXPORT int octavo_sample(int variant, int num_threads, const octavo::SamplingCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  num_threads = call->num_rows * call->vocab_size < octavo::kSerialWork ? 1 : std::max(1, num_threads);
  octavo::Sampling sampling(*call, variant, num_threads);
  if (!sampling.reserve()) return octavo::out_of_memory;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  sampling.run();
  return sampling.failed() ? octavo::out_of_memory : octavo::ok;
}
