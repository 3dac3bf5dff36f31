// From rows of GGUF blocks, or of floats, to panels. Block formats are those of ggml, as documented by the gguf package.
#include "weight_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace octavo {
namespace {

// A row taken apart: codes, and the scales of quantised_matrix.h in the order of groups.
struct PlainRow {
  explicit PlainRow(int64_t columns)
      : codes(columns), halves(columns / kGroup), first(columns / kGroup), second(columns / kGroup),
        outer(columns / kGroup / kSuperGroups + 1), outer_minimum(columns / kGroup / kSuperGroups + 1) {}

  std::vector<uint8_t> codes;
  std::vector<uint16_t> halves;        // kinds without outer scales
  std::vector<uint8_t> first, second;  // q4_k: factor and minimum; q6_k: factors of the two halves of a group
  std::vector<float> outer, outer_minimum;
};

uint16_t read_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  float value;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounded to nearest even; beyond the largest half, that.
uint16_t half_of_float(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::min(std::fabs(value), 65504.0f);
  if (!(magnitude > 0.0f)) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  uint32_t steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (unit > -24 && steps == 2048) return sign | static_cast<uint16_t>((unit + 26) << 10);
  return sign | static_cast<uint16_t>(unit == -24 ? steps : ((unit + 25) << 10) + (steps - 1024));
}

void read_q8_0(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g, row += 34) {
    plain.halves[g] = read_half(row);
    for (int k = 0; k < kGroup; ++k) plain.codes[g * kGroup + k] = static_cast<uint8_t>(row[2 + k] + 128);
  }
}

void read_q4_0(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g, row += 18) {
    plain.halves[g] = read_half(row);
    for (int k = 0; k < 16; ++k) {
      plain.codes[g * kGroup + k] = row[2 + k] & 15;
      plain.codes[g * kGroup + k + 16] = row[2 + k] >> 4;
    }
  }
}

void read_q5_0(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g, row += 22) {
    plain.halves[g] = read_half(row);
    uint32_t fifth;
    std::memcpy(&fifth, row + 2, 4);
    for (int k = 0; k < 16; ++k) {
      plain.codes[g * kGroup + k] = static_cast<uint8_t>((row[6 + k] & 15) | (fifth >> k & 1) << 4);
      plain.codes[g * kGroup + k + 16] = static_cast<uint8_t>(row[6 + k] >> 4 | (fifth >> (k + 16) & 1) << 4);
    }
  }
}

void read_q4_k(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t super = 0; super < groups / kSuperGroups; ++super, row += 144) {
    plain.outer[super] = float_of_half(read_half(row));
    plain.outer_minimum[super] = float_of_half(read_half(row + 2));
    const uint8_t* packed = row + 4;
    const uint8_t* codes = row + 16;
    for (int j = 0; j < kSuperGroups; ++j) {
      const int64_t g = super * kSuperGroups + j;
      // six bits each: the last four groups keep their upper two bits beside the first four
      plain.first[g] = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
      plain.second[g] = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
      for (int k = 0; k < kGroup; ++k) {
        const uint8_t pair = codes[j / 2 * kGroup + k];
        plain.codes[g * kGroup + k] = j % 2 ? pair >> 4 : pair & 15;
      }
    }
  }
}

void read_q6_k(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t super = 0; super < groups / kSuperGroups; ++super, row += 210) {
    const uint8_t *low = row, *high = row + 128, *scales = row + 192;
    plain.outer[super] = float_of_half(read_half(row + 208));
    for (int j = 0; j < kSuperGroups; ++j) {
      const int64_t g = super * kSuperGroups + j;
      plain.first[g] = scales[2 * j];
      plain.second[g] = scales[2 * j + 1];
      const int half = j / 4, part = j % 4;  // of 128 columns, and of 32 in them
      for (int k = 0; k < kGroup; ++k) {
        const uint8_t pair = low[half * 64 + part % 2 * 32 + k];
        const uint8_t upper = high[half * 32 + k] >> (2 * part) & 3;
        plain.codes[g * kGroup + k] = static_cast<uint8_t>((part < 2 ? pair & 15 : pair >> 4) | upper << 4);
      }
    }
  }
}

void read_row(WeightKind kind, const uint8_t* row, int64_t groups, PlainRow& plain) {
  switch (kind) {
    case WeightKind::q8_0:
    case WeightKind::q8_planes: return read_q8_0(row, groups, plain);
    case WeightKind::q5_0: return read_q5_0(row, groups, plain);
    case WeightKind::q4_0: return read_q4_0(row, groups, plain);
    case WeightKind::q4_k: return read_q4_k(row, groups, plain);
    case WeightKind::q6_k: return read_q6_k(row, groups, plain);
  }
}

// Per group: the largest magnitude becomes the largest code; of 4 bits, the one with the longer side (-8).
void quantise_row(WeightKind kind, const float* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g) {
    const float* x = row + g * kGroup;
    float extreme = 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      if (std::fabs(x[k]) > std::fabs(extreme)) extreme = x[k];
    }
    const float wanted = has_bytes(kind) ? std::fabs(extreme) / 127.0f : extreme / -8.0f;
    plain.halves[g] = half_of_float(wanted);
    const float scale = float_of_half(plain.halves[g]);
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    const float least = has_bytes(kind) ? -127.0f : -8.0f, most = has_bytes(kind) ? 127.0f : 7.0f;
    const int offset = has_bytes(kind) ? 128 : 8;
    for (int k = 0; k < kGroup; ++k) {
      const float code = std::min(most, std::max(least, std::nearbyint(x[k] * inverse)));
      plain.codes[g * kGroup + k] = static_cast<uint8_t>(static_cast<int>(code) + offset);
    }
  }
}

