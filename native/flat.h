// Tensors as one flat run of values with one scale: signs, TernGrad, QSGD's buckets; specification:
// codecs/twins/flat.py.
#pragma once
#include <cmath>

#include "kernels.h"
#include "pack.h"
#include "random.h"

namespace thinwire::THINWIRE_ISA {

// The largest magnitude's bits; NON_FINITE or more where a value is not finite.
TW_INLINE uint32_t largest_magnitude(const float* x, int64_t count) {
    Words most{}, most2{};
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        most = larger(magnitude(load<Floats>(x + i)), most);
        most2 = larger(magnitude(load<Floats>(x + i + LANES)), most2);
    }
    most = larger(most, most2);
    uint32_t result = 0;
    for (int lane = 0; lane < LANES; ++lane) result = most[lane] > result ? most[lane] : result;
    for (; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffffu;
        result = bits > result ? bits : result;
    }
    return result;
}

enum class Term { magnitude, product };  // |x| or x y

// Sum of rint(term * scale) for a run. The scale keeps the total below 2^WHOLE_BITS, so every partial sum is a whole
// number that a double holds exactly, and the order of adding can't show.
template <Term TERM>
TW_INLINE double whole_sum(const float* x, const float* y, int64_t count, double scale) {
    constexpr double ROUND = 0x1.8p52;  // adding and taking it away rounds to a whole number
    Doubles total{}, total2{};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        Doubles a = __builtin_convertvector(load<HalfFloats>(x + i), Doubles);
        Doubles b = __builtin_convertvector(load<HalfFloats>(x + i + LANES / 2), Doubles);
        if constexpr (TERM == Term::product) {
            a *= __builtin_convertvector(load<HalfFloats>(y + i), Doubles);
            b *= __builtin_convertvector(load<HalfFloats>(y + i + LANES / 2), Doubles);
        } else {
            a = a < 0.0 ? -a : a;
            b = b < 0.0 ? -b : b;
        }
        total += (a * scale + ROUND) - ROUND;
        total2 += (b * scale + ROUND) - ROUND;
    }
    total += total2;
    double sum = 0.0;
    for (int lane = 0; lane < LANES / 2; ++lane) sum += total[lane];
    for (; i < count; ++i) {
        double v = x[i];
        v = TERM == Term::product ? v * (double)y[i] : (v < 0.0 ? -v : v);
        sum += (v * scale + ROUND) - ROUND;
    }
    return sum;
}

// The exponent of a run's largest magnitude, as frexp counts it.
TW_INLINE int exponent_of(uint32_t most) {
    float largest;
    memcpy(&largest, &most, 4);
    int exponent;
    frexpf(largest, &exponent);
    return exponent;
}

// Sum over at most RUN values, independent of the order of adding; NaN where a value is not finite.
template <Term TERM>
TW_INLINE double run_sum(const float* x, const float* y, int64_t count) {
    const uint32_t most = largest_magnitude(x, count), most_y = y == x ? most : largest_magnitude(y, count);
    if (most >= NON_FINITE || most_y >= NON_FINITE) return __builtin_nan("");
    if (most == 0 || most_y == 0) return 0.0;
    int digits = 0;
    while (((int64_t)1 << digits) < count) ++digits;
    const int exponent = exponent_of(most) + (TERM == Term::product ? exponent_of(most_y) : 0);
    const int shift = WHOLE_BITS - digits - exponent;
    return ldexp(whole_sum<TERM>(x, y, count, ldexp(1.0, shift)), -shift);
}

struct Sign {
    static constexpr int BITS = 1;
    static constexpr float PAD = -1.0f;  // codes to 0
    float scale;
    TW_INLINE Ints code(const Sign&, Floats x, Key, Ints) { return -(x >= 0.0f); }
    TW_INLINE Floats value(const Sign& s, Ints code) { return code != 0 ? splat(s.scale) : splat(-s.scale); }
};

struct Ternary {
    static constexpr int BITS = 2;
    static constexpr float PAD = 0.0f;
    float scale;
    TW_INLINE Ints code(const Ternary& s, Floats x, Key key, Ints columns) {
        Ints sent = uniform(key, columns) < (Floats)magnitude(x) / s.scale;  // 0 / 0 is NaN, and NaN sends nothing
        return sent & (1 - (x < 0.0f));
    }
    TW_INLINE Floats value(const Ternary& s, Ints code) {
        Floats positive = code == 1 ? splat(s.scale) : splat(0.0f);
        return code == 2 ? splat(-s.scale) : positive;
    }
};

// QSGD: a sign and a level of |x| / norm, in BITS bits.
template <int WIDTH>
struct Levels {
    static constexpr int BITS = WIDTH;
    static constexpr float PAD = 0.0f;
    static constexpr int TOP = (1 << (WIDTH - 1)) - 1;
    float inverse, unit;  // levels per value, value per level
    TW_INLINE Ints code(const Levels& s, Floats x, Key key, Ints columns) {
        Floats t = (Floats)magnitude(x) * s.inverse;
        Ints whole = truncate(t);
        Ints level = whole - (uniform(key, columns) < t - to_floats(whole));
        return smaller(level, splat(TOP)) | ((x < 0.0f) & (TOP + 1));
    }
    TW_INLINE Floats value(const Levels& s, Ints code) {
        Floats v = to_floats(code & TOP) * s.unit;
        return code > TOP ? -v : v;
    }
};

template <class Coder>
TW_INLINE void encode_run(const Coder& coder, const float* x, int64_t count, Key key, uint8_t* out) {
    encode_blocks<Coder::BITS>(x, count, Coder::PAD, out, [&](const float* from, int64_t column) {
        Codes codes;
        for (int i = 0; i < 4; ++i) {
            const Ints columns = iota() + (int32_t)(column + i * LANES);
            codes.part[i] = Coder::code(coder, load<Floats>(from + i * LANES), key, columns);
        }
        return codes;
    });
}

template <class Coder>
TW_INLINE void decode_run(const Coder& coder, const uint8_t* data, int64_t count, float* x, Put put) {
    decode_blocks<Coder::BITS>(data, count, x, put, [&](Ints code) { return Coder::value(coder, code); });
}

// QSGD's L2 norm of a bucket, rounded to float32 as the receiver will see it; below 0 where a value is not finite.
TW_INLINE float bucket_norm(const float* x, int64_t count) {
    double total = 0.0;
    for (int64_t i = 0; i < count; i += RUN) {
        const double sum = run_sum<Term::product>(x + i, x + i, count - i < RUN ? count - i : RUN);
        if (!(sum >= 0.0)) return -1.0f;
        total += sum;
    }
    return (float)sqrt(total);
}

// The norm 2^-100 stands in for anything smaller: its inverse stays finite.
template <int BITS>
TW_INLINE Levels<BITS> levels_of(float norm) {
    constexpr float TOP = Levels<BITS>::TOP;
    norm = norm > 0x1p-100f ? norm : 0x1p-100f;
    return {TOP / norm, norm / TOP};
}

}  // namespace thinwire::THINWIRE_ISA
