// Products with quantised weights, one panel at a time, compiled once per instruction set (see setup.py).
//
// Layout and numerics are those of quantised_matrix.h. Knows nothing of threads or of other panels.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "quantised_matrix.h"
#include "simd.h"

namespace {

using namespace octavo;

typedef float Float16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint32_t Uint16 __attribute__((vector_size(64)));
typedef uint8_t Byte64 __attribute__((vector_size(64)));
typedef uint8_t Byte16 __attribute__((vector_size(16)));
typedef int8_t Sbyte16 __attribute__((vector_size(16)));

template <class Vector>
inline Vector load_vector(const void* p) {
  Vector x;
  memcpy(&x, p, sizeof x);
  return x;
}

inline Int16 splat(int32_t x) { return x - Int16{}; }

// x << bits in every lane.
template <int bits>
inline Int16 splat_shifted(int32_t x) {
#if defined(__AVX512F__)
  // as an intrinsic, or else compilers shift first and pay for a move between registers of different kinds
  return reinterpret_cast<Int16>(_mm512_slli_epi32(_mm512_set1_epi32(x), bits));
#else
  return splat(x) << bits;
#endif
}

inline Float16 multiply_add(Float16 a, Float16 b, Float16 c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_fmadd_ps(a, b, c));
#else
  float x[16], y[16], z[16];
  memcpy(x, &a, 64), memcpy(y, &b, 64), memcpy(z, &c, 64);
  for (int i = 0; i < 16; i += kLanes) store(z + i, fma(load(x + i), load(y + i), load(z + i)));
  return load_vector<Float16>(z);
#endif
}

// sums[r] += codes[4r .. 4r + 3] . quad, exactly.
inline Int16 dot_quad(Int16 sums, Byte64 codes, const int8_t* quad) {
#if defined(__AVX512VNNI__)
  // gcc makes two instructions of the intrinsics: a load into every lane is part of this one
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(*reinterpret_cast<const int8_t(*)[4]>(quad)));
  return sums;
#else
  const Uint16 words = reinterpret_cast<Uint16>(codes);
  for (int b = 0; b < 4; ++b) {
    sums += reinterpret_cast<Int16>((words >> (8 * b)) & 0xff) * static_cast<int32_t>(quad[b]);
  }
  return sums;
#endif
}

// Adds 16 to the codes whose bit is set.
inline Byte64 add_fifth_bits(Byte64 codes, const uint8_t* bits) {
#if defined(__AVX512BW__)
  uint64_t mask;
  memcpy(&mask, bits, 8);
  const __m512i low = reinterpret_cast<__m512i>(codes);
  return reinterpret_cast<Byte64>(_mm512_mask_or_epi32(low, 0xffff, low, _mm512_maskz_set1_epi8(mask, 16)));
#else
  for (int i = 0; i < 64; ++i) codes[i] |= (bits[i / 8] >> (i % 8) & 1) << 4;
  return codes;
#endif
}

inline Float16 halves(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float16>(_mm512_cvtph_ps(load_vector<__m256i>(p)));
#else
  float wide[16];
  for (int i = 0; i < 16; i += kLanes) store(wide + i, load(reinterpret_cast<const f16*>(p) + i));
  return load_vector<Float16>(wide);
#endif
}

// 16 bytes, signed or not. By way of integers: compilers convert bytes to floats one by one.
template <class Bytes>
inline Float16 bytes(const uint8_t* p) {
  return __builtin_convertvector(__builtin_convertvector(load_vector<Bytes>(p), Int16), Float16);
}

// The 8 quads of a group.
template <WeightKind kind>
inline void unpack_codes(const uint8_t* codes, Byte64* quads) {
  for (int j = 0; j < 4; ++j) {
    if (kind == WeightKind::q8_0) {
      quads[j] = load_vector<Byte64>(codes + 64 * j);
      quads[j + 4] = load_vector<Byte64>(codes + 64 * (j + 4));
    } else {
      const Byte64 pairs = load_vector<Byte64>(codes + 64 * j);
      quads[j] = pairs & 0x0f;
      quads[j + 4] = reinterpret_cast<Byte64>((reinterpret_cast<Uint16>(pairs) >> 4)) & 0x0f;
    }
    if (kind == WeightKind::q5_0) {
      quads[j] = add_fifth_bits(quads[j], codes + 256 + 8 * j);
      quads[j + 4] = add_fifth_bits(quads[j + 4], codes + 256 + 8 * (j + 4));
    }
    if (kind == WeightKind::q6_k) {
      const Uint16 first = load_vector<Uint16>(codes + 256), second = load_vector<Uint16>(codes + 320);
      quads[j] |= reinterpret_cast<Byte64>((first >> (2 * j)) << 4) & 0x30;
      quads[j + 4] |= reinterpret_cast<Byte64>((second >> (2 * j)) << 4) & 0x30;
    }
  }
}

