// C interface of products with weights of bfloat16. Contract: dense_product.h.
#include "dense_product.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "dense_kernel.h"
#include "dispatch.h"
#include "team.h"

namespace octavo {
namespace {

constexpr int64_t kSerialWeights = 1 << 16;  // multiplied faster than threads wake
constexpr int64_t kSerialRows = 4;           // prepared faster than threads wake
constexpr int kParts = 8;                    // of each thread
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Null where the variant has no such products.
const DenseTable* dense_of(int variant) {
  if (!supported(variant)) return nullptr;
  switch (vector_variant(variant)) {
#ifdef OCTAVO_X86
    case kAvx2: return &dense_avx2;
    case kAvx512: return &dense_avx512;
    case kAvx512Bf16: return &dense_avx512_bf16;
#endif
    default: return nullptr;
  }
}

// Prepared input rows: those of the call itself, where there is nothing to prepare, or in this thread's memory.
struct Prepared {
  const char* row(int64_t index) const { return rows + index * stride * size; }

  const char* rows;
  int64_t stride;  // elements
  int64_t size;    // bytes of an element
};

int64_t size_of(DType dtype) { return dtype == DType::float32 ? sizeof(float) : sizeof(uint16_t); }

void prepare_rows(const DenseCall& call, const DenseTable& kernels, int num_threads, char* target) {
  const int64_t row_bytes = call.columns * size_of(kernels.prepared);
  const int parts = num_threads <= 1 || call.num_rows <= kSerialRows
                        ? 1 : static_cast<int>(std::min<int64_t>(call.num_rows, num_threads * kParts));
  Team::shared().run(num_threads, parts, [&](int part) {
    thread_local std::vector<float> scratch;
    if (static_cast<int64_t>(scratch.size()) < call.columns) scratch.resize(call.columns);
    for (int64_t row = call.num_rows * part / parts; row < call.num_rows * (part + 1) / parts; ++row) {
      kernels.prepare(call, row, target + row * row_bytes, scratch.data());
    }
  });
}

Prepared prepared(const DenseCall& call, const DenseTable& kernels, int num_threads) {
  const int64_t size = size_of(kernels.prepared);
  if (call.prologue == Prologue::none && call.input_dtype == kernels.prepared) {
    return {static_cast<const char*>(call.input), call.input_stride, size};
  }
  thread_local std::vector<float> memory;
  const size_t count = (call.num_rows * call.columns * size + sizeof(float) - 1) / sizeof(float);
  if (memory.size() < count) memory.resize(count);
  char* const rows = reinterpret_cast<char*>(memory.data());
  prepare_rows(call, kernels, num_threads, rows);
  return {rows, call.columns, size};
}

// Calls work(first, last) for part `part` of `parts` runs of whole panels of weight rows.
template <class Work>
void run_part(const DenseCall& call, int part, int parts, const Work& work) {
  const int64_t panels = (call.rows + kSieveRows - 1) / kSieveRows;
  work(panels * part / parts * kSieveRows, std::min(call.rows, panels * (part + 1) / parts * kSieveRows));
}

// The part of a call that multiplies input rows [begin, end).
DenseCall rows_of(const DenseCall& call, int64_t begin, int64_t end) {
  DenseCall some = call;
  some.num_rows = end - begin;
  some.output = static_cast<char*>(call.output) + begin * call.rows * size_of(call.output_dtype);
  return some;
}

int threads_for(const DenseCall& call, int num_threads) {
  return call.rows * call.columns * call.num_rows < kSerialWeights ? 1 : num_threads;
}

void product(const DenseCall& call, const DenseTable& kernels, int num_threads) {
  num_threads = threads_for(call, num_threads);
  const Prepared input = prepared(call, kernels, num_threads);
  const int runs = num_threads == 1 ? 1 : num_threads * kParts;
  const int blocks = static_cast<int>((call.num_rows + kMostInputs - 1) / kMostInputs);
  Team::shared().run(num_threads, blocks * runs, [&](int part) {
    const int64_t block = part / runs;
    const int64_t begin = call.num_rows * block / blocks, end = call.num_rows * (block + 1) / blocks;
    const DenseCall some = rows_of(call, begin, end);
    run_part(call, part % runs, runs, [&](int64_t first, int64_t last) {
      kernels.multiply(some, input.row(begin), input.stride, first, last);
    });
  });
}

struct Best {
  float value = kLowest;
  int64_t row = 0;
};

// Of one input row. Parts see rows in ascending order, so that the first of equal outputs wins in each.
int64_t argmax(const DenseCall& call, const DenseTable& kernels, int num_threads, const void* row) {
  std::vector<SieveGroup> groups(call.columns / kStep);
  kernels.make_sieve_groups(row, call.columns, groups.data());
  const int parts = num_threads == 1 ? 1 : num_threads * kParts;
  std::vector<Best> bests(parts);
  std::atomic<float> largest{kLowest};  // seen by any thread
  Team::shared().run(num_threads, parts, [&](int part) {
    Best best;
    run_part(call, part, parts, [&](int64_t first, int64_t last) {
      for (int64_t panel = first; panel < last; panel += kSieveRows) {
        const int64_t index = panel / kSieveRows;
        uint32_t left = kernels.may_reach(call, index, groups.data(), largest.load(std::memory_order_relaxed));
        float outputs[kSieveRows];
        kernels.multiply_listed(call, row, index, left, outputs);
        for (; left != 0; left &= left - 1) {
          const int64_t at = panel + __builtin_ctz(left);
          const float value = outputs[at - panel];
          if (!(value > best.value)) continue;
          best = {value, at};
          float seen = largest.load(std::memory_order_relaxed);
          while (value > seen && !largest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
          }
        }
      }
    });
    bests[part] = best;
  });
  Best best = bests[0];
  for (const Best& one : bests) best = one.value > best.value ? one : best;
  return best.row;
}

bool is_sound(const DenseCall& call) {
  return call.columns >= kStep && call.columns % kStep == 0 && call.rows >= 1 && call.num_rows >= 0;
}

}  // namespace
}  // namespace octavo

