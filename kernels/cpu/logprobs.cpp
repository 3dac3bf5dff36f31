// C interface of log probabilities: those of one token per row and of the most likely ones, by one thread per row.
//
// One pass over the logits finds the peaks of all slices, a second one sums weights in float64, slice by slice (see
// sampling.h). Everything else looks only at parts of slices whose peaks may matter. Tokens are ordered by their logits,
// equals by id; NaN, and what is finite beside +infinity, is like -infinity.
#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>

#include "dispatch.h"
#include "sampling.h"
#include "scratch.h"

namespace octavo {

// Arguments of one call. The logits of a row are contiguous; `row_stride` is in elements.
struct LogprobsCall {
  const float* logits;
  int64_t row_stride;
  int64_t vocab_size;
  const int64_t* rows;       // [num_rows] of the logits
  const int64_t* token_ids;  // [num_rows]
  int64_t num_rows;
  int64_t num_top;   // at most the vocabulary
  float* values;     // [num_rows, 1 + num_top]: of the token, then of the most likely ones
  int64_t* top_ids;  // [num_rows, num_top]
  int64_t* ranks;    // [num_rows], from 1
};

namespace {

// The memory of a thread, kept for its next call.
struct LogprobScratch {
  Scratch<float> peaks, largest, distances, sorted;
  Scratch<int32_t> ids;

  bool reserve(int64_t num_slices) {
    return peaks.reserve(num_slices * kSlicePeaks) && largest.reserve(num_slices) &&
           distances.reserve(kSliceTokens + kCollectSlack) && ids.reserve(kSliceTokens + kCollectSlack) &&
           sorted.reserve(num_slices * kSlicePeaks);
  }
};

thread_local LogprobScratch logprob_scratch;

class LogprobRow {
 public:
  LogprobRow(const SamplingTable& kernels, const float* logits, int64_t vocab_size, LogprobScratch& scratch)
      : kernels_(kernels),
        logits_(logits),
        vocab_size_(vocab_size),
        num_slices_((vocab_size + kSliceTokens - 1) / kSliceTokens),
        scratch_(scratch) {
    float* largest = scratch.largest.get();
    for (int64_t slice = 0; slice < num_slices_; ++slice) {
      largest[slice] = kernels.find_peaks(start_of(slice), tokens_of(slice), peaks_of(slice));
    }
    peak_ = *std::max_element(largest, largest + num_slices_);
    floor_ = peak_ == INFINITY ? FLT_MAX : -INFINITY;
    log_total_ = std::log(total_weight());
  }

  // The log probability of a token.
  float value(int64_t token_id) const {
    const float own = logits_[token_id];
    if (peak_ > -INFINITY && !(own > floor_)) return -INFINITY;
    const double above = std::isinf(peak_) ? 0.0 : static_cast<double>(own) - peak_;
    return static_cast<float>(above - log_total_);
  }

  // How many tokens come before a token, and one.
  int64_t rank(int64_t token_id) const {
    const bool is_ordered = logits_[token_id] > floor_;
    const float own = is_ordered ? logits_[token_id] : floor_;
    int64_t ahead = 0;
    for (int64_t slice = 0; slice < num_slices_; ++slice) {
      if (!(scratch_.largest.get()[slice] >= own)) continue;
      const int64_t place = is_ordered ? token_id - slice * kSliceTokens : 0;
      ahead += kernels_.count_ahead(start_of(slice), tokens_of(slice), peaks_of(slice), own, place);
    }
    if (is_ordered) return 1 + ahead;
    return 1 + ahead + std::count_if(logits_, logits_ + token_id, [this](float one) { return !(one > floor_); });
  }

  // The first `count` tokens in order.
  void find_top(int64_t count, int64_t* top_ids) const {
    if (count == 0) return;
    const float least = least_of_top(count), limit = least == peak_ ? 0.0f : peak_ - least;
    int64_t found = 0;
    for (int64_t slice = 0; slice < num_slices_; ++slice) {
      const float largest = scratch_.largest.get()[slice];
      if (!(largest >= least) || (found == count && !(largest > logits_[top_ids[count - 1]]))) continue;
      const int64_t near =
          kernels_.collect(start_of(slice), tokens_of(slice), static_cast<int32_t>(slice * kSliceTokens),
                           peaks_of(slice), peak_, -1.0f, limit, scratch_.distances.get(), scratch_.ids.get());
      for (int64_t i = 0; i < near; ++i) found = insert(scratch_.ids.get()[i], top_ids, found, count);
    }
    for (int64_t token_id = 0; found < count; ++token_id) {
      if (!(logits_[token_id] > floor_)) top_ids[found++] = token_id;
    }
  }

