// Tiles in software: what the instructions of AMX do, by Intel's description of them, for tests on machines without.
//
// Stands in for AmxTiles. Where a processor would raise an exception, a fault is counted.
#pragma once

#include <atomic>
#include <cstring>

#include "amx_tiles.h"

namespace octavo {
namespace {

std::atomic<int> tile_faults{0};
std::atomic<int> tile_error{0};  // what is added to each product, for a processor that is wrong

struct ModelTiles {
  static constexpr int kRows = 16, kRowBytes = 64;

  struct State {
    bool is_configured = false;
    int rows[8] = {}, row_bytes[8] = {};
    uint8_t data[8][kRows][kRowBytes] = {};

    // Whether the tiles may be used: each has a shape.
    template <class... Tiles>
    bool are_valid(Tiles... tiles) const {
      const bool valid = is_configured && ((rows[tiles] > 0 && row_bytes[tiles] > 0) && ...);
      if (!valid) ++tile_faults;
      return valid;
    }
  };

  static State& state() {
    static thread_local State state;
    return state;
  }

  static void configure(const TileConfig& config) {
    bool is_valid = config.palette == 1 && config.start_row == 0;
    for (const uint8_t unused : config.unused) is_valid = is_valid && unused == 0;
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config.rows[tile], row_bytes = config.row_bytes[tile];
      is_valid = is_valid && rows <= (tile < 8 ? kRows : 0) && row_bytes <= (tile < 8 ? kRowBytes : 0);
      is_valid = is_valid && (rows == 0) == (row_bytes == 0);
    }
    if (!is_valid) {
      ++tile_faults;
      return;
    }
    state() = State{};
    state().is_configured = true;
    for (int tile = 0; tile < 8; ++tile) {
      state().rows[tile] = config.rows[tile], state().row_bytes[tile] = config.row_bytes[tile];
    }
  }

  static void release() { state() = State{}; }

  template <int tile>
  static void zero() {
    if (state().are_valid(tile)) memset(state().data[tile], 0, sizeof state().data[tile]);
  }

  template <int tile>
  static void load(const void* start, int64_t stride) {
    State& s = state();
    if (!s.are_valid(tile)) return;
    zero<tile>();
    for (int row = 0; row < s.rows[tile]; ++row) {
      memcpy(s.data[tile][row], static_cast<const uint8_t*>(start) + row * stride, s.row_bytes[tile]);
    }
  }

  template <int tile>
  static void store(void* start, int64_t stride) {
    const State& s = state();
    if (!s.are_valid(tile)) return;
    for (int row = 0; row < s.rows[tile]; ++row) {
      memcpy(static_cast<uint8_t*>(start) + row * stride, s.data[tile][row], s.row_bytes[tile]);
    }
  }

  template <int sums, int rows, int weights>
  static void multiply() {
    State& s = state();
    if (!s.are_valid(sums, rows, weights)) return;
    const bool are_distinct = sums != rows && sums != weights && rows != weights;
    const bool have_words = s.row_bytes[sums] % 4 == 0 && s.row_bytes[rows] % 4 == 0 && s.row_bytes[weights] % 4 == 0;
    const bool fit = s.row_bytes[rows] / 4 == s.rows[weights] && s.rows[sums] == s.rows[rows] &&
                     s.row_bytes[sums] == s.row_bytes[weights];
    if (!are_distinct || !have_words || !fit) {
      ++tile_faults;
      return;
    }
    for (int m = 0; m < s.rows[sums]; ++m) {
      for (int n = 0; n < s.row_bytes[sums] / 4; ++n) {
        int32_t sum;
        memcpy(&sum, s.data[sums][m] + 4 * n, 4);
        for (int k = 0; k < s.rows[weights]; ++k) {
          for (int i = 0; i < 4; ++i) {
            sum += static_cast<int8_t>(s.data[rows][m][4 * k + i]) * static_cast<int8_t>(s.data[weights][k][4 * n + i]);
          }
        }
        sum += tile_error;
        memcpy(s.data[sums][m] + 4 * n, &sum, 4);
      }
    }
  }
};

}  // namespace
}  // namespace octavo
