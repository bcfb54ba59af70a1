// Rows measured at a few choices of bits, as far as each is worth knowing, and then encoded in one pass from what was
// found: errors and bytes are those of nearest.h. Rows go through each pass together, as the end of one row's pass is a
// chain of single numbers, which another row's values hide.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels.h"
#include "nearest.h"
#include "neighbours.h"

namespace thinwire::THINWIRE_ISA {

// Differences of a few rows, or the rows themselves where there is no copy, in the first-level cache.
class Together {
  public:
    static constexpr int MOST = 8;
    const float* rows[MOST];
    int64_t numbers[MOST];

    Together(const float* x, const float* copy, int64_t width)
        : most((int)std::clamp<int64_t>(4096 / width, 1, MOST)),
          x_(x),
          copy_(copy),
          width_(width),
          stride_((width + LANES - 1) / LANES * LANES),
          room_(copy ? stride_ * most + LANES : 0) {
        // A register that lies across two lines of the cache takes twice as long to load.
        const uintptr_t begin = ((uintptr_t)room_.data() + TW_BYTES - 1) & ~(uintptr_t)(TW_BYTES - 1);
        left_ = (float*)begin;
    }
    // Takes a row; `next` is the one that will be at this place in the next block, or -1.
    TW_MEMBER void take(int place, int64_t row, int64_t next) {
        rows[place] = difference_of(x_, copy_, row, width_, left_ + place * stride_);
        numbers[place] = row;
        next_[place] = next;
        fetched_[place] = next < 0 ? 2 : 0;
    }
    // Fetches half of what the next block needs at this place: called between passes, so that memory is always busy.
    TW_MEMBER void fetch(int place) {
        if (fetched_[place] == 2) return;
        const float* from = fetched_[place]++ ? copy_ : x_;
        if (from) fetch_ahead(from + next_[place] * width_, 4 * width_);
    }

    const int most;

