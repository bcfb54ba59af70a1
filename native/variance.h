// What rounding a row at random adds: the sum of f (1 - f) step^2 over its values, f where each lies between two codes.
// The specification is codecs/twins/variance.py, with the order of adding: column c in lane c % 16, lanes by halves.
#pragma once
#include "rows.h"

namespace thinwire::THINWIRE_ISA {

constexpr int SUM_LANES = 16;
constexpr int SUM_PARTS = SUM_LANES / LANES;

// By halves: registers of 16, 8, 4, 2 lanes.
TW_INLINE float sum_of(const Floats* parts) {
    typedef float Eight TW_VECTOR(32);
    typedef float Four TW_VECTOR(16);
    const char* from = (const char*)parts;
    const Eight eight = load<Eight>(from) + load<Eight>(from + 32);
    Four low, high;
    memcpy(&low, &eight, 16);
    memcpy(&high, (const char*)&eight + 16, 16);
    low += high;
    return (low[0] + low[2]) + (low[1] + low[3]);
}

TW_INLINE float row_variance(const float* x, int64_t width, float lowest, float highest, int levels) {
    const Grid g = fit_grid(lowest, highest, levels);
    if (!g.ok) return __builtin_inff();
    const Floats low = splat(g.low), inverse = splat(g.inverse);
    Floats sums[SUM_PARTS] = {};
    auto add = [&](const float* from, int part) {
        Floats t = (load<Floats>(from) - low) * inverse;
        Floats f = t - to_floats(truncate(t));
        sums[part] += f * (1.0f - f);
    };
    int64_t c = 0;
    for (; c + SUM_LANES <= width; c += SUM_LANES)
        for (int part = 0; part < SUM_PARTS; ++part) add(x + c + part * LANES, part);
    if (c < width) {
        float last[SUM_LANES];
        for (int i = 0; i < SUM_LANES; ++i) last[i] = c + i < width ? x[c + i] : g.low;  // at a code: adds 0
        for (int part = 0; part < SUM_PARTS; ++part) add(last + part * LANES, part);
    }
    return sum_of(sums) * (g.step * g.step);
}

}  // namespace thinwire::THINWIRE_ISA
