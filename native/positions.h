// Ascending positions in Elias and Fano's code, whose size depends on their number and the count alone: the lowest bits
// of each, then one mark per position. The specification is codecs/twins/sparse.py.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace thinwire {

inline int low_bits(int64_t count, int64_t k) {
    int bits = 0;
    while ((k << (bits + 1)) <= count) ++bits;
    return bits;
}

inline int64_t low_bytes(int64_t count, int64_t k) { return (k * low_bits(count, k) + 7) / 8; }
inline int64_t high_bytes(int64_t count, int64_t k) { return (k + ((count - 1) >> low_bits(count, k)) + 7) / 8; }
inline int64_t position_bytes(int64_t count, int64_t k) { return low_bytes(count, k) + high_bytes(count, k); }

// At least one position, each below `count`.
inline void write_positions(const std::vector<int64_t>& positions, int64_t count, uint8_t* out) {
    const int64_t k = (int64_t)positions.size();
    const int bits = low_bits(count, k);
    uint8_t* low = out;
    uint8_t* high = low + low_bytes(count, k);
    memset(high, 0, high_bytes(count, k));
    uint64_t pending = 0;
    int filled = 0;
    for (int64_t j = 0; j < k; ++j) {
        const uint64_t position = (uint64_t)positions[j];
        pending |= (position & ((1ull << bits) - 1)) << filled;
        for (filled += bits; filled >= 8; filled -= 8, pending >>= 8) *low++ = (uint8_t)pending;
        const uint64_t mark = (position >> bits) + (uint64_t)j;
        high[mark / 8] |= (uint8_t)(1u << (mark % 8));
    }
    if (filled) *low = (uint8_t)pending;
}

// What write_positions wrote; false where they are not k, each above the one before and below `count`.
// All are read before the first is used: bytes that are refused change nothing, and the cache misses overlap.
inline bool read_positions(const uint8_t* data, int64_t count, int64_t k, std::vector<int64_t>& positions) {
    positions.resize(k);
    if (k == 0) return true;
    const int bits = low_bits(count, k);
    const uint8_t* low = data;
    const uint8_t* high = low + low_bytes(count, k);
    const int64_t bytes = high_bytes(count, k);
    uint64_t pending = 0;
    int filled = 0;
    int64_t j = 0, least = 0;
    for (int64_t byte = 0; byte < bytes; ++byte) {
        for (uint32_t marks = high[byte]; marks; marks &= marks - 1) {
            if (j == k) return false;
            for (; filled < bits; filled += 8) pending |= (uint64_t)*low++ << filled;
            const int64_t top = byte * 8 + __builtin_ctz(marks) - j;
            const int64_t position = (top << bits) | (int64_t)(pending & ((1ull << bits) - 1));
            pending >>= bits;
            filled -= bits;
            if (position < least || position >= count) return false;
            positions[j++] = position;
            least = position + 1;
        }
    }
    return j == k;
}

}  // namespace thinwire
