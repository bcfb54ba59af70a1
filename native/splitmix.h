// SplitMix64's output function, which all randomness here begins with; specification: codecs/twins/random.py.
#pragma once
#include <cstdint>

namespace thinwire {

// Static: each instruction set's build has a copy of its own, so that none runs another's instructions.
static inline __attribute__((always_inline)) uint64_t splitmix64(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

}  // namespace thinwire
