// From GGUF blocks to plain rows. Block formats are those of ggml, as documented by the gguf package.
#include "stored_rows.h"

#include <cstring>

#include "code_word.h"
#include "half.h"

namespace octavo {
namespace {

uint16_t read_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

// Codes of 4 bits: of a group's first 16 columns in the lower, of the others in the upper nibbles of 16 bytes.
void read_nibbles(const uint8_t* pairs, uint8_t* codes) {
  for (int k = 0; k < 16; ++k) {
    codes[k] = pairs[k] & 15;
    codes[k + 16] = pairs[k] >> 4;
  }
}

// And their fifth bits.
void add_fifths(const uint8_t* bits, uint8_t* codes) {
  for (int k = 0; k < kGroup; k += 4) add_quad(codes + k, spread(bits[k / 8] >> k % 8 & 15) << 4);
}

void read_q8_0(const uint8_t* block, uint8_t* codes, int64_t group, PlainRow& plain) {
  plain.set_first(group, read_half(block));
  for (int k = 0; k < kGroup; ++k) codes[k] = static_cast<uint8_t>(block[2 + k] + 128);
}

void read_q4_0(const uint8_t* block, uint8_t* codes, int64_t group, PlainRow& plain) {  // and iq4_nl
  plain.set_first(group, read_half(block));
  read_nibbles(block + 2, codes);
}

void read_q5_0(const uint8_t* block, uint8_t* codes, int64_t group, PlainRow& plain) {
  plain.set_first(group, read_half(block));
  read_nibbles(block + 6, codes);
  add_fifths(block + 2, codes);
}

void read_q4_1(const uint8_t* block, uint8_t* codes, int64_t group, PlainRow& plain) {
  plain.set_first(group, read_half(block));
  plain.set_second(group, read_half(block + 2));
  read_nibbles(block + 4, codes);
}

void read_q5_1(const uint8_t* block, uint8_t* codes, int64_t group, PlainRow& plain) {
  plain.set_first(group, read_half(block));
  plain.set_second(group, read_half(block + 2));
  read_nibbles(block + 8, codes);
  add_fifths(block + 4, codes);
}

void read_mxfp4(const uint8_t* block, uint8_t* codes, int64_t group, PlainRow& plain) {
  plain.set_first(group, block[0]);
  read_nibbles(block + 1, codes);
}

// The outer scales of a block of 256 columns.
void read_outer(const uint8_t* halves, int64_t super, PlainRow& plain) {
  const int count = plain.sizes.outer / 4;
  for (int i = 0; i < count; ++i) plain.outer[super * count + i] = float_of_half(read_half(halves + 2 * i));
}

// 4 bits of q4_k, and q5_k's fifth ones in `fifths`. Scales have six bits each: the last four groups keep their upper
// two beside the first four.
void read_q4_k(const uint8_t* block, const uint8_t* pairs, const uint8_t* fifths, uint8_t* codes, int64_t super,
               PlainRow& plain) {
  read_outer(block, super, plain);
  const uint8_t* packed = block + 4;
  for (int j = 0; j < kSuperGroups; ++j, codes += kGroup) {
    const int64_t g = super * kSuperGroups + j;
    const int first = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    const int second = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    plain.set_first(g, static_cast<uint8_t>(first));
    plain.set_second(g, static_cast<uint8_t>(second));
    for (int k = 0; k < kGroup; ++k) {
      const uint8_t pair = pairs[j / 2 * kGroup + k];
      codes[k] = j % 2 ? pair >> 4 : pair & 15;
      if (fifths != nullptr) codes[k] |= static_cast<uint8_t>((fifths[k] >> j & 1) << 4);
    }
  }
}

void read_q6_k(const uint8_t* block, uint8_t* codes, int64_t super, PlainRow& plain) {
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  read_outer(block + 208, super, plain);
  for (int j = 0; j < kSuperGroups; ++j, codes += kGroup) {
    plain.set_first(super * kSuperGroups + j, scales[2 * j]);
    plain.set_second(super * kSuperGroups + j, scales[2 * j + 1]);
    const int half = j / 4, part = j % 4;  // of 128 columns, and of 32 in them
    for (int k = 0; k < kGroup; ++k) {
      const uint8_t pair = low[half * 64 + part % 2 * 32 + k];
      const uint8_t upper = high[half * 32 + k] >> (2 * part) & 3;
      codes[k] = static_cast<uint8_t>((part < 2 ? pair & 15 : pair >> 4) | upper << 4);
    }
  }
}

// Two bits of q2_k and q3_k: a byte has those of 4 groups.
void read_pairs(const uint8_t* fours, int group, uint8_t* codes) {
  for (int k = 0; k < kGroup; ++k) codes[k] = fours[group / 4 * kGroup + k] >> 2 * (group % 4) & 3;
}

void read_q3_k(const uint8_t* block, uint8_t* codes, int64_t super, PlainRow& plain) {
  const uint8_t *thirds = block, *fours = block + 32, *packed = block + 96;
  read_outer(block + 108, super, plain);
  for (int j = 0; j < kSuperGroups; ++j, codes += kGroup) {
    uint8_t scales[2];  // six bits, offset by 32: the lower four of all 16 of them, then the upper two
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * j + half;
      const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4, high = packed[8 + i % 4] >> 2 * (i / 4) & 3;
      scales[half] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    plain.set_first(super * kSuperGroups + j, scales[0]);
    plain.set_second(super * kSuperGroups + j, scales[1]);
    read_pairs(fours, j, codes);
    for (int k = 0; k < kGroup; ++k) codes[k] |= static_cast<uint8_t>((thirds[k] >> j & 1) << 2);
  }
}

void read_q2_k(const uint8_t* block, uint8_t* codes, int64_t super, PlainRow& plain) {
  read_outer(block + 80, super, plain);
  for (int j = 0; j < kSuperGroups; ++j, codes += kGroup) {
    plain.set_first(super * kSuperGroups + j, block[2 * j]);
    plain.set_second(super * kSuperGroups + j, block[2 * j + 1]);
    read_pairs(block + 16, j, codes);
  }
}

void read_iq4_xs(const uint8_t* block, uint8_t* codes, int64_t super, PlainRow& plain) {
  read_outer(block, super, plain);
  const int upper = block[2] | block[3] << 8;
  for (int j = 0; j < kSuperGroups; ++j, codes += kGroup) {
    const int scale = (block[4 + j / 2] >> 4 * (j % 2) & 15) | (upper >> 2 * j & 3) << 4;
    plain.set_first(super * kSuperGroups + j, static_cast<int8_t>(scale - 32));
    read_nibbles(block + 8 + 16 * j, codes);
  }
}

// A block of one group, or of 256 columns.
void read_block(WeightKind kind, const uint8_t* block, uint8_t* codes, int64_t index, PlainRow& plain) {
  switch (kind) {
    case WeightKind::q8_0:
    case WeightKind::q8_planes: return read_q8_0(block, codes, index, plain);
    case WeightKind::q5_0: return read_q5_0(block, codes, index, plain);
    case WeightKind::iq4_nl:
    case WeightKind::q4_0: return read_q4_0(block, codes, index, plain);
    case WeightKind::q4_1: return read_q4_1(block, codes, index, plain);
    case WeightKind::q5_1: return read_q5_1(block, codes, index, plain);
    case WeightKind::q4_k: return read_q4_k(block, block + 16, nullptr, codes, index, plain);
    case WeightKind::q5_k: return read_q4_k(block, block + 48, block + 16, codes, index, plain);
    case WeightKind::q6_k: return read_q6_k(block, codes, index, plain);
    case WeightKind::iq4_xs: return read_iq4_xs(block, codes, index, plain);
    case WeightKind::q3_k: return read_q3_k(block, codes, index, plain);
    case WeightKind::q2_k: return read_q2_k(block, codes, index, plain);
    case WeightKind::mxfp4: return read_mxfp4(block, codes, index, plain);
    default: return;
  }
}

int64_t block_bytes(WeightKind kind) {
  switch (kind) {
    case WeightKind::q8_0:
    case WeightKind::q8_planes: return 34;
    case WeightKind::q5_0: return 22;
    case WeightKind::iq4_nl:
    case WeightKind::q4_0: return 18;
    case WeightKind::q4_1: return 20;
    case WeightKind::q5_1: return 24;
    case WeightKind::q4_k: return 144;
    case WeightKind::q5_k: return 176;
    case WeightKind::q6_k: return 210;
    case WeightKind::iq4_xs: return 136;
    case WeightKind::q3_k: return 110;
    case WeightKind::q2_k: return 84;
    case WeightKind::mxfp4: return 17;
    default: return 0;
  }
}

}  // namespace

int64_t stored_row_bytes(WeightKind kind, int64_t columns) { return columns / column_unit(kind) * block_bytes(kind); }

void read_stored_row(WeightKind kind, const uint8_t* row, int64_t columns, PlainRow& plain) {
  const int64_t unit = column_unit(kind), stride = block_bytes(kind);
  for (int64_t index = 0; index < columns / unit; ++index, row += stride) {
    read_block(kind, row, &plain.codes[index * unit], index, plain);
  }
}

}  // namespace octavo
