// Rows of weights as GGUF files store them.
#pragma once

#include <cstdint>

#include "plain_row.h"
#include "weight_kind.h"

namespace octavo {

// Bytes of one row of `columns` weights as GGUF files store it; 0 where the kind has no such rows.
int64_t stored_row_bytes(WeightKind kind, int64_t columns);

void read_stored_row(WeightKind kind, const uint8_t* row, int64_t columns, PlainRow& plain);

}  // namespace octavo
