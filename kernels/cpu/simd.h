// The few vector operations the kernels need, for the instruction set this file is compiled for.
//
// Everything has internal linkage: an inline function with external linkage, compiled here for AVX-512, could be the
// copy that the linker keeps for the portable build too.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct i8 {
  int8_t code;
};
struct f8 {  // e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities
  uint8_t bits;
};

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRowBlock = 4;  // query rows per register block: kRowBlock x 4 accumulators
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kRowBlock = 4;  // of which tile_blocks.h says how
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRowBlock = 4;
#else
constexpr int kLanes = 4;
constexpr int kRowBlock = 2;
#endif

typedef float vfloat __attribute__((vector_size(kLanes * 4)));
typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vuint __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vhalf __attribute__((vector_size(kLanes * 2)));
typedef int8_t vbyte __attribute__((vector_size(kLanes)));
typedef float vfloat4 __attribute__((vector_size(16)));
typedef float vfloat_half __attribute__((vector_size(kLanes * 2)));  // as many as there are lanes of vdouble
typedef double vdouble __attribute__((vector_size(kLanes * 4)));
typedef int64_t vlong __attribute__((vector_size(kLanes * 4)));

inline vfloat broadcast(float x) { return x - vfloat{}; }
inline vint as_int(vfloat x) { return reinterpret_cast<vint>(x); }
inline vfloat as_float(vint x) { return reinterpret_cast<vfloat>(x); }

inline vfloat maximum(vfloat a, vfloat b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return _mm256_max_ps(a, b);  // b also where they do not compare
#else
  return a > b ? a : b;
#endif
}

// The larger of `most` and x's magnitude, by lanes: as integers, magnitudes compare like the numbers, and NaN is the largest.
inline vint larger_magnitude(vint most, vfloat x) {
  const vint magnitude = as_int(x) & 0x7fffffff;
  return magnitude > most ? magnitude : most;
}

// a * b + c. Fused where the instruction set has it; the compiler itself contracts nothing (-ffp-contract=off), so that
// every instance of a template rounds alike.
inline vfloat fma(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
  return reinterpret_cast<vfloat>(_mm512_fmadd_ps(a, b, c));
#elif defined(__AVX2__)
  return reinterpret_cast<vfloat>(_mm256_fmadd_ps(a, b, c));
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline vdouble fma(vdouble a, vdouble b, vdouble c) {
#if defined(__AVX512F__)
  return reinterpret_cast<vdouble>(_mm512_fmadd_pd(a, b, c));
#elif defined(__AVX2__)
  return reinterpret_cast<vdouble>(_mm256_fmadd_pd(a, b, c));
#elif defined(__aarch64__)
  return reinterpret_cast<vdouble>(vfmaq_f64(c, a, b));
#else
  return a * b + c;
#endif
}

inline vfloat load(const float* p) {
  vfloat x;
  memcpy(&x, p, sizeof x);
  return x;
}

inline vuint load_widened(const uint16_t* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // one instruction, of which gcc 12 makes four
  return reinterpret_cast<vuint>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  vhalf x;
  memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vuint);
#endif
}

inline vfloat load(const bf16* p) { return reinterpret_cast<vfloat>(load_widened(&p->bits) << 16); }

inline vfloat load(const f16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  const vuint h = load_widened(&p->bits);
  const vuint magnitude = (h & 0x7fff) << 13;
  // Reading the half's fields as a float's leaves the exponent 112 short; the product also renormalises subnormals.
  const vuint finite = reinterpret_cast<vuint>(reinterpret_cast<vfloat>(magnitude) * 0x1p112f);
  const vuint special = reinterpret_cast<vuint>((h & 0x7c00) == 0x7c00) & 0x7f800000;
  return reinterpret_cast<vfloat>(finite | special | ((h & 0x8000) << 16));
#endif
}

inline vint load_widened(const void* p) {
  vbyte x;
  memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vint);
}

// What a quantised element reads as, times this, is its code: a power of two, so that no rounding depends on it.
template <class Element>
constexpr float kCodeUnit = 1.0f;
#if defined(__AVX2__) && !defined(__AVX512F__)
// Read as the fields of a float, whose exponent is biased by 127, an e4m3 is 120 powers of two too small. Multiplying
// each by them takes as long as what it is read for, and neither scales nor queries have room for all of them: each take
// half. So scales and elements of queries have to be below 2^67.
constexpr float kQueryUnit = 0x1p60f;
template <>
constexpr float kCodeUnit<f8> = 0x1p120f / kQueryUnit;
#else
template <>
constexpr float kCodeUnit<f8> = 256.0f;
#endif