void place_planes(const uint8_t* row, int64_t groups, int lane, uint8_t* upper, uint8_t* lower) {
  for (int64_t g = 0; g < groups; ++g, row += kGroup, upper += 256, lower += 256) {
    for (int k = 0; k < kGroup / 2; ++k) {
      const uint8_t first = row[k], second = row[k + kGroup / 2];
      const int pair = k / 4 * 64 + lane * 4 + k % 4;
      upper[pair] = static_cast<uint8_t>(first >> 4 | (second & 0xf0));
      lower[pair] = static_cast<uint8_t>((first & 15) | second << 4);
    }
  }
}

void place_codes(WeightKind kind, const uint8_t* row, int64_t groups, int lane, uint8_t* codes) {
  for (int64_t g = 0; g < groups; ++g, codes += code_bytes(kind)) {
    for (int k = 0; k < kGroup; ++k) {
      const uint8_t code = row[g * kGroup + k];
      const int quad = k / 4, byte = lane * 4 + k % 4;
      if (kind == WeightKind::q8_0) {
        codes[quad * 64 + byte] = code;
        continue;
      }
      codes[quad % 4 * 64 + byte] |= static_cast<uint8_t>((code & 15) << (quad < 4 ? 0 : 4));
      if (kind == WeightKind::q5_0) codes[256 + quad * 8 + byte / 8] |= static_cast<uint8_t>((code >> 4) << byte % 8);
      if (kind == WeightKind::q6_k) {
        codes[256 + quad / 4 * 64 + byte] |= static_cast<uint8_t>((code >> 4) << 2 * (quad % 4));
      }
    }
  }
}

void place_scales(WeightKind kind, const PlainRow& row, int64_t groups, int lane, uint8_t* scales) {
  for (int64_t g = 0; g < groups; ++g) {
    uint8_t* own = scales + g * 2 * kPanelRows;
    if (has_outer_scales(kind)) {
      own[lane] = row.first[g];
      own[kPanelRows + lane] = row.second[g];
    } else {
      std::memcpy(own + 2 * lane, &row.halves[g], 2);
    }
  }
  if (!has_outer_scales(kind)) return;
  const int64_t stride = kind == WeightKind::q4_k ? 2 * kPanelRows : kPanelRows;  // floats of 8 groups
  uint8_t* outer = scales + groups * 2 * kPanelRows;
  for (int64_t super = 0; super < groups / kSuperGroups; ++super) {
    std::memcpy(outer + (super * stride + lane) * 4, &row.outer[super], 4);
    if (kind == WeightKind::q4_k) {
      std::memcpy(outer + (super * stride + kPanelRows + lane) * 4, &row.outer_minimum[super], 4);
    }
  }
}

template <class ReadRow>
void pack(const QuantisedMatrix& matrix, int64_t first_row, int64_t num_rows, int64_t columns, int num_threads,
          const ReadRow& read) {
  const WeightKind kind = matrix.kind;
  const int64_t groups = columns / kGroup, count = num_panels(num_rows);
#pragma omp parallel for num_threads(std::max(1, num_threads)) schedule(static) if (num_threads > 1)
  for (int64_t index = 0; index < count; ++index) {
    uint8_t* panel = matrix.panel(first_row / kPanelRows + index, columns);
    uint8_t* lower = matrix.lower(first_row / kPanelRows + index, columns);
    std::memset(panel, 0, panel_bytes(kind, columns));
    std::memset(lower, 0, lower_bytes(kind, columns));
    PlainRow plain(columns);
    for (int lane = 0; lane < kPanelRows && index * kPanelRows + lane < num_rows; ++lane) {
      read(index * kPanelRows + lane, plain);
      place_scales(kind, plain, groups, lane, panel);
      uint8_t* codes = panel + scale_bytes(kind, columns);
      if (kind == WeightKind::q8_planes) {
        place_planes(plain.codes.data(), groups, lane, codes, lower);
      } else {
        place_codes(kind, plain.codes.data(), groups, lane, codes);
      }
    }
  }
}

}  // namespace

int64_t stored_row_bytes(WeightKind kind, int64_t columns) {
  const int64_t groups = columns / kGroup;
  switch (kind) {
    case WeightKind::q8_0:
    case WeightKind::q8_planes: return groups * 34;
    case WeightKind::q5_0: return groups * 22;
    case WeightKind::q4_0: return groups * 18;
    case WeightKind::q4_k: return groups / kSuperGroups * 144;
    case WeightKind::q6_k: return groups / kSuperGroups * 210;
  }
  return 0;
}

void pack_stored_rows(const QuantisedMatrix& matrix, const uint8_t* rows, int64_t first_row, int64_t num_rows,
                      int64_t columns, int num_threads) {
  const int64_t stride = stored_row_bytes(matrix.kind, columns);
  pack(matrix, first_row, num_rows, columns, num_threads, [&](int64_t row, PlainRow& plain) {
    read_row(matrix.kind, rows + row * stride, columns / kGroup, plain);
  });
}

void pack_float_rows(const QuantisedMatrix& matrix, const float* rows, int64_t first_row, int64_t num_rows,
                     int64_t columns, int num_threads) {
  pack(matrix, first_row, num_rows, columns, num_threads, [&](int64_t row, PlainRow& plain) {
    quantise_row(matrix.kind, rows + row * columns, columns / kGroup, plain);
  });
}

}  // namespace octavo
