// IEEE half-precision numbers where speed does not matter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {

inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  float value;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounded to nearest even; beyond the largest half, that.
inline uint16_t half_of_float(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::min(std::fabs(value), 65504.0f);
  if (!(magnitude > 0.0f)) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  uint32_t steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (unit > -24 && steps == 2048) return sign | static_cast<uint16_t>((unit + 26) << 10);
  return sign | static_cast<uint16_t>(unit == -24 ? steps : ((unit + 25) << 10) + (steps - 1024));
}

}  // namespace octavo
