// Groups of quantised weights in vectors, for the instruction set this file is compiled for.
//
// Layout and kinds are those of weight_kind.h. Like simd.h, everything has internal linkage.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "panel_vectors.h"
#include "quantised_matrix.h"

namespace octavo {
namespace {

// Quads j and j + 4 of a group; `lower` are its lower nibbles, of planes alone.
template <WeightKind kind, int j>
inline void unpack_pair(const uint8_t* codes, [[maybe_unused]] const uint8_t* lower, Byte64* quads) {
  constexpr Codes layout = traits_of(kind).codes;
  constexpr bool is_pairs = layout == Codes::pairs || layout == Codes::threes;
  const Byte64 pairs = load_vector<Byte64>(codes + (is_pairs ? 0 : 64 * j));
  if constexpr (layout == Codes::bytes || layout == Codes::floats) {
    quads[j] = pairs;
    quads[j + 4] = load_vector<Byte64>(codes + 64 * (j + 4));
  } else if constexpr (layout == Codes::planes) {
    const Byte64 lower_pairs = load_vector<Byte64>(lower + 64 * j);
    quads[j] = merged(shifted<4>(pairs), lower_pairs, 0xf0);
    quads[j + 4] = merged(pairs, shifted<-4>(lower_pairs), 0xf0);
  } else if constexpr (is_pairs) {
    quads[j] = shifted<-2 * j>(pairs) & 0x03;
    quads[j + 4] = shifted<-2 * j>(load_vector<Byte64>(codes + 64)) & 0x03;
  } else {
    quads[j] = pairs & 0x0f;
    quads[j + 4] = shifted<-4>(pairs) & 0x0f;
  }
  if constexpr (layout == Codes::fives) {
    quads[j] = add_bits<16>(quads[j], codes + 256 + 8 * j);
    quads[j + 4] = add_bits<16>(quads[j + 4], codes + 256 + 8 * (j + 4));
  } else if constexpr (layout == Codes::threes) {
    quads[j] = add_bits<4>(quads[j], codes + 128 + 8 * j);
    quads[j + 4] = add_bits<4>(quads[j + 4], codes + 128 + 8 * (j + 4));
  } else if constexpr (layout == Codes::places) {
    quads[j] = looked_up(traits_of(kind).table, quads[j]);
    quads[j + 4] = looked_up(traits_of(kind).table, quads[j + 4]);
  } else if constexpr (layout == Codes::sixes) {
    quads[j] |= shifted<4 - 2 * j>(load_vector<Byte64>(codes + 256)) & 0x30;
    quads[j + 4] |= shifted<4 - 2 * j>(load_vector<Byte64>(codes + 320)) & 0x30;
  }
}

// Columns [0, 4) of a quad of floats. Read as the fields of a half, whose exponent is biased by 15, an e4m3 is 8 powers
// of two too small: `kFloatUnit` times what it is meant to be.
constexpr float kFloatUnit = 0x1p-8f;

inline void unpack_floats(Byte64 quad, Float16* columns) {
  const Short32 odd = cast<Short32>(quad), even = odd << 8;
  const int16_t fields = static_cast<int16_t>(0xbf80);  // sign, and exponent and mantissa beyond one bit
  widen_halves((even >> 1) & fields, columns[0], columns[1]);
  widen_halves((odd >> 1) & fields, columns[2], columns[3]);
}

// What a group's scales are in the inner loop: vectors, one lane a row.
enum class Factors {
  one,            // of codes
  zero,           // and the code that stands for zero, as integers
  minimum,        // and what is taken from the product for each unit of the input
  halves,         // of the codes of the first and of the last 16 columns
  halves_minima,  // and what is taken from the product of either
};

constexpr Factors factors_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::half:
    case Scaling::byte:
    case Scaling::power:
    case Scaling::whole: return Factors::one;
    case Scaling::zero: return Factors::zero;
    case Scaling::half_minima:
    case Scaling::byte_minima: return Factors::minimum;
    case Scaling::byte_halves: return Factors::halves;
    case Scaling::nibble_halves: return Factors::halves_minima;
  }
  return Factors::one;
}

constexpr int count_of(Factors factors) {
  return factors == Factors::one ? 1 : factors == Factors::halves_minima ? 4 : 2;
}

// A panel of `groups` groups, and where its parts begin.
struct Panel {
  const uint8_t* start;  // and its inner scales
  const uint8_t* outer;
  const uint8_t* codes;
  const uint8_t* lower;
  int64_t groups;
};

