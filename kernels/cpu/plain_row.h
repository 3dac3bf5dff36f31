// A row of quantised weights taken apart, between whatever it is read from and its panel.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "weight_kind.h"

namespace octavo {

// Codes, and scales as `ScaleBytes` has them: `first` and `second` of the groups that share them, `outer` of 8 groups.
struct PlainRow {
  PlainRow(WeightKind kind, int64_t columns)
      : sizes(bytes_of(traits_of(kind).scaling)), codes(columns),
        first(columns / kGroup / traits_of(kind).shared * sizes.first),
        second(columns / kGroup / traits_of(kind).shared * sizes.second),
        outer(columns / kGroup / kSuperGroups * sizes.outer / 4) {}

  template <class Scale>
  void set_first(int64_t place, Scale scale) {
    std::memcpy(&first[place * sizeof scale], &scale, sizeof scale);
  }
  template <class Scale>
  void set_second(int64_t place, Scale scale) {
    std::memcpy(&second[place * sizeof scale], &scale, sizeof scale);
  }

  ScaleBytes sizes;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> first, second;
  std::vector<float> outer;  // one or two floats of 8 groups after another
};

}  // namespace octavo
