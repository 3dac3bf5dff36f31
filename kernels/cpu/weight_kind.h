// The kinds of quantised weights that are kept, and where their bits lie.
//
// A matrix [rows, columns] is cut into panels of 16 rows, a panel into groups of 32 columns. A panel is its scales,
// padded to 64 bytes, then the codes of its groups in the order in which the inner loop reads them: 8 quads, each 16
// rows x 4 columns, so that one 64-byte vector times one broadcast quad of the input adds to 16 rows at once. Rows
// beyond the last are zero. How a kind is laid out is two things, its `Codes` and its `Scaling`, and `traits_of` says
// which. A row has scales of its own, of so many columns:
//
//   kind         bits    codes     a weight is               scales
//   q8_0         8.5     bytes     s * (c - 128)             s: half of 32
//   q8_planes    8.5     planes    s * (c - 128)             s: half of 32
//   q5_0         5.5     fives     s * (c - 16)              s: half of 32
//   q4_0         4.5     nibbles   s * (c - 8)               s: half of 32
//   q4_k         4.75    nibbles   d * a * c - e * b         a, b: byte of 32; d, e: float of 256
//   q6_k         6.625   sixes     d * a * (c - 32)          a: byte of 16; d: float of 256
//   codes4       5.25    nibbles   s * (c - z)               s: float of 32; z: byte of 32
//   codes4_wide  4.3125  nibbles   s * (c - z)               s: float of 128; z: byte of 128
//   codes8       9       bytes     s * (c - 128)             s: float of 32
//   codes8_wide  8.25    bytes     s * (c - 128)             s: float of 128
//   q4_1         5       nibbles   s * c + m                 s, m: half of 32
//   q5_1         6       fives     s * c + m                 s, m: half of 32
//   q5_k         5.75    fives     d * a * c - e * b         a, b: byte of 32; d, e: float of 256
//   iq4_nl       4.5     places    s * (t[c] - 128)          s: half of 32
//   iq4_xs       4.375   places    d * a * (t[c] - 128)      a: byte of 32; d: float of 256
//   q3_k         3.625   threes    d * a * (c - 4)           a: byte of 16; d: float of 256
//   q2_k         2.75    pairs     d * a * c - e * b         a, b: 4 bits of 16; d, e: float of 256
//   fp8          9       floats    s * c                     s: float of 32
//   fp8_wide     8.25    floats    s * c                     s: float of 128
//   mxfp4        4.25    places    2^(e - 128) * (t[c] - 16) e: byte of 32
//
// All are formats of ggml, with outer scales widened, but for codes4, codes8 and fp8: they hold what other checkpoints
// publish, with scales of any float type. Codes of fp8 are float8_e4m3fn, without NaN. t is the table of the kind.
//
// Functions have internal linkage, as in simd.h.
#pragma once

#include <cstdint>