  private:
    const float *x_, *copy_;
    int64_t width_, stride_, next_[MOST];
    int fetched_[MOST];
    std::vector<float> room_;
    float* left_;
};

// The errors at 0 and 1 bits of neighbouring rows, and what later passes start from; NaN where a value is not finite.
TW_INLINE void measure_together(Together& block, int count, int64_t width, Measured* out) {
    out += block.numbers[0];
    Scaled scaled[Together::MOST];
    TwoMeans means[Together::MOST];
    bool finite[Together::MOST];
    for (int i = 0; i < count; ++i) {
        block.fetch(i);
        finite[i] = scale_row(block.rows[i], width, scaled[i], out[i].lowest, out[i].highest);
    }
    for (int i = 0; i < count; ++i) {
        if (!finite[i]) continue;
        block.fetch(i);
        const Scaled s = scaled[i];
        Sum sum, squared;
        TwoMeans own;
        for_row(block.rows[i], width, [&](Floats v, int part, Ints valid) {
            const Floats scaled = v * s.unit, y = s.y(v, valid);
            squared.add(scaled * scaled, part);
            sum.add(y * y, part);
            own.add(y, part);
        });
        means[i] = own;
        out[i].squares = (double)squared.total(), out[i].moment = (double)sum.total();
    }
    for (int i = 0; i < count; ++i) {
        Measured& m = out[i];
        for (double& error : m.errors) error = finite[i] ? __builtin_inf() : __builtin_nan("");
        if (!finite[i]) continue;
        const Scaled& s = scaled[i];
        const Coded coded = means[i].code(s, width, m.moment);
        const double back = (double)s.back;
        m.unit = s.unit, m.mean = s.mean, m.known = 1;
        memcpy(m.sent[0].wire, coded.wire, 4);
        m.errors[0] = m.squares * back * back, m.errors[1] = coded.error * back * back;
    }
}

TW_INLINE Scaled scaled_of(const Measured& m) {
    const float back = float_of((254u << 23) - bits_of(m.unit));
    return {m.unit, back, m.lowest * m.unit, m.highest * m.unit, m.mean};
}

TW_INLINE void note(const Coded& coded, int choice, Measured& m) {
    const double back = (double)scaled_of(m).back;
    memcpy(m.sent[choice - 1].wire, coded.wire, 4);
    m.errors[choice] = coded.ok ? coded.error * back * back : __builtin_inf();
    m.known = choice;
}

template <int BITS>
TW_INLINE void measure_line(const float* x, int64_t width, const Measured& m, Line<BITS>& line) {
    const Scaled s = scaled_of(m);
    Line<BITS> own = line;
    for_row<0>(
        x, width, nullptr, [&](Floats v, int part, Ints valid) { own.add(s.y(v, valid), part, valid); },
        [&] { own.rest(); });
    line = own;
}

// At 2 or 4 bits, of so many of the block's places.
template <int BITS, int CHOICE>
TW_INLINE void measure_lines(Together& block, const int* places, int count, int64_t width, Measured* out) {
    Line<BITS> lines[Together::MOST];
    auto row = [&](int i) -> Measured& { return out[block.numbers[places[i]]]; };
    for (int i = 0; i < count; ++i) lines[i] = first_line<BITS>(scaled_of(row(i)), width, row(i).moment);
    for (int i = 0; i < count; ++i) {
        block.fetch(places[i]);
        measure_line(block.rows[places[i]], width, row(i), lines[i]);
    }
    for (int i = 0; i < count; ++i) {
        lines[i] = lines[i].next(width);
        row(i).sent[CHOICE - 1].inverse = lines[i].inverse, row(i).sent[CHOICE - 1].shift = lines[i].shift;
    }
    for (int i = 0; i < count; ++i) {
        block.fetch(places[i]);
        measure_line(block.rows[places[i]], width, row(i), lines[i]);
    }
    for (int i = 0; i < count; ++i) note(lines[i].code(scaled_of(row(i)), width, row(i).moment), CHOICE, row(i));
}

TW_INLINE void measure_grids(Together& block, const int* places, int count, int64_t width, Measured* out) {
    for (int i = 0; i < count; ++i) {
        Measured& m = out[block.numbers[places[i]]];
        Nearest grid{fit_grid(m.lowest, m.highest, 255), m.unit, {}};
        for_row(block.rows[places[i]], width, [&](Floats v, int part, Ints valid) { grid.add(v, part, valid); });
        note(grid.code(m.squares), 4, m);
    }
}

// 2, 4 and 8 bits, as far as is wanted of each row.
inline void measure_wanted(Together& block, int count, int64_t width, const Wanted& wanted, Measured* out) {
    for (int choice = 2; choice <= 4; ++choice) {
        int places[Together::MOST], num_places = 0;
        for (int i = 0; i < count; ++i) {
            const Measured& row = out[block.numbers[i]];
            if (row.known == choice - 1 && wanted(row, block.numbers[i], choice)) places[num_places++] = i;
        }
        if (choice == 2) measure_lines<2, 2>(block, places, num_places, width, out);
        else if (choice == 3) measure_lines<4, 3>(block, places, num_places, width, out);
        else measure_grids(block, places, num_places, width, out);
    }
}

// As encode_nearest_row, of a row that was measured at these bits.
template <int BITS>
TW_INLINE void encode_measured_row(const float* x, int64_t width, const Measured& m, uint8_t* out) {
    const Scaled s = scaled_of(m);
    const Measured::Sent& sent = m.sent[BITS == 8 ? 3 : BITS / 2];
    const Grid grid = BITS == 8 ? fit_grid(m.lowest, m.highest, 255) : Grid{};
    for_row<BITS>(
        x, width, out,
        [&](Floats v, int, Ints valid) {
            if constexpr (BITS == 1) return -(Ints)(s.y(v, valid) > Floats{});
            else if constexpr (BITS == 8) return grid_codes(v, grid);
            else return line_codes<BITS>(s.y(v, valid), sent.inverse, sent.shift);
        },
        [] {});
    memcpy(out + packed_bytes(width, BITS), sent.wire, 4);
}

}  // namespace thinwire::THINWIRE_ISA