 private:
  static constexpr double kSharpness = 1.4426950408889634;

  const float* start_of(int64_t slice) const { return logits_ + slice * kSliceTokens; }
  int64_t tokens_of(int64_t slice) const { return std::min(kSliceTokens, vocab_size_ - slice * kSliceTokens); }
  float* peaks_of(int64_t slice) const { return scratch_.peaks.get() + slice * kSlicePeaks; }

  // Without a logit above -infinity all are equal.
  double total_weight() const {
    if (peak_ == -INFINITY) return static_cast<double>(vocab_size_);
    double total = 0.0;
    for (int64_t slice = 0; slice < num_slices_; ++slice) {
      double weight;
      kernels_.sum_weights(start_of(slice), tokens_of(slice), peaks_of(slice), peak_, kSharpness, nullptr, &weight);
      total += weight;
    }
    return total;
  }

  // So many tokens are not smaller than this: of slices, of parts of slices, or all.
  float least_of_top(int64_t count) const {
    const bool are_slices_enough = num_slices_ >= count;
    const int64_t size = are_slices_enough ? num_slices_ : num_slices_ * kSlicePeaks;
    if (size < count) return -INFINITY;
    float* sorted = scratch_.sorted.get();
    std::copy_n(are_slices_enough ? scratch_.largest.get() : scratch_.peaks.get(), size, sorted);
    std::nth_element(sorted, sorted + count - 1, sorted + size, [](float a, float b) { return a > b; });
    return sorted[count - 1];
  }

  // Among `found` of at most `count`; ids come in order, so that equals stay behind.
  int64_t insert(int64_t token_id, int64_t* top_ids, int64_t found, int64_t count) const {
    const float own = logits_[token_id];
    if (!(own > floor_) || (found == count && !(own > logits_[top_ids[count - 1]]))) return found;
    int64_t place = std::min(found, count - 1);
    for (; place > 0 && own > logits_[top_ids[place - 1]]; --place) top_ids[place] = top_ids[place - 1];
    top_ids[place] = token_id;
    return std::min(found + 1, count);
  }

  const SamplingTable& kernels_;
  const float* logits_;
  int64_t vocab_size_;
  int64_t num_slices_;
  LogprobScratch& scratch_;
  float peak_;
  float floor_;  // what is not larger, and NaN, has no probability
  double log_total_;
};

void tell(const LogprobsCall& call, const SamplingTable& kernels, int64_t index, LogprobScratch& scratch) {
  const LogprobRow row(kernels, call.logits + call.rows[index] * call.row_stride, call.vocab_size, scratch);
  int64_t* top_ids = call.top_ids + index * call.num_top;
  float* values = call.values + index * (1 + call.num_top);
  row.find_top(call.num_top, top_ids);
  values[0] = row.value(call.token_ids[index]);
  for (int64_t i = 0; i < call.num_top; ++i) values[1 + i] = row.value(top_ids[i]);
  call.ranks[index] = row.rank(call.token_ids[index]);
}

}  // namespace
}  // namespace octavo

OCTAVO_EXPORT int octavo_logprobs(int variant, int num_threads, const octavo::LogprobsCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  if (call->num_rows * call->vocab_size < octavo::kSerialLogits) num_threads = 1;
  const octavo::SamplingTable& kernels = octavo::sampling_of(variant);
  const int64_t num_slices = (call->vocab_size + octavo::kSliceTokens - 1) / octavo::kSliceTokens;
  std::atomic<bool> failed{false};
#pragma omp parallel for schedule(dynamic, 1) num_threads(std::max(1, num_threads)) if (num_threads > 1)
  for (int64_t index = 0; index < call->num_rows; ++index) {
    octavo::LogprobScratch& scratch = octavo::logprob_scratch;
    if (scratch.reserve(num_slices)) {
      tell(*call, kernels, index, scratch);
    } else {
      failed = true;
    }
  }
  return failed ? octavo::out_of_memory : octavo::ok;
}