// Codes are offset by 1 << kOffsetBits, or not at all where that is 0.
template <WeightKind kind>
constexpr int kOffsetBits = kind == WeightKind::q8_0 ? 7 : kind == WeightKind::q5_0 ? 4 : kind == WeightKind::q4_0 ? 3
                          : kind == WeightKind::q6_k ? 5 : 0;

// From so many input rows on, each group is unpacked once for all of them, where that is work.
template <WeightKind kind>
constexpr int64_t kRowsWorthUnpacking = kind == WeightKind::q5_0 || kind == WeightKind::q6_k ? 16 : INT64_MAX;

// The scales of a group: factors of codes, of each half of its columns for q6_k, and what q4_k subtracts.
struct GroupScales {
  Float16 factor, second_factor, minimum;
};

template <WeightKind kind>
inline GroupScales unpack_scales(const uint8_t* scales, int64_t groups, int64_t group) {
  GroupScales result{};
  const uint8_t* own = scales + group * 2 * kPanelRows;
  if (!has_outer_scales(kind)) {
    result.factor = halves(own);
  } else {
    constexpr int outer_bytes = (kind == WeightKind::q4_k ? 8 : 4) * kPanelRows;
    const uint8_t* outer = scales + groups * 2 * kPanelRows + group / kSuperGroups * outer_bytes;
    const Float16 d = load_vector<Float16>(outer);
    if (kind == WeightKind::q4_k) {
      result.factor = d * bytes<Byte16>(own);
      result.minimum = load_vector<Float16>(outer + 64) * bytes<Byte16>(own + 16);
    } else {
      result.factor = d * bytes<Sbyte16>(own);
      result.second_factor = d * bytes<Sbyte16>(own + 16);
    }
  }
  return result;
}

// A group of a panel as the inner loop takes it.
struct Group {
  Byte64 quads[8];
  GroupScales scales;
};

template <WeightKind kind>
inline Group unpack_group(const uint8_t* panel, int64_t groups, int64_t group) {
  const uint8_t* codes = panel + scale_bytes(kind, groups * kGroup) + group * code_bytes(kind);
#if defined(__GNUC__)
  for (int line = 0; line < 4; ++line) __builtin_prefetch(codes + 4096 + 64 * line);
#endif
  Group result;
  unpack_codes<kind>(codes, result.quads);
  result.scales = unpack_scales<kind>(panel, groups, group);
  return result;
}

// Adds the products of one group with `kRows` input rows from `row` on.
template <WeightKind kind, int kRows>
inline void add_group(const Group& weights, const QuantisedRows& rows, int64_t row, int64_t group, Float16* totals) {
  const int64_t groups = rows.columns / kGroup;
  for (int m = 0; m < kRows; ++m) {
    const int8_t* x = rows.codes + (row + m) * rows.columns + group * kGroup;
    const InputGroup& input = rows.groups[(row + m) * groups + group];
    if (kind == WeightKind::q6_k) {
      Int16 first = splat_shifted<kOffsetBits<kind>>(input.negated_first_sum);
      Int16 second = splat_shifted<kOffsetBits<kind>>(input.negated_sum) - first;
      for (int j = 0; j < 4; ++j) {
        first = dot_quad(first, weights.quads[j], x + 4 * j);
        second = dot_quad(second, weights.quads[j + 4], x + 16 + 4 * j);
      }
      const Float16 sum = weights.scales.factor * __builtin_convertvector(first, Float16);
      totals[m] = multiply_add(multiply_add(weights.scales.second_factor, __builtin_convertvector(second, Float16), sum),
                               input.scale - Float16{}, totals[m]);
    } else {
      Int16 even = {}, odd = {};
      if (kOffsetBits<kind>) even = splat_shifted<kOffsetBits<kind>>(input.negated_sum);
      for (int j = 0; j < 8; j += 2) {
        even = dot_quad(even, weights.quads[j], x + 4 * j);
        odd = dot_quad(odd, weights.quads[j + 1], x + 4 * (j + 1));
      }
      const Float16 sum = __builtin_convertvector(even + odd, Float16);
      totals[m] = multiply_add(weights.scales.factor * input.scale, sum, totals[m]);
      if (kind == WeightKind::q4_k) {
        totals[m] = multiply_add(weights.scales.minimum, input.correction - Float16{}, totals[m]);
      }
    }
  }
}

// Where the outputs of a panel go: `count` of each input row.
struct OutputTile {
  float* start;
  int64_t stride;
  int count;

