#include "sparse.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "parallel.h"

#define THINWIRE_ISA plain
#include "random.h"

namespace thinwire {
namespace {

using plain::NON_FINITE;

// Magnitudes sorted into bins by exponent and three bits of mantissa.
constexpr int BIN_SHIFT = 20;
constexpr int BINS = 1 << (31 - BIN_SHIFT);
using Histogram = std::array<int64_t, BINS>;

uint32_t magnitude_of(const float* x) {
    uint32_t bits;
    memcpy(&bits, x, 4);
    return bits & 0x7fffffffu;
}

// Four tables take turns: neighbours often share a bin, and a counter can't be raised twice in a row without a wait.
Histogram histogram_of(const float* x, int64_t begin, int64_t end) {
    std::vector<std::array<int64_t, BINS>> tables(4);
    int64_t i = begin;
    for (; i + 4 <= end; i += 4)
        for (int t = 0; t < 4; ++t) ++tables[t][magnitude_of(x + i + t) >> BIN_SHIFT];
    for (; i < end; ++i) ++tables[0][magnitude_of(x + i) >> BIN_SHIFT];
    for (int t = 1; t < 4; ++t)
        for (int bin = 0; bin < BINS; ++bin) tables[0][bin] += tables[t][bin];
    return tables[0];
}

// The k largest magnitudes' positions, ascending; among equals the first ones. False where a value is not finite.
bool select_topk(const Kernels& kernels, const float* x, int64_t count, int64_t k, std::vector<int64_t>& chosen) {
    constexpr int64_t GRAIN = 1 << 16;
    std::vector<Histogram> histograms(most_parts());
    const int parts = parallel(count, 64, GRAIN,
                               [&](int part, Range r) { histograms[part] = histogram_of(x, r.begin, r.end); });
    Histogram total{};
    for (int part = 0; part < parts; ++part)
        for (int bin = 0; bin < BINS; ++bin) total[bin] += histograms[part][bin];
    for (int bin = NON_FINITE >> BIN_SHIFT; bin < BINS; ++bin)
        if (total[bin]) return false;
    int lowest = BINS;
    for (int64_t above = 0; above < k; above += total[lowest]) --lowest;

    std::vector<std::vector<int64_t>> found(parts);
    parallel(count, 64, GRAIN, [&](int part, Range r) {
        int64_t expected = 0;
        for (int bin = lowest; bin < BINS; ++bin) expected += histograms[part][bin];
        found[part].resize(expected + 1);
        kernels.collect(x, r.begin, r.end, (uint32_t)lowest << BIN_SHIFT, found[part].data());
        found[part].pop_back();
    });

    std::vector<uint32_t> magnitudes;
    for (const auto& positions : found)
        for (int64_t position : positions) magnitudes.push_back(magnitude_of(x + position));
    std::nth_element(magnitudes.begin(), magnitudes.begin() + (k - 1), magnitudes.end(), std::greater<uint32_t>());
    const uint32_t least = magnitudes[k - 1];
    int64_t equals = k - std::count_if(magnitudes.begin(), magnitudes.end(), [&](uint32_t m) { return m > least; });
    chosen.clear();
    chosen.reserve(k);
    for (const auto& positions : found)
        for (int64_t position : positions) {
            const uint32_t m = magnitude_of(x + position);
            if (m > least || (m == least && equals-- > 0)) chosen.push_back(position);
        }
    return true;
}

void zero(float* x, int64_t count) {
    parallel(count, 1024, 1 << 16, [&](int, Range r) { memset(x + r.begin, 0, (r.end - r.begin) * sizeof(float)); });
}

int low_bits(int64_t count, int64_t k) {
    int bits = 0;
    while ((k << (bits + 1)) <= count) ++bits;
    return bits;
}

int64_t low_bytes(int64_t count, int64_t k) { return (k * low_bits(count, k) + 7) / 8; }
int64_t high_bytes(int64_t count, int64_t k) { return (k + ((count - 1) >> low_bits(count, k)) + 7) / 8; }

}  // namespace

int64_t topk_bytes(int64_t count, int64_t k) { return k ? 4 * k + low_bytes(count, k) + high_bytes(count, k) : 0; }

bool encode_topk(const Kernels& kernels, const float* x, int64_t count, int64_t k, uint8_t* out) {
    if (k == 0) return true;
    std::vector<int64_t> chosen;
    if (!select_topk(kernels, x, count, k, chosen)) return false;
    const int bits = low_bits(count, k);
    uint8_t* low = out + 4 * k;
    uint8_t* high = low + low_bytes(count, k);
    memset(high, 0, high_bytes(count, k));
    uint64_t pending = 0;
    int filled = 0;
    for (int64_t j = 0; j < k; ++j) {
        const uint64_t position = (uint64_t)chosen[j];
        memcpy(out + 4 * j, x + position, 4);
        pending |= (position & ((1ull << bits) - 1)) << filled;
        for (filled += bits; filled >= 8; filled -= 8, pending >>= 8) *low++ = (uint8_t)pending;
        const uint64_t mark = (position >> bits) + (uint64_t)j;
        high[mark / 8] |= (uint8_t)(1u << (mark % 8));
    }
    if (filled) *low = (uint8_t)pending;
    return true;
}

bool decode_topk(const uint8_t* data, int64_t count, int64_t k, float* x) {
    zero(x, count);
    if (k == 0) return true;
    const int bits = low_bits(count, k);
    const uint8_t* low = data + 4 * k;
    const uint8_t* high = low + low_bytes(count, k);
    const int64_t bytes = high_bytes(count, k);
    uint64_t pending = 0;
    int filled = 0;
    int64_t j = 0;
    for (int64_t byte = 0; byte < bytes; ++byte) {
        for (uint32_t marks = high[byte]; marks; marks &= marks - 1) {
            if (j == k) return false;
            for (; filled < bits; filled += 8) pending |= (uint64_t)*low++ << filled;
            const int64_t top = byte * 8 + __builtin_ctz(marks) - j;
            const int64_t position = (top << bits) | (int64_t)(pending & ((1ull << bits) - 1));
            pending >>= bits;
            filled -= bits;
            if (position >= count) return false;
            memcpy(x + position, data + 4 * j, 4);
            ++j;
        }
    }
    return j == k;
}

namespace {

// A keyed permutation of 0..count-1: four Feistel rounds over the next even power of two, walked until inside.
class Permutation {
  public:
    Permutation(uint64_t seed, int64_t count) : count_((uint64_t)count) {
        while ((1ull << (2 * half_)) < count_) ++half_;
        for (int round = 0; round < 4; ++round) keys_[round] = plain::row_key(seed, round);
    }
    uint64_t operator()(uint64_t i) const {
        do i = once(i);
        while (i >= count_);
        return i;
    }

