// Products with weights of bfloat16, compiled once per instruction set that has vectors for them. Contract:
// dense_product.h.
#include "dense_kernel.h"

#if defined(__AVX2__)

#include <cmath>

#include "input_row.h"
#if defined(__AVX512BF16__)
#include "dense_pairs.h"
#else
#include "dense_floats.h"
#endif

namespace octavo {
namespace {

constexpr int kStepVectors = kStep / kLanes;

void prepare_row(const DenseCall& call, int64_t row, void* target, float* scratch) {
  ProductCall way{};
  way.prologue = call.prologue, way.columns = call.columns;
  way.norm_weight = call.norm_weight, way.norm_eps = call.norm_eps;
  if (call.input_dtype == DType::bfloat16) {
    prepare(way, static_cast<const bf16*>(call.input) + row * call.input_stride, scratch);
  } else {
    prepare(way, static_cast<const float*>(call.input) + row * call.input_stride, scratch);
  }
  store_inputs(scratch, call.columns, static_cast<Input*>(target));
}

inline vfloat magnitude(vfloat x) { return as_float(as_int(x) & 0x7fffffff); }

void make_sieve_groups(const void* prepared, int64_t columns, SieveGroup* groups) {
  constexpr float kRounding = 0.01f;    // of the sums of both passes, of up to some ten thousand columns
  constexpr float kMostSlack = 1e30f;  // where nothing that is computed from halves overflows
  for (int64_t g = 0; g < columns / kStep; ++g) {
    const Input* x = static_cast<const Input*>(prepared) + g * kStep;
    vfloat most = {};
    for (int v = 0; v < kStepVectors; ++v) most = maximum(most, magnitude(load(x + v * kLanes)));
    const float scale = max_lanes(most) / 127.0f, inverse = scale > 1e-35f ? 1.0f / scale : 0.0f;
    SieveGroup& group = groups[g];
    vfloat sum = {}, size = {}, off = {};
    for (int v = 0; v < kStepVectors; ++v) {
      const vfloat values = load(x + v * kLanes), codes = round_to_integer(values * inverse);
      store(reinterpret_cast<i8*>(group.codes + v * kLanes), codes);
      sum += codes, size += magnitude(values), off += magnitude(values - codes * scale);
    }
    group.scale = scale;
    group.negated_sum = static_cast<int32_t>(-8.0f * sum_lanes(sum));
    const float slack = (0.5f + kRounding) * sum_lanes(size) + 8.0f * sum_lanes(off);
    group.slack = slack < kMostSlack ? slack : NAN;  // NaN is not below anything, so that every weight is read
  }
}

void pack_sieve(const uint16_t* weight, int64_t rows, int64_t columns, int64_t panel, uint8_t* sieve) {
  const int64_t num_groups = columns / kStep;
  for (int64_t g = 0; g < num_groups; ++g) {
    uint8_t* at = sieve + (panel * num_groups + g) * kSieveGroupBytes;
    memset(at, 0, kSieveGroupBytes);
    for (int r = 0; r < kSieveRows && panel * kSieveRows + r < rows; ++r) {
      const bf16* w = reinterpret_cast<const bf16*>(weight + (panel * kSieveRows + r) * columns + g * kStep);
      vfloat values[kStepVectors];
      vint most = {};
      for (int v = 0; v < kStepVectors; ++v) {
        values[v] = load(w + v * kLanes);
        most = larger_magnitude(most, values[v]);
      }
      const int32_t bits = max_lanes(most);
      float largest;
      memcpy(&largest, &bits, sizeof largest);
      const __m128 wished = _mm_set_ss(largest / 7.5f);
      const uint16_t half = static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(wished, _MM_FROUND_TO_POS_INF), 0));
      memcpy(at + 2 * r, &half, 2);
      const float scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
      const bool has_codes = scale > 0 && scale < INFINITY;  // else they are 0, of weights of any size
      const float inverse = 1.0f / scale;
      for (int k = 0; k < kStep; ++k) {
        const float code = has_codes ? std::nearbyint(values[k / kLanes][k % kLanes] * inverse) + 8.0f : 8.0f;
        const uint8_t clamped = static_cast<uint8_t>(code > 15.0f ? 15.0f : code > 0.0f ? code : 0.0f);
        // quad j in the lower, quad j + 4 in the upper halves
        at[2 * kSieveRows + k / 4 % 4 * 64 + r * 4 + k % 4] |= k < kStep / 2 ? clamped : clamped << 4;
      }
    }
  }
}

constexpr DType kPrepared = sizeof(Input) == sizeof(float) ? DType::float32 : DType::bfloat16;

}  // namespace

extern const DenseTable OCTAVO_DENSE = {kPrepared,         prepare_row, multiply,  multiply_listed,
                                        make_sieve_groups, may_reach,   pack_sieve};

}  // namespace octavo

#endif
