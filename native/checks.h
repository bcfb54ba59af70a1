// What bindings check of their arguments before a kernel runs: a wrong size or place would reach outside memory.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace thinwire {

inline void require(bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

inline void expect(int64_t given, int64_t wanted, const char* what) {
    if (given != wanted)
        throw std::invalid_argument(std::string(what) + ": " + std::to_string(given) + " given, " +
                                    std::to_string(wanted) + " expected");
}

inline void expect_bits(int bits, std::initializer_list<int> offered) {
    for (int choice : offered)
        if (bits == choice) return;
    throw std::invalid_argument("bits " + std::to_string(bits) + " is not offered here");
}

// Bytes of a row in a codec of so many bits: its codes, and two bfloat16 for its range where it has one.
inline int64_t row_bytes(int64_t width, int bits) { return (width * bits + 7) / 8 + (bits >= 1 && bits <= 16 ? 4 : 0); }

}  // namespace thinwire
