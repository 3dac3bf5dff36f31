// From GGUF blocks to plain rows. Block formats are those of ggml, as documented by the gguf package.
#include "stored_rows.h"

#include <cstring>

#include "half.h"

namespace octavo {
namespace {

uint16_t read_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

void read_q8_0(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g, row += 34) {
    plain.set_first(g, read_half(row));
    for (int k = 0; k < kGroup; ++k) plain.codes[g * kGroup + k] = static_cast<uint8_t>(row[2 + k] + 128);
  }
}

void read_q4_0(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g, row += 18) {
    plain.set_first(g, read_half(row));
    for (int k = 0; k < 16; ++k) {
      plain.codes[g * kGroup + k] = row[2 + k] & 15;
      plain.codes[g * kGroup + k + 16] = row[2 + k] >> 4;
    }
  }
}

void read_q5_0(const uint8_t* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g, row += 22) {
    plain.set_first(g, read_half(row));
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
    plain.outer[2 * super] = float_of_half(read_half(row));
    plain.outer[2 * super + 1] = float_of_half(read_half(row + 2));
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
    default: return 0;
  }
}

void read_stored_row(WeightKind kind, const uint8_t* row, int64_t columns, PlainRow& plain) {
  const int64_t groups = columns / kGroup;
  switch (kind) {
    case WeightKind::q8_0:
    case WeightKind::q8_planes: return read_q8_0(row, groups, plain);
    case WeightKind::q5_0: return read_q5_0(row, groups, plain);
    case WeightKind::q4_0: return read_q4_0(row, groups, plain);
    case WeightKind::q4_k: return read_q4_k(row, groups, plain);
    case WeightKind::q6_k: return read_q6_k(row, groups, plain);
    default: return;
  }
}

}  // namespace octavo
