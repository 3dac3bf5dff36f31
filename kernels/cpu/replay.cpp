// Calls of this library that were made before, made once more: a step of a decode without a visit to Python at each.
#include <cstdint>

#include "dispatch.h"

namespace octavo {

struct RecordedCall {
  int (*function)(int variant, int num_threads, const void* call);
  const void* call;
};

}  // namespace octavo

// In their order, up to the first that fails.
OCTAVO_EXPORT int octavo_replay(int variant, int num_threads, const octavo::RecordedCall* calls, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int status = calls[i].function(variant, num_threads, calls[i].call);
    if (status != octavo::ok) return status;
  }
  return octavo::ok;
}
