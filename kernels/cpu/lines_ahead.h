// Lines of memory that are asked for a tile ahead, one by one in the order in which they lie.
//
// For processors whose kernels read the keys and the values of several heads tile by tile. Of such heads a page's keys
// lie side by side, and so do its values: memory and the processor's prefetchers bring long runs faster than short ones.
// Internal linkage throughout, for the reason given in simd.h.
#pragma once

#include <cstdint>

#include "paged_attention.h"

namespace {

// Bytes from `begin` on, whole lines, `end` being one past the last.
struct LineRun {
  const char* begin;
  const char* end;

  LineRun() = default;
  LineRun(const void* start, int64_t bytes)
      : begin(floor(static_cast<const char*>(start))), end(floor(static_cast<const char*>(start) + bytes + kLine - 1)) {}

  static constexpr int kLine = 64;

 private:
  static const char* floor(const char* p) {
    return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) / kLine * kLine);
  }
};

// The next of some runs' lines. After the last it asks for one that is near, which costs less than to ask whether any is left.
class LinesAhead {
 public:
  LinesAhead() = default;
  LinesAhead(const LineRun* runs, int num_runs) : run_(runs), last_(runs + num_runs) { begin_run(); }

  // The share of a step that reads so many bytes after as many others as are given: evenly, as lines are needed.
  void fetch_share(int bytes_before, int bytes) {
    if (bytes >= LineRun::kLine) {
      for (int i = 0; i < bytes / LineRun::kLine; ++i) fetch();
    } else if (bytes_before % LineRun::kLine == 0) {
      fetch();
    }
  }

 private:
  void fetch() {
    __builtin_prefetch(next_, 0, 2);
    next_ += step_;
    if (next_ == end_) begin_run();
  }

  void begin_run() {
    if (run_ == last_) {
      next_ = reinterpret_cast<const char*>(run_);
      end_ = nullptr;
      step_ = 0;
      return;
    }
    next_ = run_->begin;
    end_ = run_->end;
    step_ = LineRun::kLine;
    ++run_;
  }

  const char* next_ = nullptr;
  const char* end_ = nullptr;
  int64_t step_ = 0;
  const LineRun* run_ = nullptr;
  const LineRun* last_ = nullptr;
};

// What lies where a tile's keys and values are, for all heads that are walked together.
struct TileLines {
  LineRun key_runs[octavo::kTileKeys];
  LineRun value_runs[octavo::kTileKeys];
  int num_runs = 0;
};

// What is asked for during a tile: its keys while keys are scored, its values while values are weighed.
struct Upcoming {
  LinesAhead keys;
  LinesAhead values;

  explicit Upcoming(const TileLines& lines)
      : keys(lines.key_runs, lines.num_runs), values(lines.value_runs, lines.num_runs) {}
};

}  // namespace