  template <int kRows>
  void load(int64_t row, Float16* totals) const {
    for (int m = 0; m < kRows; ++m) memcpy(&totals[m], start + (row + m) * stride, sizeof(float) * count);
  }

  template <int kRows>
  void store(int64_t row, const Float16* totals) const {
    for (int m = 0; m < kRows; ++m) memcpy(start + (row + m) * stride, &totals[m], sizeof(float) * count);
  }
};

template <WeightKind kind, int kRows>
inline void multiply_rows(const uint8_t* panel, const QuantisedRows& rows, int64_t row, const OutputTile& output) {
  const int64_t groups = rows.columns / kGroup;
  Float16 totals[kRows] = {};
  for (int64_t group = 0; group < groups; ++group) {
    add_group<kind, kRows>(unpack_group<kind>(panel, groups, group), rows, row, group, totals);
  }
  output.store<kRows>(row, totals);
}

// Continues with groups [first, last), which are unpacked, from totals that `output` holds.
template <WeightKind kind, int kRows>
inline void multiply_rows(const Group* unpacked, int64_t first, int64_t last, const QuantisedRows& rows, int64_t row,
                          const OutputTile& output) {
  Float16 totals[kRows] = {};
  if (first) output.load<kRows>(row, totals);
  for (int64_t group = first; group < last; ++group) {
    add_group<kind, kRows>(unpacked[group - first], rows, row, group, totals);
  }
  output.store<kRows>(row, totals);
}

// All rows, so many that each group is unpacked once for all of them. It goes by runs of groups that stay in the first
// cache.
template <WeightKind kind>
void multiply_many(const uint8_t* panel, const QuantisedRows& rows, int64_t num_rows, const OutputTile& output) {
  constexpr int64_t kRun = 20;
  const int64_t groups = rows.columns / kGroup;
  for (int64_t first = 0; first < groups; first += kRun) {
    const int64_t last = std::min(groups, first + kRun);
    Group unpacked[kRun];
    for (int64_t group = first; group < last; ++group) unpacked[group - first] = unpack_group<kind>(panel, groups, group);
    int64_t row = 0;
    for (; row + 8 <= num_rows; row += 8) multiply_rows<kind, 8>(unpacked, first, last, rows, row, output);
    for (; row < num_rows; ++row) multiply_rows<kind, 1>(unpacked, first, last, rows, row, output);
  }
}

template <WeightKind kind>
void multiply_all(const uint8_t* panel, const QuantisedRows& rows, int64_t num_rows, const OutputTile& output) {
  if (num_rows >= kRowsWorthUnpacking<kind>) return multiply_many<kind>(panel, rows, num_rows, output);
  int64_t row = 0;
  for (; row + 8 <= num_rows; row += 8) multiply_rows<kind, 8>(panel, rows, row, output);
  for (; row + 4 <= num_rows; row += 4) multiply_rows<kind, 4>(panel, rows, row, output);
  for (; row + 2 <= num_rows; row += 2) multiply_rows<kind, 2>(panel, rows, row, output);
  for (; row < num_rows; ++row) multiply_rows<kind, 1>(panel, rows, row, output);
}

void multiply_panel(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t num_rows,
                    float* output, int64_t output_stride) {
  const uint8_t* panel = matrix.panels + index * panel_bytes(matrix.kind, rows.columns);
  const int64_t left = matrix.rows - index * kPanelRows;
  const int num_outputs = left < kPanelRows ? static_cast<int>(left) : kPanelRows;
  const OutputTile tile{output + index * kPanelRows, output_stride, num_outputs};
  switch (matrix.kind) {
    case WeightKind::q8_0: return multiply_all<WeightKind::q8_0>(panel, rows, num_rows, tile);
    case WeightKind::q5_0: return multiply_all<WeightKind::q5_0>(panel, rows, num_rows, tile);
    case WeightKind::q4_0: return multiply_all<WeightKind::q4_0>(panel, rows, num_rows, tile);
    case WeightKind::q4_k: return multiply_all<WeightKind::q4_k>(panel, rows, num_rows, tile);
    case WeightKind::q6_k: return multiply_all<WeightKind::q6_k>(panel, rows, num_rows, tile);
  }
}

template <WeightKind kind>
void unpack(const uint8_t* panel, int64_t columns, int lane, float* output) {
  constexpr int offset = kOffsetBits<kind> ? 1 << kOffsetBits<kind> : 0;
  for (int64_t group = 0; group < columns / kGroup; ++group) {
    const Group weights = unpack_group<kind>(panel, columns / kGroup, group);
    for (int k = 0; k < kGroup; ++k) {
      const bool is_second = kind == WeightKind::q6_k && k >= 16;
      const float factor = is_second ? weights.scales.second_factor[lane] : weights.scales.factor[lane];
      const float code = static_cast<float>(weights.quads[k / 4][lane * 4 + k % 4] - offset);
      output[group * kGroup + k] = factor * code - weights.scales.minimum[lane];
    }
  }
}

