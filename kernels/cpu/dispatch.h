// What the C interfaces share: their status codes, and which builds of the kernels this machine can run.
#pragma once

#define OCTAVO_EXPORT extern "C" __attribute__((visibility("default")))

#include <cstdint>

#include "amx.h"

namespace octavo {

constexpr int64_t kSerialWork = 1 << 15;  // below this many elements read, waking threads costs more than it saves

enum Status : int { ok = 0, bad_layout = 1, bad_block = 2, bad_slot = 3, out_of_memory = 4, bad_variant = 5 };

// Builds of the kernels, each for an instruction set that has all that those before have.
enum Variant : int {
  kPortable = 0,
  kAvx2 = 1,
  kAvx512 = 2,
  kAvx512Vnni = 3,  // products with quantised weights alone: see vector_variant
  kAvx512Bf16 = 4,  // and VBMI; such products are those of the one before
  kAmx = 5,         // such products alone, once more
};

// The build that a variant takes for all that is no product with quantised weights.
constexpr int vector_variant(int variant) {
  return variant == kAmx ? kAvx512Bf16 : variant == kAvx512Vnni ? kAvx512 : variant;
}

// Whether this machine can run `variant`.
inline bool supported(int variant) {
  if (variant == kPortable) return true;
#ifdef OCTAVO_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (variant == kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (variant == kAvx512) return avx512;
  const bool avx512_vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (variant == kAvx512Vnni) return avx512_vnni;
  const bool avx512_bf16 =
      avx512_vnni && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (variant == kAvx512Bf16) return avx512_bf16;
  if (variant == kAmx) return avx512_bf16 && tile_support() == TileSupport::works;
#endif
  return false;
}

}  // namespace octavo
