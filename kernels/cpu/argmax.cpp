// The largest output of each row of a product, which is never stored: each panel's are looked at while in the cache.
//
// Of q8_planes, few lower nibbles are read. A code is 16 u + l with l in 0 .. 15; with 7.5 in the place of l an output is
// wrong by at most 7.5 * sum over groups of |scale of the weights| * scale of the input * sum of |codes| of it.
// Where that cannot lift any output of a panel to the largest one seen so far, the panel needs no second look. Those that
// may are multiplied in full, so that the answer is that of the whole product, whichever thread saw what when. For the
// head of Gemma 3 270M and English text that is 1 panel in 10, and 57 % of the bytes are read (benchmarks/head.py).
#include "argmax.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "panels.h"

namespace octavo {
namespace {

constexpr int64_t kSievedRows = 2;  // more rows share too few panels that none of them needs
constexpr float kSlackFactor = 7.5f * 1.01f;  // the second: rounding of sums in float32, of up to some thousand groups

constexpr float kMostSlack = 1e36f;  // where sums of codes times the input's scale, which reach 17 times it, are finite
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The largest output of a row that a part has seen, and the first place that has it.
struct Best {
  float value = kLowest;
  int64_t index = 0;
};

// Tells which panels may hold a largest output.
class Sieve {
 public:
  Sieve(const ProductCall& call, const ProductTable& kernels, const Panels& panels, const QuantisedRows& rows)
      : kernels_(kernels), panels_(panels), rows_(rows), num_rows_(call.num_rows), groups_(call.columns / kGroup),
        slack_(call.num_rows * groups_), largest_(call.num_rows) {
    for (auto& one : largest_) one.store(kLowest, std::memory_order_relaxed);
    for (int64_t row = 0; row < num_rows_; ++row) {
      for (int64_t g = 0; g < groups_; ++g) {
        const InputGroup& group = rows.at(row, g);
        int32_t sum = 0;
        for (int k = 0; k < kGroup; ++k) sum += std::abs(group.codes[k]);
        const float slack = kSlackFactor * group.scale * static_cast<float>(sum);
        slack_[row * groups_ + g] = slack > kMostSlack ? -kLowest : slack;
      }
    }
  }

  bool passes(int64_t panel) const {
    for (int64_t row = 0; row < num_rows_; ++row) {
      const float least = largest_[row].load(std::memory_order_relaxed);
      if (panels_.may_reach(kernels_, rows_, row, panel, slack_.data() + row * groups_, least)) return true;
    }
    return false;
  }

  void saw(int64_t row, float value) {
    float seen = largest_[row].load(std::memory_order_relaxed);
    while (value > seen && !largest_[row].compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

 private:
  const ProductTable& kernels_;
  const Panels& panels_;
  const QuantisedRows& rows_;
  int64_t num_rows_, groups_;
  std::vector<float> slack_;                 // [num_rows, groups]
  std::vector<std::atomic<float>> largest_;  // of each input row, by any thread
};

typedef float Float4 __attribute__((vector_size(16)));

// Of `count` numbers, at most a panel's; NaN is never larger. Four at a time: one by one, each comparison waits for the
// one before, and that takes a tenth as long as multiplying.
float largest_of(const float* values, int count) {
  Float4 most = kLowest - Float4{};
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    Float4 next;
    std::memcpy(&next, values + i, sizeof next);
    most = next > most ? next : most;
  }
  float largest = kLowest;
  for (int lane = 0; lane < 4; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  for (; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

// Looks at panels [first, last): `passes` tells which, `saw` hears of every new largest output.
template <class Passes, class Saw>
void find_best(const ProductCall& call, const ProductTable& kernels, const Panels& panels, const QuantisedRows& rows,
               int64_t first, int64_t last, std::vector<Best>& best, const Passes& passes, const Saw& saw) {
  std::vector<float> tile(call.num_rows * kPanelRows);
  for (int64_t panel = first; panel < last; ++panel) {
    if (!passes(panel)) continue;
    // a place in an output row of which only this panel's part exists
    const int64_t start = panels.first_output(panel);
    const Panels::Outputs outputs =
        panels.multiply(kernels, rows, 0, call.num_rows, panel, tile.data() - start, kPanelRows);
    for (int64_t row = 0; row < call.num_rows; ++row) {
      const float* values = tile.data() + row * kPanelRows;
      const float most = largest_of(values, outputs.count);
      if (!(most > best[row].value)) continue;
      const int place = static_cast<int>(std::find(values, values + outputs.count, most) - values);
      best[row] = {most, outputs.first + place};
      saw(row, most);
    }
  }
}

}  // namespace

Status argmax(const ProductCall& call, const ProductTable& kernels, int num_threads, int64_t* indices) {
  const Panels panels(call);
  if (!panels.are_sound()) return bad_layout;
  const QuantisedRows rows = row_scratch.reserve(call.num_rows, call.columns);
  num_threads = threads_for(call, panels, num_threads);
  const int num_parts = parts_for(num_threads);
  std::vector<std::vector<Best>> bests(num_parts, std::vector<Best>(call.num_rows));
  if (call.num_rows <= kSievedRows && panels.are_planes()) {
    quantise_rows(call, kernels, rows, 0, call.num_rows);
    Sieve sieve(call, kernels, panels, rows);
    run_parts(panels, num_threads, num_parts, [&](int part, int64_t first, int64_t last) {
      find_best(call, kernels, panels, rows, first, last, bests[part], [&](int64_t panel) { return sieve.passes(panel); },
                [&](int64_t row, float value) { sieve.saw(row, value); });
    });
  } else {
    quantise(call, kernels, rows, num_threads);
    run_parts(panels, num_threads, num_parts, [&](int part, int64_t first, int64_t last) {
      find_best(call, kernels, panels, rows, first, last, bests[part], [](int64_t) { return true; },
                [](int64_t, float) {});
    });
  }
  for (int64_t row = 0; row < call.num_rows; ++row) {
    Best best = bests[0][row];
    for (int part = 1; part < num_parts; ++part) {
      if (bests[part][row].value > best.value) best = bests[part][row];
    }
    indices[row] = best.index;
  }
  return ok;
}

}  // namespace octavo