inline Panel panel_of(const QuantisedMatrix& matrix, int64_t index, int64_t columns) {
  const uint8_t* start = matrix.panel(index, columns);
  const int64_t groups = columns / kGroup;
  return {start, start + inner_scale_bytes(matrix.kind, groups), start + scale_bytes(matrix.kind, columns),
          matrix.lower(index, columns), groups};
}

template <WeightKind kind>
inline void unpack_scales(const Panel& panel, uint64_t group, Float16* result) {
  constexpr Traits traits = traits_of(kind);
  constexpr ScaleBytes sizes = bytes_of(traits.scaling);
  const uint8_t* own = panel.start + group / traits.shared * (sizes.inner() * kPanelRows);
  [[maybe_unused]] const uint8_t* outer = panel.outer + group / kSuperGroups * (sizes.outer * kPanelRows);
  if constexpr (traits.scaling == Scaling::half) {
    result[0] = halves(own);
  } else if constexpr (traits.scaling == Scaling::half_minima) {
    result[0] = halves(own);
    result[1] = -halves(own + 32);
  } else if constexpr (traits.scaling == Scaling::whole) {
    result[0] = load_vector<Float16>(own);
    if constexpr (traits.codes == Codes::floats) result[0] *= 1.0f / kFloatUnit;
  } else if constexpr (traits.scaling == Scaling::power) {
    result[0] = powers(own);
  } else if constexpr (traits.scaling == Scaling::zero) {
    result[0] = load_vector<Float16>(own);
    result[1] = cast<Float16>(widened<Byte16>(own + 64));
  } else if constexpr (traits.scaling == Scaling::byte_minima) {
    result[0] = load_vector<Float16>(outer) * bytes<Byte16>(own);
    result[1] = load_vector<Float16>(outer + 64) * bytes<Byte16>(own + 16);
  } else if constexpr (traits.scaling == Scaling::byte) {
    result[0] = load_vector<Float16>(outer) * bytes<Sbyte16>(own);
  } else if constexpr (traits.scaling == Scaling::nibble_halves) {
    const Float16 d = load_vector<Float16>(outer), e = load_vector<Float16>(outer + 64);
    const Int16 first = widened<Byte16>(own), second = widened<Byte16>(own + 16);
    result[0] = d * converted<Float16>(first & 15);
    result[1] = d * converted<Float16>(second & 15);
    result[2] = e * converted<Float16>(first >> 4);
    result[3] = e * converted<Float16>(second >> 4);
  } else {
    const Float16 d = load_vector<Float16>(outer);
    result[0] = d * bytes<Sbyte16>(own);
    result[1] = d * bytes<Sbyte16>(own + 16);
  }
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool kMultipliesPairs = true;  // of bytes, into 16 bits: see quad_sums.h
#else
constexpr bool kMultipliesPairs = false;
#endif

// A group of a panel as the inner loop takes it.
template <WeightKind kind>
struct Group {
  static constexpr Factors factors = factors_of(traits_of(kind).scaling);
  static constexpr int largest = largest_code(kind);
  static constexpr int offset = traits_of(kind).offset;
  static constexpr bool has_floats = traits_of(kind).codes == Codes::floats;

  Byte64 quads[8];
  Float16 scales[count_of(factors)];
};

template <WeightKind kind>
inline Group<kind> unpack_group(const Panel& panel, int64_t group) {
  const uint8_t* codes = panel.codes + group * code_bytes(kind);
  const uint8_t* lower = panel.lower + group * 256;
  Group<kind> result;
  unpack_pair<kind, 0>(codes, lower, result.quads);
  unpack_pair<kind, 1>(codes, lower, result.quads);
  unpack_pair<kind, 2>(codes, lower, result.quads);
  unpack_pair<kind, 3>(codes, lower, result.quads);
  unpack_scales<kind>(panel, group, result.scales);
  return result;
}

// work(kind), as a constant.
template <class Work, int32_t... kinds>
void with_kind(WeightKind kind, const Work& work, std::integer_sequence<int32_t, kinds...>) {
  (void)((static_cast<int32_t>(kind) == kinds &&
          (work(std::integral_constant<WeightKind, static_cast<WeightKind>(kinds)>()), true)) ||
         ...);
}

template <class Work>
void with_kind(WeightKind kind, const Work& work) {
  with_kind(kind, work, std::make_integer_sequence<int32_t, kNumKinds>());
}

}  // namespace
}  // namespace octavo
