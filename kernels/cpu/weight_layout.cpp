// From rows of GGUF blocks, of floats or of published codes, to panels.
#include "weight_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "affine_fit.h"
#include "code_word.h"
#include "half.h"
#include "plain_row.h"
#include "stored_rows.h"

namespace octavo {
namespace {

// Per group of a kind of bytes: the largest magnitude becomes the largest code.
void quantise_to_bytes(WeightKind kind, const float* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g) {
    const float* x = row + g * kGroup;
    float extreme = 0.0f;
    for (int k = 0; k < kGroup; ++k) extreme = std::max(extreme, std::fabs(x[k]));
    const uint16_t half = half_of_float(extreme / 127.0f);
    plain.set_first(g, half);
    const float scale = float_of_half(half);
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const float code = std::min(127.0f, std::max(-127.0f, std::nearbyint(x[k] * inverse)));
      plain.codes[g * kGroup + k] = static_cast<uint8_t>(static_cast<int>(code) + traits_of(kind).offset);
    }
  }
}

void quantise_to_nibbles(const float* row, int64_t groups, PlainRow& plain) {
  for (int64_t g = 0; g < groups; ++g) {
    const AffineFit fit = fit_affine(row + g * kGroup);
    plain.set_first(g, fit.scale);
    plain.set_second(g, fit.minimum);
    std::memcpy(&plain.codes[g * kGroup], fit.codes, kGroup);
  }
}

// Where the table of the kind has each code; codes themselves where it has none.
std::array<uint8_t, 256> places_of(WeightKind kind) {
  std::array<uint8_t, 256> places;
  std::iota(places.begin(), places.end(), uint8_t{0});
  const uint8_t* table = traits_of(kind).table;
  for (int place = 15; table != nullptr && place >= 0; --place) places[table[place]] = static_cast<uint8_t>(place);
  return places;
}

// Scales of more columns than the kind's share one are repeated.
void take_codes(WeightKind kind, const PublishedCodes& rows, int64_t row, int64_t columns, PlainRow& plain) {
  const uint8_t* codes = rows.codes + row * columns;
  const int64_t unit = column_unit(kind), repeats = columns / rows.groups / unit;
  const float* scales = rows.scales + row * rows.groups;
  const std::array<uint8_t, 256> places = places_of(kind);
  const int offset = traits_of(kind).offset;
  for (int64_t i = 0; i < columns; ++i) plain.codes[i] = places[static_cast<uint8_t>(codes[i] + offset)];
  for (int64_t place = 0; place < columns / unit; ++place) {
    const float scale = scales[place / repeats];
    if (traits_of(kind).scaling == Scaling::power) {
      plain.set_first(place, static_cast<uint8_t>(std::ilogb(scale) + 128));
    } else {
      plain.set_first(place, scale);
    }
    if (rows.zeros != nullptr) plain.set_second(place, rows.zeros[row * rows.groups + place / repeats]);
  }
}

void place_planes(const uint8_t* row, int64_t groups, int lane, uint8_t* upper, uint8_t* lower) {
  for (int64_t g = 0; g < groups; ++g, row += kGroup, upper += 256, lower += 256) {
    for (int quad = 0; quad < 4; ++quad) {
      const uint32_t first = load_quad(row + 4 * quad), second = load_quad(row + 4 * (quad + 4));
      const int place = quad * 64 + lane * 4;
      store_quad(upper + place, (first >> 4 & in_each(0x0f)) | (second & in_each(0xf0)));
      store_quad(lower + place, (first & in_each(0x0f)) | (second & in_each(0x0f)) << 4);
    }
  }
}

// Adds a bit of each code of a quad, 0 or 1, to those of the group.
void add_bits(uint8_t* bits, int place, int lane, uint32_t quad) {
  bits[place * 8 + lane / 2] |= static_cast<uint8_t>(gathered(quad) << 4 * (lane % 2));
}

