// Four-bit codes of a group of floats, with the scale and the minimum that fit the group best.
//
// The range of the codes is tried at several widths about the group's middle: a narrow one cuts the outermost weights
// short, and has finer steps for all others. For each, scale and minimum are those of least squares for its codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "half.h"
#include "weight_kind.h"

namespace octavo {

// weight = scale * code + minimum, both as halves
struct AffineFit {
  uint16_t scale = 0, minimum = 0;
  uint8_t codes[kGroup] = {};
};

namespace affine {

constexpr float kLargest = 15.0f;
constexpr int kWidths = 8;
constexpr float kNarrower = 0.04f;  // of the full range, from one width to the next

inline void encode(const float* x, float scale, float minimum, float* codes) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (int k = 0; k < kGroup; ++k) {
    const float place = std::min(kLargest, std::max(0.0f, (x[k] - minimum) * inverse));
    codes[k] = static_cast<float>(static_cast<int>(place + 0.5f));
  }
}

}  // namespace affine

inline AffineFit fit_affine(const float* x) {
  const auto [least, most] = std::minmax_element(x, x + kGroup);
  const float middle = (*least + *most) / 2, half_range = (*most - *least) / 2;
  float best_scale = 0.0f, best_minimum = middle, best_error = INFINITY;
  float codes[kGroup];
  for (int width = 0; width < affine::kWidths && half_range > 0.0f; ++width) {
    const float part = half_range * (1.0f - affine::kNarrower * width);
    affine::encode(x, 2 * part / affine::kLargest, middle - part, codes);
    float sum = 0.0f, squares = 0.0f, weights = 0.0f, products = 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      sum += codes[k], squares += codes[k] * codes[k];
      weights += x[k] - middle, products += (x[k] - middle) * codes[k];
    }
    const float spread = kGroup * squares - sum * sum;  // not 0: the codes of the least and of the most differ
    const float scale = (kGroup * products - sum * weights) / spread;
    const float minimum = (weights - scale * sum) / kGroup + middle;
    float error = 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const float miss = x[k] - scale * codes[k] - minimum;
      error += miss * miss;
    }
    if (error < best_error) best_scale = scale, best_minimum = minimum, best_error = error;
  }
  AffineFit fit;
  fit.scale = half_of_float(best_scale);
  fit.minimum = half_of_float(best_minimum);
  affine::encode(x, float_of_half(fit.scale), float_of_half(fit.minimum), codes);
  for (int k = 0; k < kGroup; ++k) fit.codes[k] = static_cast<uint8_t>(codes[k]);
  return fit;
}

}  // namespace octavo
