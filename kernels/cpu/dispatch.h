// What the C interfaces share: their status codes, and which builds of the kernels this machine can run.
#pragma once

#define OCTAVO_EXPORT extern "C" __attribute__((visibility("default")))

#include <cstdint>

namespace octavo {

constexpr int64_t kSerialWork = 1 << 15;  // below this many elements read, waking threads costs more than it saves

enum Status : int { ok = 0, bad_layout = 1, bad_block = 2, bad_slot = 3, out_of_memory = 4, bad_variant = 5 };

// Whether this machine can run `variant`: 0 portable, 1 AVX2, 2 AVX-512, 3 AVX-512 with bfloat16, VNNI and VBMI.
inline bool supported(int variant) {
  if (variant == 0) return true;
#ifdef OCTAVO_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (variant == 1) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (variant == 2) return avx512;
  if (variant == 3) {
    return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
  }
#endif
  return false;
}

}  // namespace octavo
