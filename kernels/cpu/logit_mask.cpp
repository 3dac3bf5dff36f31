// C interface of masks: logits of rows that are forbidden become -infinity, in place.
#include <algorithm>

#include "dispatch.h"
#include "sampling.h"

namespace octavo {

// Arguments of one call. Strides are in elements; what a row of logits or of words has is contiguous.
struct MaskCall {
  float* logits;
  int64_t row_stride;
  int64_t vocab_size;
  const int64_t* rows;  // [num_rows] of the logits, no two alike
  int64_t num_rows;
  const uint32_t* words;  // [num_rows, vocab_size / kWordTokens, rounded up]; a bit allows a token
};

}  // namespace octavo

OCTAVO_EXPORT int octavo_mask_logits(int variant, int num_threads, const octavo::MaskCall* call) {
  using octavo::kSliceTokens;
  using octavo::kWordTokens;
  if (!octavo::supported(variant)) return octavo::bad_variant;
  if (call->num_rows * call->vocab_size < octavo::kSerialLogits) num_threads = 1;
  const octavo::SamplingTable& kernels = octavo::sampling_of(variant);
  const int64_t num_words = (call->vocab_size + kWordTokens - 1) / kWordTokens;
  const int64_t num_slices = (call->vocab_size + kSliceTokens - 1) / kSliceTokens;
#pragma omp parallel for schedule(static) num_threads(std::max(1, num_threads)) if (num_threads > 1)
  for (int64_t item = 0; item < call->num_rows * num_slices; ++item) {
    const int64_t row = item / num_slices, first = item % num_slices * kSliceTokens;
    kernels.mask(call->logits + call->rows[row] * call->row_stride + first,
                 std::min(kSliceTokens, call->vocab_size - first), call->words + row * num_words + first / kWordTokens);
  }
  return octavo::ok;
}