void unpack_row(const QuantisedMatrix& matrix, int64_t columns, int64_t row, float* output) {
  const uint8_t* panel = matrix.panels + row / kPanelRows * panel_bytes(matrix.kind, columns);
  const int lane = static_cast<int>(row % kPanelRows);
  switch (matrix.kind) {
    case WeightKind::q8_0: return unpack<WeightKind::q8_0>(panel, columns, lane, output);
    case WeightKind::q5_0: return unpack<WeightKind::q5_0>(panel, columns, lane, output);
    case WeightKind::q4_0: return unpack<WeightKind::q4_0>(panel, columns, lane, output);
    case WeightKind::q4_k: return unpack<WeightKind::q4_k>(panel, columns, lane, output);
    case WeightKind::q6_k: return unpack<WeightKind::q6_k>(panel, columns, lane, output);
  }
}

// ---- input rows

template <class Source>
void prepare(const ProductCall& call, const Source* input, float* prepared) {
  const int64_t columns = call.columns;
  if (call.prologue == Prologue::none) {
    for (int64_t i = 0; i < columns; i += kLanes) store(prepared + i, load(input + i));
  } else if (call.prologue == Prologue::rms_norm) {
    vfloat squares = {};
    for (int64_t i = 0; i < columns; i += kLanes) squares = fma(load(input + i), load(input + i), squares);
    float sum = 0.0f;
    for (int lane = 0; lane < kLanes; ++lane) sum += squares[lane];
    const vfloat factor = broadcast(1.0f / std::sqrt(sum / static_cast<float>(columns) + call.norm_eps));
    for (int64_t i = 0; i < columns; i += kLanes) {
      store(prepared + i, load(input + i) * factor * load(call.norm_weight + i));
    }
  } else {
    const bool is_silu = call.prologue == Prologue::silu;
    for (int64_t i = 0; i < columns; i += kLanes) {
      const vfloat gate = load(input + i);
      vfloat active;
      if (is_silu) {
        active = gate / (1.0f + exp(-maximum(gate, broadcast(-80.0f))));
      } else {
        const vfloat inner = 0.7978845608028654f * fma(gate * gate * gate, broadcast(0.044715f), gate);
        active = 0.5f * gate * (1.0f + tanh(inner));
      }
      store(prepared + i, active * load(input + columns + i));
    }
  }
}

int32_t sum_codes(const int8_t* codes) {  // of 16
  const Int16 wide = __builtin_convertvector(load_vector<Sbyte16>(codes), Int16);
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(wide));
#else
  int32_t sum = 0;
  for (int k = 0; k < 16; ++k) sum += wide[k];
  return sum;
#endif
}

void quantise_group(const float* x, int8_t* codes, InputGroup& group) {
  // As integers, magnitudes compare like the numbers, and NaN is the largest.
  vint most = {};
  for (int k = 0; k < kGroup; k += kLanes) {
    const vint magnitude = as_int(load(x + k)) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  const int32_t bits = max_lanes(most);
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  const bool is_finite = bits < 0x7f800000;
  const float scale = is_finite ? largest / 127.0f : NAN;  // NaN and infinity show in every output of the row
  const float inverse = is_finite && scale > 1e-35f ? 1.0f / scale : 0.0f;
  if (!is_finite) memset(codes, 0, kGroup);
  for (int k = 0; is_finite && k < kGroup; k += kLanes) store(reinterpret_cast<i8*>(codes + k), load(x + k) * inverse);
  const int32_t first_sum = sum_codes(codes), sum = first_sum + sum_codes(codes + 16);
  group = {scale, -scale * static_cast<float>(sum), -sum, -first_sum};
}

void quantise_row(const ProductCall& call, int64_t row, const QuantisedRows& rows, float* scratch) {
  if (call.input_dtype == DType::bfloat16) {
    prepare(call, static_cast<const bf16*>(call.input) + row * call.input_stride, scratch);
  } else {
    prepare(call, static_cast<const float*>(call.input) + row * call.input_stride, scratch);
  }
  const int64_t groups = call.columns / kGroup;
  for (int64_t group = 0; group < groups; ++group) {
    quantise_group(scratch + group * kGroup, rows.codes + row * call.columns + group * kGroup,
                   rows.groups[row * groups + group]);
  }
}

}  // namespace

namespace octavo {
extern const ProductTable OCTAVO_PRODUCTS = {quantise_row, multiply_panel, unpack_row};
}  // namespace octavo
