// Counter-based randomness; the specification is src/thinwire/codecs/twins/random.py.
#pragma once
#include "splitmix.h"
#include "vec.h"

namespace thinwire::THINWIRE_ISA {

struct Key {
    uint32_t low, high;
};

TW_INLINE Key row_key(uint64_t seed, uint64_t row) {
    uint64_t key = splitmix64(splitmix64(seed) + row);
    return {(uint32_t)key, (uint32_t)(key >> 32)};
}

// For one column (uint32_t) or a register of them (Words).
template <class Column>
TW_INLINE Column hash(Key key, Column x) {
    x += key.low;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x += key.high;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x;
}

TW_INLINE Floats uniform(Key key, Ints columns) {
    Floats k = to_floats((Ints)(hash(key, (Words)columns) >> 1));
    return smaller(k * 0x1p-31f + 0x1p-32f, splat(0x1.fffffep-1f));
}

}  // namespace thinwire::THINWIRE_ISA