OCTAVO_EXPORT int octavo_dense_call_bytes() { return sizeof(octavo::DenseCall); }

OCTAVO_EXPORT int octavo_dense_product(int variant, int num_threads, const octavo::DenseCall* call) {
  const octavo::DenseTable* kernels = octavo::dense_of(variant);
  if (kernels == nullptr) return octavo::bad_variant;
  if (!octavo::is_sound(*call)) return octavo::bad_layout;
  try {
    octavo::product(*call, *kernels, std::max(1, num_threads));
  } catch (const std::bad_alloc&) {
    return octavo::out_of_memory;
  }
  return octavo::ok;
}

// Only prepares the input rows: `output` is [num_rows, columns] of what the kernels multiply.
OCTAVO_EXPORT int octavo_dense_prepare(int variant, int num_threads, const octavo::DenseCall* call) {
  const octavo::DenseTable* kernels = octavo::dense_of(variant);
  if (kernels == nullptr) return octavo::bad_variant;
  if (!octavo::is_sound(*call)) return octavo::bad_layout;
  octavo::prepare_rows(*call, *kernels, std::max(1, num_threads), static_cast<char*>(call->output));
  return octavo::ok;
}

// The place of the largest output of each input row, the first of equal ones; needs a sieve, and takes no bias.
OCTAVO_EXPORT int octavo_dense_argmax(int variant, int num_threads, const octavo::DenseCall* call, int64_t* places) {
  const octavo::DenseTable* kernels = octavo::dense_of(variant);
  if (kernels == nullptr) return octavo::bad_variant;
  if (!octavo::is_sound(*call) || call->sieve == nullptr || call->bias != nullptr) return octavo::bad_layout;
  try {
    const octavo::Prepared input = octavo::prepared(*call, *kernels, 1);
    for (int64_t row = 0; row < call->num_rows; ++row) {
      places[row] = octavo::argmax(*call, *kernels, std::max(1, num_threads), input.row(row));
    }
  } catch (const std::bad_alloc&) {
    return octavo::out_of_memory;
  }
  return octavo::ok;
}

OCTAVO_EXPORT int64_t octavo_sieve_bytes(int64_t rows, int64_t columns) { return octavo::sieve_bytes(rows, columns); }

OCTAVO_EXPORT int octavo_pack_sieve(int variant, int num_threads, const octavo::DenseCall* call, uint8_t* sieve) {
  const octavo::DenseTable* kernels = octavo::dense_of(variant);
  if (kernels == nullptr) return octavo::bad_variant;
  if (!octavo::is_sound(*call)) return octavo::bad_layout;
  const int64_t panels = (call->rows + octavo::kSieveRows - 1) / octavo::kSieveRows;
  constexpr int64_t kRun = 64;  // panels
  octavo::Team::shared().run(std::max(1, num_threads), static_cast<int>((panels + kRun - 1) / kRun), [&](int run) {
    for (int64_t panel = run * kRun; panel < std::min(panels, (run + 1) * kRun); ++panel) {
      kernels->pack_sieve(static_cast<const uint16_t*>(call->weight), call->rows, call->columns, panel, sieve);
    }
  });
  return octavo::ok;
}