namespace octavo {

enum class WeightKind : int32_t {
  q8_0 = 0,
  q5_0 = 1,
  q4_0 = 2,
  q4_k = 3,
  q6_k = 4,
  q8_planes = 5,
  codes4 = 6,
  codes4_wide = 7,
  codes8 = 8,
  codes8_wide = 9,
  q4_1 = 10,
  q5_1 = 11,
  q5_k = 12,
  iq4_nl = 13,
  iq4_xs = 14,
  q3_k = 15,
  q2_k = 16,
  fp8 = 17,
  fp8_wide = 18,
  mxfp4 = 19,
};

constexpr int32_t kNumKinds = 20;

constexpr int kPanelRows = 16;
constexpr int kGroup = 32;       // columns that meet one scale of the input
constexpr int kSuperGroups = 8;  // groups that share the outer scales of ggml's K kinds

// How the codes of a group lie. A byte of nibbles holds quad j in its low and quad j + 4 in its high half.
enum class Codes {
  bytes,    // 512 bytes
  planes,   // 256: upper nibbles. The lower ones of all panels follow the last panel, in the order of panels: the
            // largest output is found by reading few of them (see argmax.cpp)
  nibbles,  // 256
  fives,    // 256 + 64: low nibbles, then fifth bits
  sixes,    // 256 + 128: low nibbles, then upper 2 bits
  places,   // 256: nibbles that are places in a table of the kind
  threes,   // 128 + 64: as pairs, then third bits
  floats,   // 512, quads in an order of their own: 16 rows x column 0 in even bytes and column 2 in odd ones, then likewise
            // columns 1 and 3
  pairs,    // 128: two bits of quads 0 .. 3, then of quads 4 .. 7, in a byte the lowest of the first
};

// What the codes of ggml's iq4 kinds mean, plus 128.
constexpr uint8_t kCurve[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
// And those of mxfp4: twice a float of 4 bits (E2M1), plus 16.
constexpr uint8_t kFloats[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

static constexpr int largest_of(const uint8_t* table) {
  int largest = 0;
  for (int i = 0; i < 16; ++i) largest = table[i] > largest ? table[i] : largest;
  return largest;
}

// What weights' codes are multiplied with, and what is taken from them; see the table above.
enum class Scaling {
  half,           // one scale
  half_minima,    // one scale, and what is added to the product
  whole,          // one scale, as a float
  power,          // one scale, a power of two, as its exponent, plus 128
  zero,           // one scale, as a float, and a code that stands for zero
  byte,           // an outer scale of signed bytes
  byte_minima,    // outer scales of bytes: of codes, and of what is taken from their products
  byte_halves,    // an outer scale of signed bytes: of the codes of the first and of the last 16 columns
  nibble_halves,  // outer scales of nibbles: of codes, and of what is taken, of either 16 columns
};

struct Traits {
  Codes codes;
  int offset;  // that all codes have
  Scaling scaling;
  int shared = 1;  // groups that have the same scales
  const uint8_t* table = nullptr;  // what 16 places mean, with the offset
};

static constexpr Traits traits_of(WeightKind kind) {
  switch (kind) {
    case WeightKind::q8_0: return {Codes::bytes, 128, Scaling::half};
    case WeightKind::q8_planes: return {Codes::planes, 128, Scaling::half};
    case WeightKind::q5_0: return {Codes::fives, 16, Scaling::half};
    case WeightKind::q4_0: return {Codes::nibbles, 8, Scaling::half};
    case WeightKind::q4_k: return {Codes::nibbles, 0, Scaling::byte_minima};
    case WeightKind::q6_k: return {Codes::sixes, 32, Scaling::byte_halves};
    case WeightKind::codes4: return {Codes::nibbles, 0, Scaling::zero};
    case WeightKind::codes4_wide: return {Codes::nibbles, 0, Scaling::zero, 4};
    case WeightKind::codes8: return {Codes::bytes, 128, Scaling::whole};
    case WeightKind::codes8_wide: return {Codes::bytes, 128, Scaling::whole, 4};
    case WeightKind::q4_1: return {Codes::nibbles, 0, Scaling::half_minima};
    case WeightKind::q5_1: return {Codes::fives, 0, Scaling::half_minima};
    case WeightKind::q5_k: return {Codes::fives, 0, Scaling::byte_minima};
    case WeightKind::iq4_nl: return {Codes::places, 128, Scaling::half, 1, kCurve};
    case WeightKind::iq4_xs: return {Codes::places, 128, Scaling::byte, 1, kCurve};
    case WeightKind::q3_k: return {Codes::threes, 4, Scaling::byte_halves};
    case WeightKind::q2_k: return {Codes::pairs, 0, Scaling::nibble_halves};
    case WeightKind::fp8: return {Codes::floats, 0, Scaling::whole};
    case WeightKind::fp8_wide: return {Codes::floats, 0, Scaling::whole, 4};
    case WeightKind::mxfp4: return {Codes::places, 16, Scaling::power, 1, kFloats};
  }
  return {};
}

// The largest code that weights may have.
static constexpr int largest_code(WeightKind kind) {
  switch (traits_of(kind).codes) {
    case Codes::pairs: return 3;
    case Codes::threes: return 7;
    case Codes::nibbles: return 15;
    case Codes::fives: return 31;
    case Codes::sixes: return 63;
    case Codes::places: return largest_of(traits_of(kind).table);
    case Codes::bytes:
    case Codes::planes:
    case Codes::floats: return 255;
  }
  return 255;
}

static constexpr int64_t bytes_of(Codes codes) {  // of a group of a panel
  switch (codes) {
    case Codes::bytes:
    case Codes::floats: return 512;
    case Codes::planes:
    case Codes::nibbles:
    case Codes::places: return 256;
    case Codes::fives: return 320;
    case Codes::sixes: return 384;
    case Codes::threes: return 192;
    case Codes::pairs: return 128;
  }
  return 0;
}

// Bytes of a row's scales in a panel. Those of `shared` groups: of all 16 rows the first, then of all the second one.
// After those of all groups, of 8 groups beside, one or two floats: likewise.
struct ScaleBytes {
  int first, second = 0, outer = 0;

  constexpr int inner() const { return first + second; }
};

static constexpr ScaleBytes bytes_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::half: return {2};
    case Scaling::half_minima: return {2, 2};
    case Scaling::whole: return {4};
    case Scaling::power: return {1};
    case Scaling::zero: return {4, 1};
    case Scaling::byte: return {1, 0, 4};
    case Scaling::byte_minima: return {1, 1, 8};
    case Scaling::byte_halves: return {1, 1, 4};
    case Scaling::nibble_halves: return {1, 1, 8};
  }
  return {0};
}

static constexpr bool has_outer_scales(WeightKind kind) { return bytes_of(traits_of(kind).scaling).outer != 0; }

// Columns of a matrix are a multiple of it.
static constexpr int64_t column_unit(WeightKind kind) {
  return kGroup * (has_outer_scales(kind) ? kSuperGroups : traits_of(kind).shared);
}

static constexpr int64_t code_bytes(WeightKind kind) { return bytes_of(traits_of(kind).codes); }

static constexpr int64_t inner_scale_bytes(WeightKind kind, int64_t groups) {  // of a panel
  return groups / traits_of(kind).shared * bytes_of(traits_of(kind).scaling).inner() * kPanelRows;
}

static constexpr int64_t scale_bytes(WeightKind kind, int64_t columns) {  // of a panel, padded
  const int64_t groups = columns / kGroup;
  const int64_t outer = groups / kSuperGroups * bytes_of(traits_of(kind).scaling).outer * kPanelRows;
  return (inner_scale_bytes(kind, groups) + outer + 63) / 64 * 64;
}

static constexpr int64_t panel_bytes(WeightKind kind, int64_t columns) {
  return scale_bytes(kind, columns) + columns / kGroup * code_bytes(kind);
}

static constexpr int64_t lower_bytes(WeightKind kind, int64_t columns) {  // of a panel, beyond the last
  return traits_of(kind).codes == Codes::planes ? columns / kGroup * 256 : 0;
}

static constexpr int64_t num_panels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

}  // namespace octavo
