// Four codes that lie side by side as one word, the first in its lowest byte: how weights are moved about.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

inline uint32_t load_quad(const uint8_t* codes) {
  uint32_t quad;
  std::memcpy(&quad, codes, 4);
  return quad;
}

inline void store_quad(uint8_t* place, uint32_t quad) { std::memcpy(place, &quad, 4); }

inline void add_quad(uint8_t* place, uint32_t quad) { store_quad(place, load_quad(place) | quad); }

constexpr uint32_t in_each(uint8_t byte) { return byte * 0x01010101u; }

// Bit k is byte k of `quad`, which is 0 or 1: the product's upper byte has them all, and no two meet below it.
constexpr uint32_t gathered(uint32_t quad) { return quad * 0x01020408u >> 24; }

// And back: byte k is bit k of four.
constexpr uint32_t spread(uint32_t bits) { return bits * 0x00204081u & in_each(1); }

}  // namespace octavo