inline vfloat load(const i8* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(load_widened(p), vfloat);
#endif
}

// Codes / 256: read as the fields of a half, whose exponent is biased by 15, an e4m3 is 8 powers of two too small. No
// NaN, since quantising makes none. AVX2 reads them by load_part (float_row.h).
#if !defined(__AVX2__) || defined(__AVX512F__)
inline vfloat load(const f8* p) {
#if defined(__AVX512F__)
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff))));
#else
  const vint wide = load_widened(p);
  const vfloat magnitude = as_float((wide & 0x7f) << 20) * 0x1p112f;
  return as_float(as_int(magnitude) | (wide & INT32_MIN));
#endif
}
#endif

inline void store(float* p, vfloat x) { memcpy(p, &x, sizeof x); }

// Nearest integer, ties to even, of magnitudes below 2^22.
inline vfloat round_to_integer(vfloat x) { return x + 0x1.8p23f - 0x1.8p23f; }

// Codes of -127 .. 127.
inline void store(i8* p, vfloat x) {
  const vbyte codes = __builtin_convertvector(__builtin_convertvector(round_to_integer(x), vint), vbyte);
  memcpy(p, &codes, sizeof codes);
}

// Codes of -448 .. 448, rounded to nearest even.
inline void store(f8* p, vfloat x) {
  const vint sign = (as_int(x) >> 24) & 0x80;
  const vint magnitude = as_int(x) & 0x7fffffff;
  const vint normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
  // Below 2^-6 codes are multiples of 2^-9, which is the last place of numbers from 2^14 on.
  const vint subnormal = as_int(as_float(magnitude) + 0x1p14f) - as_int(broadcast(0x1p14f));
  const vint code = sign | (as_float(magnitude) < 0x1p-6f ? subnormal : normal);
  const vbyte bytes = __builtin_convertvector(code, vbyte);
  memcpy(p, &bytes, sizeof bytes);
}

inline void store(bf16* p, vfloat x) {
  const vuint bits = reinterpret_cast<vuint>(x);
  const vuint rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const vuint is_nan = reinterpret_cast<vuint>(x != x);
  const vhalf half = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), vhalf);
  memcpy(p, &half, sizeof half);
}

#if !defined(__AVX2__)
inline uint16_t half_from_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (bits < 0x38800000) {  // subnormal half: adding 0.5 rounds at the right bit
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    memcpy(&bits, &magnitude, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  bits += 0xc8000fff + (bits >> 13 & 1);  // exponent bias 127 -> 15, and half a unit in the last place
  return static_cast<uint16_t>(sign | bits >> 13);
}
#endif

inline void store(f16* p, vfloat x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = half_from_float(x[i]);
#endif
}

// Lane sums of four vectors, always added in the same order.
inline vfloat4 sum_lanes(vfloat a, vfloat b, vfloat c, vfloat d) {
#if defined(__AVX512F__)
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
#else
  const vfloat ab = vfloat{a[0], b[0], a[1], b[1]} + vfloat{a[2], b[2], a[3], b[3]};
  const vfloat cd = vfloat{c[0], d[0], c[1], d[1]} + vfloat{c[2], d[2], c[3], d[3]};
  return vfloat4{ab[0], ab[1], cd[0], cd[1]} + vfloat4{ab[2], ab[3], cd[2], cd[3]};
#endif
}

inline float sum_lanes(vfloat x) { return sum_lanes(x, x, x, x)[0]; }

// Bit i is set where lane i of a comparison holds.
inline uint32_t mask_of(vint comparison) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(comparison));
#elif defined(__AVX2__)
  return _mm256_movemask_ps(reinterpret_cast<__m256>(comparison));
#else
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= (comparison[i] & 1u) << i;
  return mask;
#endif
}

