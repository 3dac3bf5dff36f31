// C interface of sampling: a token per row of logits, each row by its own parameters.
//
// Rows are shared out among threads; those that do not share out evenly are worked on slice by slice, by all threads.
// What is computed of a row and in which order of additions is the same either way (sampling.h).
#include <algorithm>
#include <atomic>

#include "dispatch.h"
#include "sampled_row.h"
#include "sampling.h"

namespace octavo {

// Arguments of one call. The logits of a row are contiguous; `row_stride` is in elements.
struct SamplingCall {
  const float* logits;  // [num_rows, vocab_size]
  int64_t row_stride;
  int64_t num_rows;
  int64_t vocab_size;
  const SamplingRow* rows;
  int64_t* tokens;  // [num_rows]
};

const SamplingTable& sampling_of(int variant) {
  static const SamplingTable* const table[] = {
      &sampling_portable,
#ifdef OCTAVO_X86
      &sampling_avx2,
      &sampling_avx512,
      nullptr,  // see vector_variant
      &sampling_avx512_bf16,
#endif
  };
  return *table[vector_variant(variant)];
}

namespace {

thread_local RowScratch row_scratch;

// The memory of the slices of some rows.
class SliceMemory {
 public:
  bool reserve(int64_t num_rows, int64_t num_slices) {
    num_slices_ = num_slices;
    const int64_t slices = num_rows * num_slices;
    return peaks_.reserve(slices * kSlicePeaks) && largest_.reserve(slices) &&
           weights_.reserve(slices * (1 + kLimits)) && plans_.reserve(num_rows);
  }

  Slices of(int64_t row) const {
    const int64_t first = row * num_slices_;
    return {peaks_.get() + first * kSlicePeaks, largest_.get() + first, weights_.get() + first * (1 + kLimits),
            plans_.get() + row};
  }

 private:
  int64_t num_slices_ = 0;
  Scratch<float> peaks_, largest_;
  Scratch<double> weights_;
  Scratch<Plan> plans_;
};

thread_local SliceMemory own_slices;

// A call, its rows and the memory of those that all threads work on.
class Sampling {
 public:
  Sampling(const SamplingCall& call, int variant, int num_threads)
      : call_(call),
        kernels_(sampling_of(variant)),
        num_slices_((call.vocab_size + kSliceTokens - 1) / kSliceTokens),
        num_whole_(call.num_rows - call.num_rows % num_threads) {}

  bool reserve() { return shared_slices_.reserve(call_.num_rows - num_whole_, num_slices_); }

  // By every thread of a parallel region.
  void run() {
    RowScratch& scratch = row_scratch;
    if (!scratch.reserve(call_.vocab_size) || !own_slices.reserve(1, num_slices_)) failed_ = true;
#pragma omp barrier
    if (failed_) return;
    const Slices slices = own_slices.of(0);
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_whole_; ++index) {
      Row row = row_of(index, slices);
      for (int64_t slice = 0; slice < num_slices_; ++slice) row.find_peaks(slice);
      if (row.needs_estimates()) {
        for (int64_t slice = num_slices_ - 1; slice >= 0; --slice) row.estimate(slice);  // what was read last is near
      }
      row.make_plan(scratch);
      if (row.needs_weights()) {
        for (int64_t slice = num_slices_ - 1; slice >= 0; --slice) row.weigh(slice);
      }
      call_.tokens[index] = row.token(scratch);
    }
    const int64_t num_shared = call_.num_rows - num_whole_, items = num_shared * num_slices_;
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; ++item) shared_row(item / num_slices_).find_peaks(item % num_slices_);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; ++item) {
      Row row = shared_row(item / num_slices_);
      if (row.needs_estimates()) row.estimate(item % num_slices_);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t row = 0; row < num_shared; ++row) shared_row(row).make_plan(scratch);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; ++item) {
      Row row = shared_row(item / num_slices_);
      if (row.needs_weights()) row.weigh(item % num_slices_);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t row = 0; row < num_shared; ++row) call_.tokens[num_whole_ + row] = shared_row(row).token(scratch);
  }

  bool failed() const { return failed_; }

 private:
  Row row_of(int64_t index, Slices slices) const {
    return {kernels_, call_.logits + index * call_.row_stride, call_.vocab_size, call_.rows[index], slices};
  }

  Row shared_row(int64_t row) const { return row_of(num_whole_ + row, shared_slices_.of(row)); }

  const SamplingCall& call_;
  const SamplingTable& kernels_;
  int64_t num_slices_;
  int64_t num_whole_;  // rows that one thread each works on
  SliceMemory shared_slices_;
  std::atomic<bool> failed_{false};
};

}  // namespace
}  // namespace octavo

OCTAVO_EXPORT int octavo_sample(int variant, int num_threads, const octavo::SamplingCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  num_threads = call->num_rows * call->vocab_size < octavo::kSerialLogits ? 1 : std::max(1, num_threads);
  octavo::Sampling sampling(*call, variant, num_threads);
  if (!sampling.reserve()) return octavo::out_of_memory;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  sampling.run();
  return sampling.failed() ? octavo::out_of_memory : octavo::ok;
}
