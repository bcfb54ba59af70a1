// Rows to a grid of 2^bits values with stochastic rounding; the specification is codecs/twins/rows.py.
// A row is read twice, the second time from the first-level cache, and never leaves registers in between.
#pragma once
#include "pack.h"
#include "random.h"

namespace thinwire::THINWIRE_ISA {

struct Grid {
    float low, step, inverse;
    uint16_t wire[2];  // low and step as they travel: bfloat16
    bool ok;
};

TW_INLINE float from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

TW_INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// Stochastically rounds what the grid can't hold exactly, never clips: low is rounded down, the step up.
TW_INLINE Grid fit_grid(float low, float high, int levels) {
    Grid g;
    low += 0.0f;  // -0.0 and 0.0 are one minimum: which of them came first must not show on the wire
    uint32_t b = bits_of(low);
    g.wire[0] = (uint16_t)((b + (b >> 31 ? 0xffffu : 0u)) >> 16);
    g.low = from_bfloat16(g.wire[0]);
    float step = (high - g.low) / (float)levels;
    g.wire[1] = 0;
    if (high > g.low) {
        uint32_t up = (bits_of(step) + 0xffffu) >> 16;
        if (up < 0x0080u) up = 0x0080u;  // the least normal step: its inverse is finite
        if ((double)g.low + (double)levels * (double)from_bfloat16((uint16_t)up) < (double)high) up += 1;
        g.wire[1] = (uint16_t)up;
    }
    g.step = from_bfloat16(g.wire[1]);
    g.inverse = g.step > 0.0f ? 1.0f / g.step : 0.0f;
    float top = (float)levels * g.step;
    g.ok = (bits_of(g.low) & 0x7fffffffu) < NON_FINITE && (bits_of(top) & 0x7fffffffu) < NON_FINITE;
    return g;
}

// Minimum and maximum; false where a value is not finite.
TW_INLINE bool range_of(const float* x, int64_t width, float& low, float& high) {
    low = high = width ? x[0] : 0.0f;
    Floats lo = splat(low), hi = lo, lo2 = lo, hi2 = lo, poison{};
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) {
        Floats a = load<Floats>(x + c), b = load<Floats>(x + c + LANES);
        lo = smaller(a, lo), hi = larger(a, hi);
        lo2 = smaller(b, lo2), hi2 = larger(b, hi2);
        poison += (a - a) + (b - b);  // NaN from infinity and NaN, else zero
    }
    low = smallest(smaller(lo, lo2)), high = largest(larger(hi, hi2));
    float bad = 0.0f;
    for (; c < width; ++c) {
        low = x[c] < low ? x[c] : low;
        high = x[c] > high ? x[c] : high;
        bad += x[c] - x[c];
    }
    return bad == 0.0f && !any(poison != poison);
}

template <int BITS>
TW_INLINE Ints quantize(Floats x, Floats low, Floats inverse, Key key, Ints columns) {
    constexpr int LEVELS = (1 << BITS) - 1;
    Floats t = (x - low) * inverse;
    Floats u = uniform(key, columns);
    if constexpr (BITS == 1) {
        return -(u < t);  // t <= 1 up to rounding: the whole part is never needed
    } else {
        Ints whole = truncate(t);
        Ints code = whole - (u < t - to_floats(whole));
        return smaller(code, splat(LEVELS));
    }
}

template <int BITS>
TW_INLINE bool encode_row(const float* x, int64_t width, Key key, uint8_t* out) {
    float lowest, highest;
    if (!range_of(x, width, lowest, highest)) return false;
    const Grid g = fit_grid(lowest, highest, (1 << BITS) - 1);
    if (!g.ok) return false;
    const Floats low = splat(g.low), inverse = splat(g.inverse);
    encode_blocks<BITS>(x, width, g.low, out, [&](const float* from, int64_t column) {
        Codes codes;
        for (int i = 0; i < 4; ++i) {
            const Ints columns = iota() + (int32_t)(column + i * LANES);
            codes.part[i] = quantize<BITS>(load<Floats>(from + i * LANES), low, inverse, key, columns);
        }
        return codes;
    });
    memcpy(out + packed_bytes(width, BITS), g.wire, 4);
    return true;
}

template <int BITS>
TW_INLINE void decode_row(const uint8_t* data, int64_t width, float* x, Put put) {
    uint16_t wire[2];
    memcpy(wire, data + packed_bytes(width, BITS), 4);
    const Floats low = splat(from_bfloat16(wire[0])), step = splat(from_bfloat16(wire[1]));
    decode_blocks<BITS>(data, width, x, put, [&](Ints code) { return to_floats(code) * step + low; });
}

}  // namespace thinwire::THINWIRE_ISA
