// What the planner (attention.cpp) and the per-ISA kernels (tile_kernel.cpp) agree on.
//
// Numerics contract. The arithmetic of one query row and head depends on its position, its query and the visible keys
// and values only: key tiles and splits start at absolute positions, a row folds its tiles and then its splits in
// ascending order, and masked positions are exact no-ops. So the bits of a row do not depend on the batch, the
// threads, the chunking of the prefill, or whether it ran as a decode. A sink counts once, when all splits are folded.
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo {

constexpr int kTileKeys = 64;    // keys per softmax step, aligned to absolute positions
constexpr int kSplitKeys = 256;  // keys per partial result, aligned likewise; a multiple of kTileKeys
constexpr int kUnitRows = 64;    // (query row, head) pairs that share one pass over the keys
constexpr int kMostUnits = 16;   // of a piece

enum class DType : int32_t { float32 = 0, bfloat16 = 1, float16 = 2, int8 = 3, float8_e4m3 = 4 };

inline bool is_quantised(DType dtype) { return dtype == DType::int8 || dtype == DType::float8_e4m3; }
inline int64_t element_size(DType dtype) { return dtype == DType::float32 ? 4 : is_quantised(dtype) ? 1 : 2; }

// Arguments of one attend call. Strides are in elements; rows of heads are contiguous.
struct AttendCall {
  const void* query;  // [num_tokens, num_q_heads, head_dim]
  int64_t query_stride;
  DType query_dtype;
  void* output;  // like query, contiguous
  const void* key_pages;  // [num_pages, num_kv_heads, block_size, head_dim]
  const void* value_pages;
  int64_t key_page_stride;
  int64_t value_page_stride;
  DType pages_dtype;
  const float* key_scales;  // [num_pages, num_kv_heads, block_size] of quantised pages, else null
  const float* value_scales;
  int64_t key_scale_stride;  // from page to page
  int64_t value_scale_stride;
  int64_t num_pages;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* block_table;
  int64_t block_table_stride;
  int64_t max_blocks;
  int32_t num_tokens;
  int32_t num_seqs;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
  int32_t window;  // 0: none
  float scale;
  float softcap;  // 0: none
  const float* sinks;  // [num_q_heads], one more score of each head, without a value; or null

  int group() const { return num_q_heads / num_kv_heads; }
  int padded_dim() const { return (head_dim + 15) / 16 * 16; }
};

// A run of query rows of one sequence under one KV head: the largest piece of work that shares its keys.
struct Unit {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_token;     // row in query
  int32_t num_rows;        // query rows
  int32_t first_position;  // absolute position of the first row
  int32_t kv_begin;        // first position that any row sees
  int32_t kv_end;          // one past the last
  float* partials;         // one slot per split when split over work items, else null

  int split_begin() const { return kv_begin / kSplitKeys; }
  int split_end() const { return (kv_end + kSplitKeys - 1) / kSplitKeys; }
};

// Splits [split_begin, split_end) of a unit: what one thread does in a row. Or of several units, alike but for their KV
// heads, which follow each other: tile by tile, of all units each.
struct Piece {
  const Unit* unit;
  int32_t split_begin;
  int32_t split_end;
  int32_t num_units;

  int first_key() const { return std::max(split_begin * kSplitKeys, unit->kv_begin); }
  int last_key() const { return std::min(split_end * kSplitKeys, unit->kv_end); }  // one past it
};

// Floats in one partial slot of `pairs` (row, head) pairs: weighted values, then running maxima, then sums.
inline int64_t partial_floats(int pairs, int padded_dim) { return static_cast<int64_t>(pairs) * (padded_dim + 2); }

// One instruction set's build of the kernels.
struct KernelTable {
  // Floats of scratch, 64-byte aligned, that `run` and `merge` need for each unit of a piece, of up to `pairs` pairs.
  int64_t (*scratch_floats)(int pairs, int padded_dim);
  // Computes a piece: into its unit's partials, or, when that has none, into the output. Meanwhile fetches the beginning
  // of `next`, which the same thread is likely to do after it, unless null.
  void (*run)(const AttendCall& call, const Piece& piece, const Piece* next, float* scratch);
  // Folds all partials of a unit in order and writes the output.
  void (*merge)(const AttendCall& call, const Unit& unit, float* scratch);
  // Converts `count` elements between any two float dtypes, rounding to nearest even.
  void (*convert)(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count);
  // Quantises a row of floats into codes of `target_dtype`; returns its scale (see kernels/quantisation.py).
  float (*quantise)(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count);
  // As many bytes of a tile's keys and values as a piece of several units may have; 0 where pieces are of one unit.
  int64_t tile_bytes;
};

const KernelTable& kernels_of(int variant);  // one that is supported

extern const KernelTable kernels_portable;
#ifdef OCTAVO_X86
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
extern const KernelTable kernels_avx512_bf16;
#endif

}  // namespace octavo
