// What the sums of a group's products of codes add to the total of an output: the floats of a product, in the order that
// gives it its bits, however the sums were found.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include "panel.h"

namespace octavo {
namespace {

// `total` and the products of a group, of which `sum` are those of codes, where all columns have the same scale.
template <class Weights>
inline __attribute__((always_inline)) Float16 with_whole(const Weights& weights, const InputGroup& input, Int16 sum,
                                                         Float16 total) {
  total = multiply_add(weights.scales[0] * input.scale, converted<Float16>(sum), total);
  if constexpr (Weights::factors == Factors::minimum) {
    total = multiply_add(weights.scales[1], input.correction - Float16{}, total);
  }
  return total;
}

// A field of an input as one number: see InputGroup.
inline int32_t whole_offset(int32_t field) {
  return kMultipliesPairs ? static_cast<int16_t>(field & 0xffff) + (field >> 16) : field;
}

// Likewise, where the halves of the columns have scales of their own: first of the first half, then of both.
template <class Weights>
inline __attribute__((always_inline)) Float16 scaled_half(const Weights& weights, Int16 first) {
  return weights.scales[0] * converted<Float16>(first);
}

template <class Weights>
inline __attribute__((always_inline)) Float16 with_halves(const Weights& weights, const InputGroup& input,
                                                          Float16 scaled_first, Int16 second, Float16 total) {
  const Float16 sum = multiply_add(weights.scales[1], converted<Float16>(second), scaled_first);
  total = multiply_add(sum, input.scale - Float16{}, total);
  if constexpr (Weights::factors == Factors::halves_minima) {
    const float scale = input.scale * 0x1p-5f;
    const float first_sum = scale * static_cast<float>(whole_offset(input.minus_32_first));
    const float second_sum = scale * static_cast<float>(whole_offset(input.minus_32_second));
    total = multiply_add(weights.scales[2], first_sum - Float16{}, total);
    total = multiply_add(weights.scales[3], second_sum - Float16{}, total);
  }
  return total;
}

}  // namespace
}  // namespace octavo
