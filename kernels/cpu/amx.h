// Products with quantised weights by AMX, whose tiles of integers are what other builds have vectors for: whether they can
// be had, and what a thread has to do with them.
#pragma once

#include <cstdint>

#include "quantised_matrix.h"

namespace octavo {

enum class TileSupport : int32_t {
  works = 0,
  absent = 1,       // this processor has none, or the library was built by an assembler that does not know them
  not_granted = 2,  // the system does not let this process use them
  wrong = 3,        // they give other products than vectors do
};

// Found out once. Asks the system for the permission.
TileSupport tile_support();

// Whether a product by tiles has the bits it has by vectors, on an example of each shape of tiles.
bool tiles_agree();

// multiply_panel of a ProductTable, of weights whose codes are integers and of more rows than one tile of inputs has.
void multiply_panel_by_tiles(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first,
                             int64_t last, float* output, int64_t output_stride);

// That of AVX-512 with VNNI but for multiply_panel.
extern const ProductTable products_amx;

// How the tiles of this thread are laid out, and what releases them; null where they are not in use.
struct ConfiguredTiles {
  int shape = 0;
  void (*release)() = nullptr;
};
inline thread_local ConfiguredTiles configured_tiles;

// Tiles that are in use are saved and loaded, 8 KiB, whenever the system gives the core to another thread. So whoever has
// multiplied panels says when it is done.
inline void release_tiles() {
  if (configured_tiles.release == nullptr) return;
  configured_tiles.release();
  configured_tiles = {};
}

}  // namespace octavo
