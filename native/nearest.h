// Rows in 1, 2, 4 or 8 bits with nothing at random; the specification is codecs/twins/nearest.py.
// A row is read three to five times, all but the first from the first-level cache.
#pragma once
#include <cmath>

#include "rows.h"
#include "variance.h"

namespace thinwire::THINWIRE_ISA {

// A row of x, or with a copy of x - copy, which is then in `left`.
TW_INLINE const float* difference_of(const float* x, const float* copy, int64_t row, int64_t width, float* left) {
    x += row * width;
    if (!copy) return x;
    copy += row * width;
    for (int64_t c = 0; c < width; ++c) left[c] = x[c] - copy[c];
    return left;
}

// A sum in the order of variance.h.
struct Sum {
    Floats parts[SUM_PARTS] = {};
    TW_MEMBER void add(Floats v, int part) { parts[part] += v; }
    TW_MEMBER float total() const { return sum_of(parts); }
};

// Of whole numbers: exact in doubles, in any order.
TW_INLINE double exact_sum(Floats v) {
    typedef double Four TW_VECTOR(32);
    typedef double Two TW_VECTOR(16);
    HalfFloats halves[2];
    memcpy(halves, &v, sizeof v);
    const Doubles sums = __builtin_convertvector(halves[0], Doubles) + __builtin_convertvector(halves[1], Doubles);
    const char* from = (const char*)&sums;
    Two two = load<Two>(from);
    if constexpr (LANES == 16) {
        const Four four = load<Four>(from) + load<Four>(from + 32);
        two = load<Two>(&four) + load<Two>((const char*)&four + 16);
    } else if constexpr (LANES == 8) {
        two += load<Two>(from + 16);
    }
    return two[0] + two[1];
}

// So many values that float32 sums of squared codes are exact: afterwards they are added to doubles.
constexpr int64_t STRETCH = 1 << 18;

// Calls use(values, part, valid) for a row's registers; beyond its end values are 0 and `valid` is 0. With BITS, what
// it returns is a code, which is packed. `rest` is called after each stretch.
template <int BITS, class Use, class Rest>
TW_INLINE void for_row(const float* x, int64_t width, uint8_t* out, Use use, Rest rest) {
    constexpr int STEP = BITS ? BLOCK : SUM_LANES;
    constexpr int REGISTERS = STEP / LANES;
    auto put = [&](const float* from, int64_t column, bool whole, uint8_t* to) {
        Codes codes;
        for (int i = 0; i < REGISTERS; ++i) {
            const Ints valid = whole ? splat(-1) : (Ints)(iota() + (int32_t)(i * LANES) < (int32_t)(width - column));
            if constexpr (BITS) codes.part[i] = use(load<Floats>(from + i * LANES), i % SUM_PARTS, valid) & valid;
            else use(load<Floats>(from + i * LANES), i % SUM_PARTS, valid);
        }
        if constexpr (BITS) put_block<BITS>(codes, to);
    };
    int64_t c = 0;
    while (c < width) {
        const int64_t end = width - c < STRETCH ? width : c + STRETCH;
        for (; c + STEP <= end; c += STEP) put(x + c, c, true, out + c * BITS / 8);
        if (c < end) {
            float tail[STEP] = {};
            uint8_t packed[BITS ? STEP * BITS / 8 : 1];
            memcpy(tail, x + c, (end - c) * sizeof(float));
            put(tail, c, false, packed);
            if constexpr (BITS) memcpy(out + c * BITS / 8, packed, packed_bytes(end - c, BITS));
            c = end;
        }
        rest();
    }
}

template <class Use>
TW_INLINE void for_row(const float* x, int64_t width, Use use) {
    for_row<0>(x, width, nullptr, use, [] {});
}

// A row in units of a power of two near its largest magnitude.
struct Scaled {
    float unit, back, low, high, mean;
    TW_MEMBER Floats y(Floats x, Ints valid) const { return (Floats)((Ints)(x * unit - mean) & valid); }
    TW_MEMBER float between(float v) const {
        v = v > low ? v : low;
        return (v < high ? v : high) + 0.0f;
    }
};

TW_INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Of a row whose sum might overflow, the values are made smaller first.
constexpr uint32_t HUGE_EXPONENT = 187;

// False where a value is not finite.
TW_INLINE bool scale_row(const float* x, int64_t width, Scaled& s, float& lowest, float& highest) {
    lowest = highest = x[0];
    Floats lo[SUM_PARTS], hi[SUM_PARTS], poison{};
    for (int part = 0; part < SUM_PARTS; ++part) lo[part] = hi[part] = splat(x[0]);
    Sum sum;
    for_row(x, width, [&](Floats v, int part, Ints valid) {
        const Floats w = (Floats)(((Ints)v & valid) | ((Ints)lo[part] & ~valid));
        lo[part] = smaller(w, lo[part]), hi[part] = larger(w, hi[part]);
        poison += v - v;  // NaN from infinity and NaN, else zero
        sum.add(v, part);
    });
    for (int part = 1; part < SUM_PARTS; ++part) lo[0] = smaller(lo[part], lo[0]), hi[0] = larger(hi[part], hi[0]);
    if (any(poison != poison)) return false;
    lowest = smallest(lo[0]), highest = largest(hi[0]);
    const uint32_t a = bits_of(lowest) & 0x7fffffffu, b = bits_of(highest) & 0x7fffffffu;
    uint32_t exponent = (a > b ? a : b) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    s.unit = float_of((254 - exponent) << 23), s.back = float_of(exponent << 23);
    s.low = lowest * s.unit, s.high = highest * s.unit;
    float before = 1.0f;
    if (exponent > HUGE_EXPONENT) {
        before = 0x1p-64f;
        sum = Sum{};
        for_row(x, width, [&](Floats v, int part, Ints) { sum.add(v * before, part); });
    }
    s.mean = s.between(sum.total() * (s.unit / before) / (float)width);
    return true;
}

// The nearest bfloat16, never infinite.
TW_INLINE uint16_t to_bfloat16(float x) {
    const uint32_t b = bits_of(x), magnitude = b & 0x7fffffffu;
    const uint32_t rounded = (magnitude + 0x7fffu + ((magnitude >> 16) & 1u)) >> 16;
    return (uint16_t)((rounded < 0x7f7fu ? rounded : 0x7f7fu) | (b >> 31 << 15));
}

// What a row's code became: the two bfloat16 that travel, the squared error in scaled units, can it be sent.
struct Coded {
    uint16_t wire[2];
    double error;
    bool ok;
};

TW_INLINE Coded at_most_the_row(Coded coded, double squares) {
    if (coded.error <= squares) return coded;
    return {{0, 0}, squares, coded.ok};
}

struct TwoMeans {
    Sum above, below;
    int64_t num_above = 0;
    TW_MEMBER Ints add(Floats y, int part) {
        above.add(larger(y, Floats{}), part);
        below.add(smaller(y, Floats{}), part);
        num_above += __builtin_popcount(lanes_above_zero(y));
        return -(Ints)(y > Floats{});
    }
    // Without a moment the error is not asked for.
    TW_MEMBER Coded code(const Scaled& s, int64_t width, double moment) const {
        const float sum_above = above.total(), sum_below = below.total();
        const int64_t num_below = width - num_above;
        const float below_mean = s.between(s.mean + sum_below / (float)num_below);
        const float above_mean = num_above ? s.between(s.mean + sum_above / (float)num_above) : below_mean;
        Coded coded{{to_bfloat16(below_mean * s.back), to_bfloat16(above_mean * s.back)}, 0.0, true};
        const double off_below = (double)from_bfloat16(coded.wire[0]) * (double)s.unit - (double)s.mean;
        const double off_above = (double)from_bfloat16(coded.wire[1]) * (double)s.unit - (double)s.mean;
        double error = moment - 2.0 * (off_below * (double)sum_below + off_above * (double)sum_above);
        error = error + ((double)num_below * off_below * off_below + (double)num_above * off_above * off_above);
        coded.error = error > 0.0 ? error : 0.0;
        return coded;
    }
};

template <int BITS>
TW_INLINE Ints line_codes(Floats y, float inverse, float shift) {
    constexpr float LEVELS = (1 << BITS) - 1;
    return truncate(smaller(larger(y * inverse - shift, Floats{}), splat(LEVELS)));
}

// Codes nearest to a line, and the sums that the best line for them needs.
template <int BITS>
struct Line {
    static constexpr int LEVELS = (1 << BITS) - 1;
    float inverse = 0.0f, shift = 0.0f;
    Floats totals{}, squares{};
    Sum product;
    double total = 0.0, square = 0.0;

