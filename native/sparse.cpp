#include "sparse.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "parallel.h"
#include "positions.h"

#define THINWIRE_ISA plain
#include "random.h"

namespace thinwire {
namespace {

using plain::NON_FINITE;

constexpr int64_t GRAIN = 1 << 16;

uint32_t magnitude_of(const float* x) {
    uint32_t bits;
    memcpy(&bits, x, 4);
    return bits & 0x7fffffffu;
}

// Counts of every part of a range and of the whole, one counter per bin.
class Counts {
  public:
    explicit Counts(int bins) : bins_(bins), parts_(most_parts()) {}
    int64_t* of(int part) {
        parts_[part].assign(bins_, 0);
        return parts_[part].data();
    }
    int64_t at(int part, int bin) const { return parts_[part].empty() ? 0 : parts_[part][bin]; }
    int64_t at(int bin) const {
        int64_t total = 0;
        for (size_t part = 0; part < parts_.size(); ++part) total += at((int)part, bin);
        return total;
    }
    // The bin in which the k-th largest lies; k becomes its rank inside that bin.
    int bin_of(int64_t& k) const {
        for (int bin = bins_ - 1; bin > 0; --bin) {
            const int64_t here = at(bin);
            if (k <= here) return bin;
            k -= here;
        }
        return 0;
    }

