// Dropout by node: a value is kept or not by (seed, its row's own number, its column), wherever the row lives.
#pragma once
#include "random.h"

namespace thinwire::THINWIRE_ISA {

TW_INLINE void drop_row(const float* x, int64_t width, Key key, float keep, float gain, float* out) {
    Ints columns = iota();
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES, columns += LANES) {
        Ints kept = uniform(key, columns) < splat(keep);
        store(out + i, (Floats)(kept & (Ints)(load<Floats>(x + i) * gain)));
    }
    if (i == width) return;
    Floats last{};
    memcpy(&last, x + i, (width - i) * sizeof(float));
    Ints kept = uniform(key, columns) < splat(keep);
    last = (Floats)(kept & (Ints)(last * gain));
    memcpy(out + i, &last, (width - i) * sizeof(float));
}

}  // namespace thinwire::THINWIRE_ISA
