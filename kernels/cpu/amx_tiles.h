// The instructions of AMX that products need: registers that hold a tile of up to 16 rows of 64 bytes each, by number.
//
// Written as assembly: intrinsics would have the whole file compiled for AMX, and gcc's do not say what memory they read.
// Like simd.h, everything has internal linkage.
#pragma once

#include <cstdint>

namespace octavo {
namespace {

// What a thread says of its tiles before it uses any.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

struct AmxTiles {
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }

  static void release() { asm volatile("tilerelease"); }

  template <int tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }

  // Row i from `start` + i * `stride` on.
  template <int tile>
  static void load(const void* start, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(start), "r"(stride), "i"(tile) : "memory");
  }

  template <int tile>
  static void store(void* start, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(start), "r"(stride), "i"(tile) : "memory");
  }

  // sums[m][n] += the sum over k of codes [4k, 4k + 4) of rows[m] . codes [4n, 4n + 4) of weights[k], all of them signed.
  template <int sums, int rows, int weights>
  static void multiply() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(rows), "i"(weights));
  }
};

}  // namespace
}  // namespace octavo
