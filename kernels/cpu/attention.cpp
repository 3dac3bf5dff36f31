// C interface of the CPU kernels: checks the layout, cuts a call into work items, shares them out among threads (team.h).
//
// Work is cut by absolute position and merged in a fixed order, so that neither the cut nor the threads change a result
// (see paged_attention.h). Every function returns a Status; none throws or keeps anything but its threads' scratch.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "dispatch.h"
#include "paged_attention.h"
#include "team.h"

namespace octavo {
namespace {

constexpr int kItemsPerThread = 4;
constexpr int kSplitsPerThread = 16;  // with fewer, threads wait longer for the last piece of several units than memory gains

// One thread's scratch, kept for its next call.
class ThreadScratch {
 public:
  ~ThreadScratch() { std::free(data_); }

  float* reserve(int64_t floats) {
    if (floats > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<float*>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64));
      if (data_ != nullptr) size_ = floats;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local ThreadScratch thread_scratch;

struct Item {
  Piece piece;
  int64_t cost;
};

int64_t cost_per_key(const AttendCall& call, const Unit& unit) {
  return (unit.num_rows * call.group() + 8) * static_cast<int64_t>(call.head_dim);  // 8: reading it costs about as much
}

// Checks one sequence's layout and appends its units.
Status add_units(const AttendCall& call, int sequence, std::vector<Unit>& units) {
  const int first_token = call.query_start_loc[sequence];
  const int num_rows = call.query_start_loc[sequence + 1] - first_token;
  const int seq_len = call.seq_lens[sequence];
  if (num_rows == 0) return ok;
  if (num_rows < 0 || first_token < 0 || first_token + num_rows > call.num_tokens || seq_len < num_rows ||
      (static_cast<int64_t>(seq_len) + call.block_size - 1) / call.block_size > call.max_blocks) {
    return bad_layout;
  }
  const auto first_visible = [&call](int position) {
    return call.window > 0 ? std::max(0, position - call.window + 1) : 0;
  };
  const int32_t* table = call.block_table + sequence * call.block_table_stride;
  const int first_block = first_visible(seq_len - num_rows) / call.block_size;
  for (int block = first_block; block <= (seq_len - 1) / call.block_size; ++block) {
    if (table[block] < 0 || table[block] >= call.num_pages) return bad_block;
  }
  const int rows_per_unit = std::max(1, kUnitRows / call.group());
  for (int row = 0; row < num_rows; row += rows_per_unit) {
    const int rows = std::min(rows_per_unit, num_rows - row);
    const int position = seq_len - num_rows + row;
    for (int head = 0; head < call.num_kv_heads; ++head) {
      units.push_back(
          {sequence, head, first_token + row, rows, position, first_visible(position), position + rows, nullptr});
    }
  }
  return ok;
}

// How many units of a sequence with one row make a piece.
int units_at_once(const AttendCall& call, const std::vector<Unit>& units, int64_t most_bytes, int num_threads) {
  const int64_t unit_bytes = 2 * kTileKeys * static_cast<int64_t>(call.head_dim) * element_size(call.pages_dtype);
  const int most = static_cast<int>(std::min<int64_t>(std::max<int64_t>(most_bytes / unit_bytes, 1), kMostUnits));
  const int pieces = (call.num_kv_heads + most - 1) / most;
  int64_t splits = 0;
  for (const Unit& unit : units) splits += unit.split_end() - unit.split_begin();
  const bool has_enough = splits / call.num_kv_heads * pieces >= num_threads * kSplitsPerThread;
  return has_enough ? (call.num_kv_heads + pieces - 1) / pieces : 1;
}

// Cuts long units at split borders until every thread has a few items, longest first.
std::vector<Item> cut(const AttendCall& call, const std::vector<Unit>& units, int at_once, int num_threads) {
  int64_t total = 0;
  for (const Unit& unit : units) total += (unit.kv_end - unit.kv_begin) * cost_per_key(call, unit);
  const int64_t target = num_threads == 1 ? total : total / (num_threads * kItemsPerThread) + 1;
  std::vector<Item> items;
  for (size_t i = 0; i < units.size();) {
    const Unit& unit = units[i];
    const int num_units = unit.num_rows == 1 ? std::min(at_once, call.num_kv_heads - unit.kv_head) : 1;
    const int64_t per_key = num_units * cost_per_key(call, unit);
    const bool whole = (unit.kv_end - unit.kv_begin) * per_key <= target;
    const int step = whole ? unit.split_end() : static_cast<int>(std::max<int64_t>(1, target / (per_key * kSplitKeys)));
    for (int split = unit.split_begin(); split < unit.split_end(); split += step) {
      const Piece piece{&unit, split, std::min(split + step, unit.split_end()), num_units};
      items.push_back({piece, (piece.last_key() - piece.first_key()) * per_key});
    }
    i += num_units;
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
  return items;
}

Status attend(const AttendCall& call, const KernelTable& kernels, int num_threads) {
  std::vector<Unit> units;
  for (int sequence = 0; sequence < call.num_seqs; ++sequence) {
    const Status status = add_units(call, sequence, units);
    if (status != ok) return status;
  }
  const int dim = call.padded_dim();
  const int covered = call.num_seqs > 0 ? call.query_start_loc[call.num_seqs] : 0;
  const int64_t row_bytes =
      static_cast<int64_t>(call.num_q_heads) * call.head_dim * element_size(call.query_dtype);
  std::memset(static_cast<char*>(call.output) + covered * row_bytes, 0, (call.num_tokens - covered) * row_bytes);

  int64_t elements = 0;
  int max_pairs = 0;
  for (const Unit& unit : units) {
    elements += static_cast<int64_t>(unit.kv_end - unit.kv_begin) * cost_per_key(call, unit) / 8;
    max_pairs = std::max(max_pairs, unit.num_rows * call.group());
  }
  if (elements < kSerialWork) num_threads = 1;
  const int at_once = units_at_once(call, units, kernels.tile_bytes, num_threads);
  const std::vector<Item> items = cut(call, units, at_once, num_threads);
  const int num_items = static_cast<int>(items.size());

  const std::unique_ptr<std::atomic<int>[]> unfinished(new std::atomic<int>[units.size()]());
  const auto unfinished_of = [&](const Unit* unit) -> std::atomic<int>& { return unfinished[unit - units.data()]; };
  for (const Item& item : items) {
    for (int i = 0; i < item.piece.num_units; ++i) {
      unfinished_of(item.piece.unit + i).fetch_add(1, std::memory_order_relaxed);
    }
  }
  int64_t partial_floats_total = 0;
  const auto floats = [&](const Unit& unit) {
    const int64_t slot = partial_floats(unit.num_rows * call.group(), dim);
    return (unit.split_end() - unit.split_begin()) * slot;
  };
  for (size_t i = 0; i < units.size(); ++i) {
    if (unfinished[i].load(std::memory_order_relaxed) > 1) partial_floats_total += floats(units[i]);
  }
  const std::unique_ptr<float[]> partials(new float[partial_floats_total]);
  float* next = partials.get();
  for (size_t i = 0; i < units.size(); ++i) {
    if (unfinished[i].load(std::memory_order_relaxed) <= 1) continue;
    units[i].partials = next;
    next += floats(units[i]);
  }

  const int64_t scratch_floats = at_once * kernels.scratch_floats(max_pairs, dim);
  std::atomic<bool> exhausted{false};
  const auto run_item = [&](int i) {
    float* scratch = thread_scratch.reserve(scratch_floats);
    if (scratch == nullptr) {
      exhausted = true;
      return;
    }
    const Piece* next = i + num_threads < num_items ? &items[i + num_threads].piece : nullptr;
    kernels.run(call, items[i].piece, next, scratch);
    for (const Unit* unit = items[i].piece.unit; unit < items[i].piece.unit + items[i].piece.num_units; ++unit) {
      if (unit->partials != nullptr && unfinished_of(unit).fetch_sub(1, std::memory_order_acq_rel) == 1) {
        kernels.merge(call, *unit, scratch);
      }
    }
  };
  Team::shared().run(num_threads, num_items, run_item);
  return exhausted ? out_of_memory : ok;
}

}  // namespace

const KernelTable& kernels_of(int variant) {
  static const KernelTable* const table[] = {
      &kernels_portable,
#ifdef OCTAVO_X86
      &kernels_avx2,
      &kernels_avx512,
      nullptr,  // see vector_variant
      &kernels_avx512_bf16,
#endif
  };
  return *table[vector_variant(variant)];
}

}  // namespace octavo

// The best variant this machine can run, or whether it can run `variant`.
OCTAVO_EXPORT int octavo_best_variant() {
  for (int variant = octavo::kAmx; variant > 0; --variant) {
    if (octavo::supported(variant)) return variant;
  }
  return 0;
}
OCTAVO_EXPORT int octavo_supports_variant(int variant) { return octavo::supported(variant) ? 1 : 0; }

OCTAVO_EXPORT int octavo_attend(int variant, int num_threads, const octavo::AttendCall* call) {
  if (!octavo::supported(variant)) return octavo::bad_variant;
  try {
    return octavo::attend(*call, octavo::kernels_of(variant), std::max(1, num_threads));
  } catch (const std::bad_alloc&) {
    return octavo::out_of_memory;
  }
}

// Bytes of the struct, by which a caller made from other sources knows that it is one.
OCTAVO_EXPORT int octavo_attend_call_bytes() { return sizeof(octavo::AttendCall); }