void place_codes(Codes layout, const uint8_t* row, int64_t groups, int lane, uint8_t* codes) {
  for (int64_t g = 0; g < groups; ++g, codes += bytes_of(layout)) {
    for (int place = 0; place < kGroup / 4; ++place, row += 4) {
      const uint32_t quad = load_quad(row);
      const int byte = lane * 4;
      if (layout == Codes::bytes) {
        store_quad(codes + place * 64 + byte, quad);
      } else if (layout == Codes::floats) {
        uint8_t* even = codes + place * 64 + lane * 2;
        even[0] = row[0], even[1] = row[2], even[32] = row[1], even[33] = row[3];
      } else if (layout == Codes::pairs || layout == Codes::threes) {
        add_quad(codes + place / 4 * 64 + byte, (quad & in_each(3)) << 2 * (place % 4));
        if (layout == Codes::threes) add_bits(codes + 128, place, lane, quad >> 2 & in_each(1));
      } else {
        add_quad(codes + place % 4 * 64 + byte, (quad & in_each(15)) << (place < 4 ? 0 : 4));
        if (layout == Codes::fives) add_bits(codes + 256, place, lane, quad >> 4 & in_each(1));
        if (layout == Codes::sixes) {
          add_quad(codes + 256 + place / 4 * 64 + byte, (quad >> 4 & in_each(3)) << 2 * (place % 4));
        }
      }
    }
  }
}

void place_scales(WeightKind kind, const PlainRow& row, int64_t groups, int lane, uint8_t* scales) {
  const ScaleBytes sizes = row.sizes;
  uint8_t* own = scales;
  for (int64_t place = 0; place < groups / traits_of(kind).shared; ++place, own += sizes.inner() * kPanelRows) {
    std::memcpy(own + lane * sizes.first, row.first.data() + place * sizes.first, sizes.first);
    if (sizes.second == 0) continue;
    std::memcpy(own + kPanelRows * sizes.first + lane * sizes.second, row.second.data() + place * sizes.second,
                sizes.second);
  }
  uint8_t* outer = scales + inner_scale_bytes(kind, groups);
  for (size_t i = 0; i < row.outer.size(); ++i) std::memcpy(outer + (i * kPanelRows + lane) * 4, &row.outer[i], 4);
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
    PlainRow plain(kind, columns);
    for (int lane = 0; lane < kPanelRows && index * kPanelRows + lane < num_rows; ++lane) {
      read(index * kPanelRows + lane, plain);
      place_scales(kind, plain, groups, lane, panel);
      uint8_t* codes = panel + scale_bytes(kind, columns);
      if (traits_of(kind).codes == Codes::planes) {
        place_planes(plain.codes.data(), groups, lane, codes, lower);
      } else {
        place_codes(traits_of(kind).codes, plain.codes.data(), groups, lane, codes);
      }
    }
  }
}

}  // namespace

void pack_stored_rows(const QuantisedMatrix& matrix, const uint8_t* rows, int64_t first_row, int64_t num_rows,
                      int64_t columns, int num_threads) {
  const int64_t stride = stored_row_bytes(matrix.kind, columns);
  pack(matrix, first_row, num_rows, columns, num_threads, [&](int64_t row, PlainRow& plain) {
    read_stored_row(matrix.kind, rows + row * stride, columns, plain);
  });
}

void pack_float_rows(const QuantisedMatrix& matrix, const float* rows, int64_t first_row, int64_t num_rows,
                     int64_t columns, int num_threads) {
  pack(matrix, first_row, num_rows, columns, num_threads, [&](int64_t row, PlainRow& plain) {
    const float* values = rows + row * columns;
    if (matrix.kind == WeightKind::q4_1) {
      quantise_to_nibbles(values, columns / kGroup, plain);
    } else {
      quantise_to_bytes(matrix.kind, values, columns / kGroup, plain);
    }
  });
}

void pack_published_rows(const QuantisedMatrix& matrix, const PublishedCodes& rows, int64_t first_row, int64_t num_rows,
                         int64_t columns, int num_threads) {
  pack(matrix, first_row, num_rows, columns, num_threads, [&](int64_t row, PlainRow& plain) {
    take_codes(matrix.kind, rows, row, columns, plain);
  });
}

}  // namespace octavo