    TW_MEMBER Line() = default;
    TW_MEMBER Line(float low, float step) : inverse(step > 0.0f ? 1.0f / step : 0.0f), shift(low * inverse - 0.5f) {}
    TW_MEMBER Ints add(Floats y, int part, Ints valid) {
        const Ints code = line_codes<BITS>(y, inverse, shift) & valid;
        const Floats exact = to_floats(code);
        totals += exact;
        squares += exact * exact;
        product.add(y * exact, part);
        return code;
    }
    TW_MEMBER void rest() {
        total += exact_sum(totals), square += exact_sum(squares);
        totals = squares = Floats{};
    }
    // Slope and intercept of y over the codes; y sums to zero but for rounding.
    TW_MEMBER void fit(int64_t width, double& slope, double& intercept, double& sum_product) const {
        sum_product = (double)product.total();
        const double count = (double)width, spread = count * square - total * total;
        slope = spread > 0.0 ? (count * sum_product) / spread : 0.0;
        slope = slope > 0.0 ? slope : 0.0;
        intercept = -(slope * total) / count;
    }
    TW_MEMBER Line next(int64_t width) const {
        double slope, intercept, sum_product;
        fit(width, slope, intercept, sum_product);
        return Line((float)intercept, (float)slope);
    }
    TW_MEMBER Coded code(const Scaled& s, int64_t width, double moment) const {
        double slope, intercept, sum_product;
        fit(width, slope, intercept, sum_product);
        const double mean = (double)s.mean, count = (double)width;
        Coded coded{{to_bfloat16((float)(mean + intercept) * s.back), to_bfloat16((float)slope * s.back)}, 0.0, true};
        const float low_sent = from_bfloat16(coded.wire[0]), step = from_bfloat16(coded.wire[1]);
        const double off = (double)low_sent * (double)s.unit - mean;
        slope = (double)step * (double)s.unit;
        double error = moment - 2.0 * (slope * sum_product) + (count * off * off + 2.0 * (off * slope * total));
        error = error + slope * slope * square;
        coded.error = error > 0.0 ? error : 0.0;
        const float top = (float)LEVELS * step;
        coded.ok = std::isfinite(top) && std::isfinite(top + low_sent);
        return at_most_the_row(coded, moment + count * (mean * mean));
    }
};

// The even grid from which a row's first line comes. Two bits reach no further than this many deviations.
constexpr float REACH = 1.7f;

template <int BITS>
TW_INLINE Line<BITS> first_line(const Scaled& s, int64_t width, double moment) {
    float low = s.low - s.mean, high = s.high - s.mean;
    if (BITS == 2) {
        const float reach = REACH * sqrtf((float)moment / (float)width);
        low = low > -reach ? low : -reach;
        high = high < reach ? high : reach;
    }
    return Line<BITS>(low, (high - low) / (float)Line<BITS>::LEVELS);
}

TW_INLINE Ints grid_codes(Floats x, const Grid& grid) {
    return smaller(truncate((x - grid.low) * grid.inverse + 0.5f), splat(255));
}

// The grid of Uniform(8), rounded to the nearest.
struct Nearest {
    const Grid grid;
    float unit;
    Sum left;
    TW_MEMBER Ints add(Floats x, int part, Ints valid) {
        const Ints code = grid_codes(x, grid);
        const Floats off = (x - (to_floats(code) * grid.step + grid.low)) * unit;
        left.add((Floats)((Ints)(off * off) & valid), part);
        return code;
    }
    TW_MEMBER Coded code(double squares) const {
        const Coded coded{{grid.wire[0], grid.wire[1]}, (double)left.total(), grid.ok};
        return at_most_the_row(coded, squares);
    }
};

TW_INLINE double moment_of(const float* x, int64_t width, const Scaled& s) {
    Sum sum;
    for_row(x, width, [&](Floats v, int part, Ints valid) {
        const Floats y = s.y(v, valid);
        sum.add(y * y, part);
    });
    return (double)sum.total();
}

template <int BITS>
TW_INLINE Coded code_line(const float* x, int64_t width, const Scaled& s, uint8_t* out) {
    double moment = BITS == 2 ? moment_of(x, width, s) : 0.0;
    Line<BITS> first = first_line<BITS>(s, width, moment);
    Sum sum;
    for_row<0>(
        x, width, nullptr,
        [&](Floats v, int part, Ints valid) {
            const Floats y = s.y(v, valid);
            if (BITS > 2) sum.add(y * y, part);
            first.add(y, part, valid);
        },
        [&] { first.rest(); });
    if (BITS > 2) moment = (double)sum.total();
    Line<BITS> line = first.next(width);
    for_row<BITS>(
        x, width, out, [&](Floats v, int part, Ints valid) { return line.add(s.y(v, valid), part, valid); },
        [&] { line.rest(); });
    return line.code(s, width, moment);
}

template <int BITS>
TW_INLINE Coded code_row(const float* x, int64_t width, const Scaled& s, float lowest, float highest, uint8_t* out) {
    if constexpr (BITS == 1) {
        TwoMeans means;
        for_row<1>(
            x, width, out, [&](Floats v, int part, Ints valid) { return means.add(s.y(v, valid), part); }, [] {});
        return means.code(s, width, 0.0);
    } else if constexpr (BITS == 8) {
        Nearest nearest{fit_grid(lowest, highest, 255), s.unit, {}};
        Sum squares;
        for_row<8>(
            x, width, out,
            [&](Floats v, int part, Ints valid) {
                const Floats scaled = v * s.unit;
                squares.add(scaled * scaled, part);
                return nearest.add(v, part, valid);
            },
            [] {});
        return nearest.code((double)squares.total());
    } else {
        return code_line<BITS>(x, width, s, out);
    }
}

template <int BITS>
TW_INLINE bool encode_nearest_row(const float* x, int64_t width, uint8_t* out) {
    Coded coded{{0, 0}, 0.0, true};
    if (width) {
        Scaled s;
        float lowest, highest;
        if (!scale_row(x, width, s, lowest, highest)) return false;
        coded = code_row<BITS>(x, width, s, lowest, highest, out);
    }
    memcpy(out + packed_bytes(width, BITS), coded.wire, 4);
    return coded.ok;
}

template <int BITS>
TW_INLINE void decode_nearest_row(const uint8_t* data, int64_t width, float* x, Put put) {
    if constexpr (BITS == 1) {
        uint16_t wire[2];
        memcpy(wire, data + packed_bytes(width, 1), 4);
        const Floats below = splat(from_bfloat16(wire[0])), above = splat(from_bfloat16(wire[1]));
        decode_blocks<1>(data, width, x, put, [&](Ints code) { return code != 0 ? above : below; });
    } else {
        decode_row<BITS>(data, width, x, put);
    }
}

// The squared error left at 0, 1, 2, 4 and 8 bits: all in four passes over the row.
TW_INLINE void nearest_errors_of(const float* x, int64_t width, double* out) {
    Scaled s;
    float lowest, highest;
    const bool finite = !width || scale_row(x, width, s, lowest, highest);
    if (!finite || !width) {
        for (int i = 0; i < 5; ++i) out[i] = finite ? 0.0 : __builtin_nan("");
        return;
    }
    Nearest grid{fit_grid(lowest, highest, 255), s.unit, {}};
    Sum sum, squared;
    TwoMeans means;
    Line<4> four = first_line<4>(s, width, 0.0);
    for_row<0>(
        x, width, nullptr,
        [&](Floats v, int part, Ints valid) {
            const Floats scaled = v * s.unit, y = s.y(v, valid);
            squared.add(scaled * scaled, part);
            sum.add(y * y, part);
            means.add(y, part);
            grid.add(v, part, valid);
            four.add(y, part, valid);
        },
        [&] { four.rest(); });
    const double moment = (double)sum.total(), squares = (double)squared.total();
    Line<2> first = first_line<2>(s, width, moment);
    four = four.next(width);
    for_row<0>(
        x, width, nullptr,
        [&](Floats v, int part, Ints valid) {
            const Floats y = s.y(v, valid);
            first.add(y, part, valid);
            four.add(y, part, valid);
        },
        [&] { first.rest(), four.rest(); });
    Line<2> two = first.next(width);
    for_row<0>(
        x, width, nullptr, [&](Floats v, int part, Ints valid) { two.add(s.y(v, valid), part, valid); },
        [&] { two.rest(); });
    const double back = (double)s.back;
    auto original = [&](const Coded& coded) { return coded.ok ? coded.error * back * back : __builtin_inf(); };
    out[0] = squares * back * back;
    out[1] = original(means.code(s, width, moment));
    out[2] = original(two.code(s, width, moment));
    out[3] = original(four.code(s, width, moment));
    out[4] = original(grid.code(squares));
}

}  // namespace thinwire::THINWIRE_ISA
