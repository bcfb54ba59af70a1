// Rows, or their differences to a copy, encoded under a budget of bytes: measured, chosen, written. The specification
// is encode_budget of codecs/twins/budget.py.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace thinwire {

// `out` has `size` bytes; the copy may be null. False, and the copy as it was, where a value is not finite.
bool encode_budget(const Kernels& kernels, const float* x, float* copy, const float* weights, const int64_t* must,
                   int64_t num_rows, int64_t width, int64_t size, uint8_t* out);

}  // namespace thinwire