  private:
    uint64_t once(uint64_t i) const {
        uint32_t left = (uint32_t)(i >> half_), right = (uint32_t)(i & ((1ull << half_) - 1));
        for (const auto& key : keys_) {
            const uint32_t next = left ^ (plain::hash(key, right) >> (32 - half_));
            left = right;
            right = next;
        }
        return ((uint64_t)left << half_) | right;
    }
    uint64_t count_;
    int half_ = 1;
    std::array<plain::Key, 4> keys_;
};

}  // namespace

namespace {

// Hands out positions in small batches: drawing them is all branches, fetching from them all cache misses, and only
// apart from each other can the misses overlap.
template <class Use>
void for_positions(int64_t count, int64_t k, uint64_t seed, Use use) {
    const Permutation pick(seed, count);
    parallel(k, 1, 1 << 12, [&](int, Range r) {
        constexpr int64_t BATCH = 256;
        uint64_t positions[BATCH];
        for (int64_t begin = r.begin; begin < r.end; begin += BATCH) {
            const int64_t end = std::min(begin + BATCH, r.end);
            for (int64_t j = begin; j < end; ++j) positions[j - begin] = pick((uint64_t)j);
            for (int64_t j = begin; j < end; ++j) use(j, positions[j - begin]);
        }
    });
}

}  // namespace

bool encode_randomk(const float* x, int64_t count, int64_t k, float gain, uint64_t seed, uint8_t* out) {
    std::atomic<bool> ok{true};
    for_positions(count, k, seed, [&](int64_t j, uint64_t position) {
        const float value = x[position] * gain;
        if (magnitude_of(&value) >= NON_FINITE) ok = false;
        memcpy(out + 4 * j, &value, 4);
    });
    return ok;
}

void decode_randomk(const uint8_t* data, int64_t count, int64_t k, uint64_t seed, float* x) {
    zero(x, count);
    for_positions(count, k, seed, [&](int64_t j, uint64_t position) { memcpy(x + position, data + 4 * j, 4); });
}

}  // namespace thinwire