  private:
    int bins_;
    std::vector<std::vector<int64_t>> parts_;
};

// Two tables take turns: neighbours often share a bin, and one counter can't be raised twice in a row without a wait.
void count_high(const float* x, Range r, int64_t* counts) {
    std::vector<int32_t> even(1 << 16), odd(1 << 16);
    for (int64_t begin = r.begin; begin < r.end; begin += 1 << 30) {
        const int64_t end = std::min(begin + (1 << 30), r.end);
        int64_t i = begin;
        for (; i + 2 <= end; i += 2) {
            ++even[magnitude_of(x + i) >> 15];
            ++odd[magnitude_of(x + i + 1) >> 15];
        }
        if (i < end) ++even[magnitude_of(x + i) >> 15];
        for (int bin = 0; bin < 1 << 16; ++bin) counts[bin] += even[bin] + odd[bin];
        std::fill(even.begin(), even.end(), 0);
        std::fill(odd.begin(), odd.end(), 0);
    }
}

// Exactly where to cut: magnitudes above `threshold` are in, and of those equal to it `ties[part]` in each part.
struct Cut {
    bool finite;
    uint32_t threshold;
    std::vector<int64_t> ties;
};

// A magnitude above which, by a sample, somewhat more than k values lie; 0 where sampling would not pay.
uint32_t likely_least(const float* x, int64_t count, int64_t k) {
    constexpr int64_t FEWEST = 256, MOST = 4096;
    if (count < 2 * FEWEST) return 0;
    const int64_t size = std::clamp(count / 512, FEWEST, MOST);
    const double above = (double)k * size / count;  // of the sample, in the mean; then three standard deviations
    const int64_t rank = (int64_t)(above + 3 * std::sqrt(above) + 3);
    if (rank >= size / 4) return 0;
    std::array<uint32_t, MOST> sample;
    for (int64_t i = 0; i < size; ++i) sample[i] = magnitude_of(x + i * count / size);
    std::nth_element(sample.begin(), sample.begin() + rank, sample.begin() + size, std::greater<uint32_t>());
    return sample[rank];
}

enum class Found { ALL, NOT_FINITE, NOTHING };

// Of all values from `least` up, by one pass over x, the k largest: ascending positions, among equals the first ones.
// NOTHING where there are fewer than k, or more than a `share` of all.
Found largest_from(const Kernels& kernels, const float* x, int64_t count, int64_t k, uint32_t least, int64_t share,
                   std::vector<int64_t>& chosen) {
    struct Part {
        std::unique_ptr<int64_t[]> positions;  // a vector would clear it first
        int64_t found = 0, room = 0;
    };
    std::vector<Part> parts(most_parts());
    parts.resize(parallel(count, 64, GRAIN, [&](int number, Range r) {
        Part& part = parts[number];
        part.room = (r.end - r.begin) / share;
        part.positions.reset(new int64_t[part.room]);
        part.found = kernels.collect(x, r.begin, r.end, least, part.room, part.room, part.positions.get());
    }));
    std::vector<uint32_t> magnitudes;
    for (const Part& part : parts) {
        if (share > 1 && part.found == part.room) return Found::NOTHING;
        for (int64_t i = 0; i < part.found; ++i) magnitudes.push_back(magnitude_of(x + part.positions[i]));
    }
    for (const uint32_t each : magnitudes)
        if (each >= NON_FINITE) return Found::NOT_FINITE;
    if ((int64_t)magnitudes.size() < k) return Found::NOTHING;
    std::nth_element(magnitudes.begin(), magnitudes.begin() + (k - 1), magnitudes.end(), std::greater<uint32_t>());
    const uint32_t threshold = magnitudes[k - 1];
    // After nth_element whatever is above the threshold stands among the first k.
    int64_t ties = std::count(magnitudes.begin(), magnitudes.begin() + k, threshold);
    chosen.clear();
    for (const Part& part : parts)
        for (int64_t i = 0; i < part.found; ++i) {
            const uint32_t own = magnitude_of(x + part.positions[i]);
            if (own > threshold || (own == threshold && ties-- > 0)) chosen.push_back(part.positions[i]);
        }
    return Found::ALL;
}

// A sample tells where to look. Where it misleads, few values are all sorted, for counting them would cost more than
// that, and many are left to the counters.
Found shortlisted(const Kernels& kernels, const float* x, int64_t count, int64_t k, std::vector<int64_t>& chosen) {
    const uint32_t least = likely_least(x, count, k);
    if (count >= GRAIN) return least ? largest_from(kernels, x, count, k, least, 4, chosen) : Found::NOTHING;
    const Found found = largest_from(kernels, x, count, k, least, 1, chosen);
    return found == Found::NOTHING ? largest_from(kernels, x, count, k, 0, 1, chosen) : found;
}

// Two counting passes, upper 16 bits and then lower 15, find the k-th largest magnitude whatever the values are.
Cut find_cut(const Kernels& kernels, const float* x, int64_t count, int64_t k) {
    Counts high(1 << 16), low(1 << 15);
    const int parts = parallel(count, 64, GRAIN, [&](int part, Range r) { count_high(x, r, high.of(part)); });
    for (int bin = NON_FINITE >> 15; bin < 1 << 16; ++bin)
        if (high.at(bin)) return {false, 0, {}};
    const uint32_t prefix = (uint32_t)high.bin_of(k);
    parallel(count, 64, GRAIN, [&](int part, Range r) { kernels.count_low(x, r.begin, r.end, prefix, low.of(part)); });
    const int last = low.bin_of(k);
    Cut cut{true, prefix << 15 | (uint32_t)last, std::vector<int64_t>(parts)};
    for (int part = 0; part < parts; ++part) {
        cut.ties[part] = std::min(k, low.at(part, last));
        k -= cut.ties[part];
    }
    return cut;
}

bool counted(const Kernels& kernels, const float* x, int64_t count, int64_t k, std::vector<int64_t>& chosen) {
    const Cut cut = find_cut(kernels, x, count, k);
    if (!cut.finite) return false;
    std::vector<std::vector<int64_t>> found(cut.ties.size());
    parallel(count, 64, GRAIN, [&](int part, Range r) {
        std::vector<int64_t>& positions = found[part];
        positions.resize(std::min(k, r.end - r.begin) + 1);  // one more than can be right: `select_topk` looks
        const int64_t room = (int64_t)positions.size();
        positions.resize(kernels.collect(x, r.begin, r.end, cut.threshold, cut.ties[part], room, positions.data()));
    });
    chosen.clear();
    for (const auto& positions : found) chosen.insert(chosen.end(), positions.begin(), positions.end());
    return true;
}

// The k largest magnitudes' positions, ascending; among equals the first ones. False where a value is not finite.
bool select_topk(const Kernels& kernels, const float* x, int64_t count, int64_t k, std::vector<int64_t>& chosen) {
    const Found found = shortlisted(kernels, x, count, k, chosen);
    if (found == Found::NOT_FINITE || (found == Found::NOTHING && !counted(kernels, x, count, k, chosen))) return false;
    if ((int64_t)chosen.size() != k) throw std::runtime_error("x was changed by another thread while TopK read it");
    return true;
}

void zero(float* x, int64_t count) {
    parallel(count, 1024, 1 << 16, [&](int, Range r) { memset(x + r.begin, 0, (r.end - r.begin) * sizeof(float)); });
}

}  // namespace

int64_t topk_bytes(int64_t count, int64_t k) { return k ? 4 * k + position_bytes(count, k) : 0; }

bool encode_topk(const Kernels& kernels, const float* x, int64_t count, int64_t k, uint8_t* out) {
    if (k == 0) return true;
    std::vector<int64_t> chosen;
    if (!select_topk(kernels, x, count, k, chosen)) return false;
    for (int64_t j = 0; j < k; ++j) memcpy(out + 4 * j, x + chosen[j], 4);
    write_positions(chosen, count, out + 4 * k);
    return true;
}

namespace {

void add_at(float* x, const uint8_t* data) {
    float value;
    memcpy(&value, data, 4);
    *x += value;
}

}  // namespace

bool decode_topk(const uint8_t* data, int64_t count, int64_t k, float* x) {
    std::vector<int64_t> positions;
    if (!read_positions(data + 4 * k, count, k, positions)) return false;
    zero(x, count);
    for (int64_t j = 0; j < k; ++j) memcpy(x + positions[j], data + 4 * j, 4);
    return true;
}

bool add_topk(const uint8_t* data, int64_t count, int64_t k, float* x) {
    const WithSubnormals scope;
    std::vector<int64_t> positions;
    if (!read_positions(data + 4 * k, count, k, positions)) return false;
    for (int64_t j = 0; j < k; ++j) add_at(x + positions[j], data + 4 * j);
    return true;
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

void add_randomk(const uint8_t* data, int64_t count, int64_t k, uint64_t seed, float* x) {
    for_positions(count, k, seed, [&](int64_t j, uint64_t position) { add_at(x + position, data + 4 * j); });
}

}  // namespace thinwire
