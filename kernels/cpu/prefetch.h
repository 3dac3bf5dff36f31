// Memory that is asked for before it is needed.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include <cstdint>

#include "panel.h"

namespace octavo {
namespace {

// Asks for the part of the next panel that `bytes` from `start` on are of this one, into the second cache, some lines a
// step.
class Prefetch {
 public:
  Prefetch(const uint8_t* start, int64_t bytes, int64_t steps)
      : next_(start + bytes), end_(next_ + bytes), lines_((bytes / 64 + steps - 1) / steps) {}

  void step() {
    for (int64_t i = 0; i < lines_ && next_ < end_; ++i, next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const uint8_t *next_, *end_;
  int64_t lines_;
};

// Asks for the next panel, in `steps` steps.
template <WeightKind kind>
class NextPanel {
 public:
  NextPanel(const Panel& panel, int64_t steps)
      : codes_(panel.start, panel_bytes(kind, panel.groups * kGroup), steps),
        lower_(panel.lower, lower_bytes(kind, panel.groups * kGroup), steps) {}

  void step() {
    codes_.step();
    if (lower_bytes(kind, kGroup) != 0) lower_.step();
  }

 private:
  Prefetch codes_, lower_;
};

}  // namespace
}  // namespace octavo
