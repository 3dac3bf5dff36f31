// The largest outputs of a product; see argmax.cpp.
#pragma once

#include "dispatch.h"
#include "quantised_matrix.h"

namespace octavo {

// The place of the largest output of each input row, the first of equal ones. `call.output` is not used.
Status argmax(const ProductCall& call, const ProductTable& kernels, int num_threads, int64_t* indices);

}  // namespace octavo