template <class Vector>
inline auto max_lanes(Vector x) {
  auto best = x[0];
  for (int i = 1; i < kLanes; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

#if defined(__AVX512F__)
inline float max_lanes(vfloat x) { return _mm512_reduce_max_ps(x); }
inline int32_t max_lanes(vint x) { return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(x)); }
#elif defined(__AVX2__)
inline int32_t max_lanes(vint x) {
  const __m256i all = reinterpret_cast<__m256i>(x);
  __m128i best = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  best = _mm_max_epi32(best, _mm_shuffle_epi32(best, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(best, _mm_shuffle_epi32(best, 0xb1)));
}
#endif

// e^x to about 1e-7 relative for x <= 88; exactly 1 at 0 and exactly 0 below -87 (also at -infinity).
inline vfloat exp(vfloat x) {
  const vfloat magic = broadcast(0x1.8p23f);  // adding it rounds to an integer in the low mantissa bits
  const vfloat shifted = fma(x, broadcast(0x1.715476p+0f), magic);
  const vfloat n = shifted - magic;
  vfloat r = fma(n, broadcast(-0x1.62e4p-1f), x);
  r = fma(n, broadcast(-1.4286068203e-6f), r);  // the rest of ln 2
  vfloat y = broadcast(1.9841270e-4f);
  y = fma(y, r, broadcast(1.3888889e-3f));
  y = fma(y, r, broadcast(8.3333333e-3f));
  y = fma(y, r, broadcast(4.1666667e-2f));
  y = fma(y, r, broadcast(1.6666667e-1f));
  y = fma(y, r, broadcast(0.5f));
  y = fma(y, r, broadcast(1.0f));
  y = fma(y, r, broadcast(1.0f));
  const vuint power = reinterpret_cast<vuint>(shifted) - reinterpret_cast<vuint>(magic) + 127;
  const vfloat scale = reinterpret_cast<vfloat>(power << 23);
  return x < -87.0f ? vfloat{} : y * scale;
}

inline float exp(float x) { return exp(broadcast(x))[0]; }

// 2^-(distance * sharpness) to about 1e-15 relative; exactly 1 at distance 0, exactly 0 from the distance `end` on and
// for NaN. `end * sharpness` is at most 1021.
inline vdouble power_of_half(vdouble distance, vdouble sharpness, vdouble end) {
  const vdouble magic = 0x1.8p52 - vdouble{};  // adding it rounds to an integer in the low mantissa bits
  const vdouble shifted = fma(distance, -sharpness, magic);
  const vdouble f = fma(distance, -sharpness, magic - shifted);  // -0.5 .. 0.5
  vdouble y = 0x1.e5e9f548e5725p-28 - vdouble{};
  y = fma(y, f, 0x1.b6571de2f2351p-24 - vdouble{});
  y = fma(y, f, 0x1.62bfe46117445p-20 - vdouble{});
  y = fma(y, f, 0x1.ffcb76789860fp-17 - vdouble{});
  y = fma(y, f, 0x1.4309130378460p-13 - vdouble{});
  y = fma(y, f, 0x1.5d87fe908f88ap-10 - vdouble{});
  y = fma(y, f, 0x1.3b2ab6fba385fp-7 - vdouble{});
  y = fma(y, f, 0x1.c6b08d7044119p-5 - vdouble{});
  y = fma(y, f, 0x1.ebfbdff82c590p-3 - vdouble{});
  y = fma(y, f, 0x1.62e42fefa39f7p-1 - vdouble{});
  y = fma(y, f, 1.0 - vdouble{});
  const vlong scaled = reinterpret_cast<vlong>(y) + (reinterpret_cast<vlong>(shifted) << 52);
  return distance < end ? reinterpret_cast<vdouble>(scaled) : vdouble{};
}

// tanh to about 1e-7 relative: the Taylor-like odd polynomial of Cephes near 0, 1 - 2 / (e^2x + 1) beyond.
inline vfloat tanh(vfloat x) {
  const vfloat magnitude = as_float(as_int(x) & 0x7fffffff);
  const vfloat square = x * x;
  vfloat y = broadcast(-5.70498872745e-3f);
  y = fma(y, square, broadcast(2.06390887954e-2f));
  y = fma(y, square, broadcast(-5.37397155531e-2f));
  y = fma(y, square, broadcast(1.33314422036e-1f));
  y = fma(y, square, broadcast(-3.33332819422e-1f));
  const vfloat near_zero = fma(x * square, y, x);
  const vfloat clamped = magnitude > 10.0f ? broadcast(10.0f) : magnitude;
  const vfloat far = 1.0f - 2.0f / (exp(clamped * 2.0f) + 1.0f);
  const vfloat signed_far = as_float(as_int(far) | (as_int(x) & INT32_MIN));
  return magnitude < 0.625f ? near_zero : signed_far;
}

}  // namespace
