// See amx.h. Compiled for no instruction set in particular: what needs one is called only where it is there.
#include "amx.h"

#include <cstring>
#include <vector>

#include "dispatch.h"
#include "panels.h"

#if defined(OCTAVO_AMX)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace octavo {
#if defined(OCTAVO_AMX)
namespace {

// 8 registers of at least 16 rows of 64 bytes, and products of bytes.
bool processor_has_tiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kTiles = 1u << 24 | 1u << 25;
  if ((d & kTiles) != kTiles || !__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return false;
  return b >> 16 >= 8 && (b & 0xffff) >= 64 && (c & 0xffff) >= 16;
}

// The system saves tiles when it gives the core to another thread, and lets this process, all threads of it, use them.
bool system_grants_tiles() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  unsigned saved, high;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return (saved & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

TileSupport find_support() {
  if (!supported(kAvx512Bf16) || !processor_has_tiles()) return TileSupport::absent;
  if (!system_grants_tiles()) return TileSupport::not_granted;
  return tiles_agree() ? TileSupport::works : TileSupport::wrong;
}

void multiply_panel(const QuantisedMatrix& matrix, int64_t index, const QuantisedRows& rows, int64_t first, int64_t last,
                    float* output, int64_t output_stride) {
  const bool is_for_tiles = last - first > kTileRows && traits_of(matrix.kind).codes != Codes::floats;
  const auto multiply = is_for_tiles ? multiply_panel_by_tiles : products_avx512_vnni.multiply_panel;
  multiply(matrix, index, rows, first, last, output, output_stride);
}

// Numbers without a pattern.
class Noise {
 public:
  uint32_t next() { return (state_ = state_ * 1664525 + 1013904223) >> 16; }

 private:
  uint32_t state_ = 1;
};

// Whether a panel of weights of any codes and of scales that are small numbers has the same products both ways.
bool agrees(WeightKind kind) {
  constexpr int64_t kRows = 2 * kTileRows + 3, kColumns = kGroup * kSuperGroups;
  Noise noise;
  std::vector<uint8_t> panel(panel_bytes(kind, kColumns) + 63);
  uint8_t* start = panel.data() + (64 - reinterpret_cast<uintptr_t>(panel.data()) % 64) % 64;
  for (int64_t i = 0; i < panel_bytes(kind, kColumns); ++i) {
    // of halves and floats, bytes that are no exponent of a large one
    start[i] = static_cast<uint8_t>(i < scale_bytes(kind, kColumns) ? 32 + noise.next() % 32 : noise.next());
  }
  std::vector<float> input(kRows * kColumns), scratch(2 * kColumns), outputs[2];
  for (float& x : input) x = static_cast<float>(static_cast<int>(noise.next() % 2001) - 1000);
  const QuantisedMatrix matrix{start, kPanelRows, kind};
  const ProductCall call{input.data(), kColumns, DType::float32, Prologue::none, nullptr, 0.0f, 1,
                         &matrix,      kRows,    kColumns,       nullptr,        0};
  RowScratch memory;
  const QuantisedRows rows = memory.reserve(kRows, kColumns);
  for (int64_t row = 0; row < kRows; ++row) products_avx512_vnni.quantise_row(call, row, rows, scratch.data());
  for (auto& output : outputs) output.resize(kRows * kPanelRows);
  products_avx512_vnni.multiply_panel(matrix, 0, rows, 0, kRows, outputs[0].data(), kPanelRows);
  multiply_panel_by_tiles(matrix, 0, rows, 0, kRows, outputs[1].data(), kPanelRows);
  return memcmp(outputs[0].data(), outputs[1].data(), outputs[0].size() * sizeof(float)) == 0;
}

}  // namespace

bool tiles_agree() {
  const bool agree = agrees(WeightKind::q8_0) && agrees(WeightKind::q6_k);
  release_tiles();
  return agree;
}

TileSupport tile_support() {
  static const TileSupport support = find_support();
  return support;
}

extern const ProductTable products_amx = {products_avx512_vnni.quantise_row, multiply_panel,
                                          products_avx512_vnni.may_reach, products_avx512_vnni.unpack_row,
                                          products_avx512_vnni.most_sieved};

#else

TileSupport tile_support() { return TileSupport::absent; }

#endif
}  // namespace octavo

OCTAVO_EXPORT int octavo_tile_support() { return static_cast<int>(octavo::tile_support()); }
