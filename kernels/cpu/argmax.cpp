// The largest output of each row of a product, which is never stored: each panel's are looked at while in the cache.
//
// Of q8_planes, few lower nibbles are read or multiplied. A code is 16 u + l with l in 0 .. 15; with 7.5 in the place of l an output is
// wrong by at most 7.5 * sum over groups of |scale of the weights| * scale of the input * sum of |codes| of it.
// Where that cannot lift any output of a panel to the largest one that an input row has seen so far, the row needs no
// second look at the panel. Rows that do are multiplied in full, so that the answer is that of the whole product,
// whichever thread saw what when. For the head of Gemma 3 270M and English text that is 1 panel in 10, and 57 % of the
// bytes are read for one row (benchmarks/head.py).
#include "argmax.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "panels.h"

namespace octavo {
namespace {

constexpr float kSlackFactor = 7.5f * 1.01f;  // the second: rounding of sums in float32, of up to some thousand groups

constexpr float kMostSlack = 1e36f;  // where sums of codes times the input's scale, which reach 17 times it, are finite
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The largest output of a row that a part has seen, and the first place that has it.
struct Best {
  float value = kLowest;
  int64_t index = 0;
};

// Tells which input rows may have their largest output in a panel.
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

  void find(int64_t panel, std::vector<int64_t>& found) const {
    found.clear();
    for (int64_t first = 0; first < num_rows_; first += kMostAsked) {
      const int64_t last = std::min<int64_t>(num_rows_, first + kMostAsked);
      float least[kMostAsked];
      for (int64_t row = first; row < last; ++row) least[row - first] = largest_[row].load(std::memory_order_relaxed);
      uint32_t bits = panels_.may_reach(kernels_, rows_, first, last, panel, slack_.data(), least);
      for (; bits != 0; bits &= bits - 1) found.push_back(first + __builtin_ctz(bits));
    }
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

// Some of the input rows, side by side.
class ChosenRows {
 public:
  explicit ChosenRows(const QuantisedRows& rows) : rows_(rows) {}

  QuantisedRows take(const std::vector<int64_t>& chosen) {
    const int64_t count = static_cast<int64_t>(chosen.size());
    if (count == rows_.num_rows) return rows_;
    groups_.resize(rows_.size() + kTileRows - 1);  // the last tile is read as if it were full
    const QuantisedRows taken{groups_.data(), count, rows_.columns};
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t g = 0; g < rows_.num_groups(); ++g) taken.at(i, g) = rows_.at(chosen[i], g);
    }
    return taken;
  }

 private:
  const QuantisedRows& rows_;
  std::vector<InputGroup> groups_;
};

// Looks at panels [first, last): `find` tells which input rows need a look, `saw` hears of every new largest output.
template <class Find, class Saw>
void find_best(const ProductCall& call, const ProductTable& kernels, const Panels& panels, const QuantisedRows& rows,
               int64_t first, int64_t last, std::vector<Best>& best, const Find& find, const Saw& saw) {
  std::vector<float> tile(call.num_rows * kPanelRows);
  std::vector<int64_t> found(call.num_rows);
  std::iota(found.begin(), found.end(), 0);
  ChosenRows chosen(rows);
  for (int64_t panel = first; panel < last; ++panel) {
    find(panel, found);
    if (found.empty()) continue;
    const QuantisedRows taken = chosen.take(found);
    // a place in an output row of which only this panel's part exists
    const int64_t start = panels.first_output(panel);
    const Panels::Outputs outputs =
        panels.multiply(kernels, taken, 0, taken.num_rows, panel, tile.data() - start, kPanelRows);
    for (int64_t i = 0; i < taken.num_rows; ++i) {
      const int64_t row = found[i];
      const float* values = tile.data() + i * kPanelRows;
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
  quantise(call, kernels, rows, num_threads);
  if (call.num_rows <= kernels.most_sieved && panels.are_planes()) {
    Sieve sieve(call, kernels, panels, rows);
    run_parts(panels, num_threads, num_parts, [&](int part, int64_t first, int64_t last) {
      find_best(
          call, kernels, panels, rows, first, last, bests[part],
          [&](int64_t panel, std::vector<int64_t>& found) { sieve.find(panel, found); },
          [&](int64_t row, float value) { sieve.saw(row, value); });
    });
  } else {
    run_parts(panels, num_threads, num_parts, [&](int part, int64_t first, int64_t last) {
      find_best(
          call, kernels, panels, rows, first, last, bests[part], [](int64_t, std::vector<int64_t>&) {},
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
