// C interface of what happens to rows between products: norms and rotations of heads, keys and values into pages.
#include <algorithm>
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "paged_attention.h"
#include "rows.h"
#include "team.h"

namespace octavo {
namespace {

const RowTable& rows_of(int variant) {
  static const RowTable* const table[] = {
      &rows_portable,
#ifdef OCTAVO_X86
      &rows_avx2,
      &rows_avx512,
      nullptr,  // see vector_variant
      &rows_avx512_bf16,
#endif
  };
  return *table[vector_variant(variant)];
}

}  // namespace

// Arguments of one store_kv call. Strides are in elements; rows of heads are contiguous. With a query, the heads of
// query, in place, and of key are prepared first: normed, unless the weights are null, and turned.
struct StoreCall {
  const void* key;  // [num_tokens, num_kv_heads, head_dim]
  const void* value;
  int64_t key_stride;
  int64_t value_stride;
  DType dtype;
  void* key_pages;
  void* value_pages;
  int64_t key_page_stride;
  int64_t value_page_stride;
  DType pages_dtype;
  float* key_scales;  // null unless the pages are quantised
  float* value_scales;
  int64_t key_scale_stride;  // from page to page
  int64_t value_scale_stride;
  const int64_t* slot_mapping;
  int64_t num_pages;
  int64_t num_tokens;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
  int32_t num_q_heads;
  void* query;  // [num_tokens, num_q_heads, head_dim], or null
  int64_t query_stride;
  const float* query_norm;  // [head_dim]
  const float* key_norm;
  float eps;
  const float* cosines;  // [num_tokens, pairs]
  const float* sines;
  int64_t pairs;  // of elements that turn, at most head_dim / 2
};

namespace {

// The work of one token of one call.
class TokenStore {
 public:
  TokenStore(const StoreCall& call, int variant)
      : call_(call), kernels_(kernels_of(variant)), rows_(rows_of(variant)), scratch_(call.head_dim) {}

  void run(int64_t token) {
    const bool prepares = call_.query != nullptr;
    if (prepares) prepare_query(token);
    const int64_t slot = call_.slot_mapping[token];
    if (slot < 0) return;
    store(call_.key, call_.key_stride, call_.key_pages, call_.key_page_stride, call_.key_scales,
          call_.key_scale_stride, token, slot, prepares);
    store(call_.value, call_.value_stride, call_.value_pages, call_.value_page_stride, call_.value_scales,
          call_.value_scale_stride, token, slot, false);
  }

 private:
  const float* angles(const float* table, int64_t token) const {
    return table == nullptr ? nullptr : table + token * call_.pairs;
  }

  void prepare_query(int64_t token) {
    const int64_t size = element_size(call_.dtype);
    char* head = static_cast<char*>(call_.query) + token * call_.query_stride * size;
    for (int i = 0; i < call_.num_q_heads; ++i, head += call_.head_dim * size) {
      rows_.prepare_head(head, call_.dtype, scratch_.data(), call_.head_dim, call_.query_norm, call_.eps,
                         angles(call_.cosines, token), angles(call_.sines, token), call_.pairs);
      kernels_.convert(scratch_.data(), DType::float32, head, call_.dtype, call_.head_dim);
    }
  }

  void store(const void* source, int64_t source_stride, void* pages, int64_t page_stride, float* scales,
             int64_t scale_stride, int64_t token, int64_t slot, bool prepares) {
    const int64_t source_size = element_size(call_.dtype), target_size = element_size(call_.pages_dtype);
    const int64_t head_dim = call_.head_dim, page = slot / call_.block_size, offset = slot % call_.block_size;
    const char* head = static_cast<const char*>(source) + token * source_stride * source_size;
    char* to = static_cast<char*>(pages) + (page * page_stride + offset * head_dim) * target_size;
    for (int i = 0; i < call_.num_kv_heads; ++i) {
      const void* from = head;
      DType dtype = call_.dtype;
      if (prepares) {
        rows_.prepare_head(head, dtype, scratch_.data(), head_dim, call_.key_norm, call_.eps,
                           angles(call_.cosines, token), angles(call_.sines, token), call_.pairs);
        from = scratch_.data(), dtype = DType::float32;
      }
      if (scales != nullptr) {
        scales[page * scale_stride + i * call_.block_size + offset] =
            kernels_.quantise(from, dtype, to, call_.pages_dtype, head_dim);
      } else if (dtype == call_.pages_dtype) {
        std::memcpy(to, from, head_dim * target_size);
      } else {
        kernels_.convert(from, dtype, to, call_.pages_dtype, head_dim);
      }
      head += head_dim * source_size;
      to += call_.block_size * head_dim * target_size;
    }
  }

  const StoreCall& call_;
  const KernelTable& kernels_;
  const RowTable& rows_;
  std::vector<float> scratch_;  // a head
};

// Calls work(first, last) for runs of rows that make up all of them.
template <class Work>
void run_rows(int num_threads, int64_t num_rows, const Work& work) {
  const int parts = static_cast<int>(num_threads <= 1 ? 1 : std::min<int64_t>(num_rows, num_threads * 4));
  Team::shared().run(num_threads, parts,
                     [&](int part) { work(num_rows * part / parts, num_rows * (part + 1) / parts); });
}

}  // namespace
}  // namespace octavo

using octavo::DType;

OCTAVO_EXPORT int octavo_store_call_bytes() { return sizeof(octavo::StoreCall); }

OCTAVO_EXPORT int octavo_store_kv(int variant, int num_threads, const octavo::StoreCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  const int64_t num_slots = call->num_pages * call->block_size;
  for (int64_t token = 0; token < call->num_tokens; ++token) {
    if (call->slot_mapping[token] >= num_slots || call->slot_mapping[token] < -1) return octavo::bad_slot;
  }
  const int64_t heads = call->num_kv_heads + (call->query == nullptr ? 0 : call->num_q_heads);
  if (call->num_tokens * heads * call->head_dim < octavo::kSerialWork) num_threads = 1;
  octavo::run_rows(num_threads, call->num_tokens, [&](int64_t first, int64_t last) {
    octavo::TokenStore store(*call, variant);
    for (int64_t token = first; token < last; ++token) store.run(token);
  });
  return octavo::ok;
}

// sum[row] += norm(branch[row]) * weight, or just branch[row] where weight is null
OCTAVO_EXPORT int octavo_add_normed(int variant, int num_threads, const octavo::AddCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  const octavo::RowTable& rows = octavo::rows_of(variant);
  const int64_t row_bytes = call->columns * octavo::element_size(call->dtype);
  char* sum = static_cast<char*>(call->sum);
  const char* branch = static_cast<const char*>(call->branch);
  if (call->num_rows * call->columns < octavo::kSerialWork) num_threads = 1;
  octavo::run_rows(num_threads, call->num_rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      rows.add_normed(sum + row * row_bytes, branch + row * row_bytes, call->dtype, call->columns, call->weight,
                      call->eps);
    }
  });
  return octavo::ok;
}
