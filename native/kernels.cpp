// One instruction set's kernels: this file is compiled once per set, THINWIRE_ISA naming it. Only switches live here.
#include "kernels.h"

#include <algorithm>
#include <vector>

#include "copy.h"
#include "drop.h"
#include "flat.h"
#include "measured.h"
#include "nearest.h"
#include "neighbours.h"
#include "rows.h"
#include "variance.h"

#define TW_TEXT2(x) #x
#define TW_TEXT(x) TW_TEXT2(x)
#define TW_JOIN2(a, b) a##b
#define TW_JOIN(a, b) TW_JOIN2(a, b)

namespace thinwire::THINWIRE_ISA {
namespace {

bool encode_one(const float* x, int64_t width, int bits, Key key, uint8_t* out) {
    switch (bits) {
        case 1: return encode_row<1>(x, width, key, out);
        case 2: return encode_row<2>(x, width, key, out);
        case 4: return encode_row<4>(x, width, key, out);
        case 8: return encode_row<8>(x, width, key, out);
        case 16: return encode_row<16>(x, width, key, out);
        case 32: return encode_copy<Single>(x, width, out);
        default: return true;  // 0: the row is not sent
    }
}

void decode_one(const uint8_t* data, int64_t width, int bits, float* x, Put put) {
    switch (bits) {
        case 1: return decode_row<1>(data, width, x, put);
        case 2: return decode_row<2>(data, width, x, put);
        case 4: return decode_row<4>(data, width, x, put);
        case 8: return decode_row<8>(data, width, x, put);
        case 16: return decode_row<16>(data, width, x, put);
        case 32: return decode_copy<Single>(data, width, x, put);
        default: return;  // 0: the receiver keeps what it has
    }
}

bool encode_rows(const float* x, int64_t begin, int64_t end, int64_t width, int bits, const uint8_t* widths,
                 const int64_t* offsets, uint64_t seed, uint8_t* out) {
    const int64_t stride = packed_bytes(width, bits) + 4;
    for (int64_t row = begin; row < end; ++row) {
        uint8_t* to = out + (widths ? offsets[row] : row * stride);
        if (!encode_one(x + row * width, width, widths ? widths[row] : bits, row_key(seed, row), to)) return false;
    }
    return true;
}

void decode_rows(const uint8_t* data, int64_t begin, int64_t end, int64_t width, int bits, const uint8_t* widths,
                 const int64_t* offsets, float* x, Put put) {
    const int64_t stride = packed_bytes(width, bits) + 4;
    for (int64_t row = begin; row < end; ++row) {
        const uint8_t* from = data + (widths ? offsets[row] : row * stride);
        decode_one(from, width, widths ? widths[row] : bits, x + row * width, put);
    }
    end_of_stream();
}

template <class Format>
bool encode_range(const float* x, int64_t begin, int64_t end, uint8_t* out) {
    return encode_copy<Format>(x + begin, end - begin, out + begin * Format::BYTES);
}

bool encode_format(const float* x, int64_t begin, int64_t end, int format, uint8_t* out) {
    if (format == 32) return encode_range<Single>(x, begin, end, out);
    return format == 16 ? encode_range<Half>(x, begin, end, out) : encode_range<Brain>(x, begin, end, out);
}

void decode_format(const uint8_t* data, int64_t begin, int64_t end, int format, float* x, Put put) {
    if (format == 32) return decode_copy<Single>(data + begin * 4, end - begin, x + begin, put);
    if (format == 16) return decode_copy<Half>(data + begin * 2, end - begin, x + begin, put);
    return decode_copy<Brain>(data + begin * 2, end - begin, x + begin, put);
}

template <class Coder>
void encode_runs(float scale, const float* x, int64_t begin, int64_t end, uint64_t seed, uint8_t* out) {
    for (int64_t i = begin; i < end; i += RUN) {
        int64_t count = end - i < RUN ? end - i : RUN;
        encode_run(Coder{scale}, x + i, count, row_key(seed, i / RUN), out + i * Coder::BITS / 8);
    }
}

void encode_scaled(const float* x, int64_t begin, int64_t end, int bits, float scale, uint64_t seed, uint8_t* out) {
    if (bits == 1) return encode_runs<Sign>(scale, x, begin, end, seed, out);
    encode_runs<Ternary>(scale, x, begin, end, seed, out);
}

void decode_scaled(const uint8_t* data, int64_t begin, int64_t end, int bits, float scale, float* x, Put put) {
    if (bits == 1) decode_run(Sign{scale}, data + begin / 8, end - begin, x + begin, put);
    else decode_run(Ternary{scale}, data + begin / 4, end - begin, x + begin, put);
    end_of_stream();
}

uint32_t largest_in(const float* x, int64_t begin, int64_t end) { return largest_magnitude(x + begin, end - begin); }

double sum_in(const float* x, int64_t begin, int64_t end) {
    return run_sum<Term::magnitude>(x + begin, x + begin, end - begin);
}

double product_in(const float* x, const float* y, int64_t begin, int64_t end) {
    return run_sum<Term::product>(x + begin, y + begin, end - begin);
}

template <int BITS>
bool encode_bucket_range(const float* x, int64_t begin, int64_t end, int64_t bucket, int64_t count, uint64_t seed,
                         uint8_t* out) {
    const int64_t stride = packed_bytes(bucket, BITS) + 4;
    for (int64_t b = begin; b < end; ++b) {
        const float* from = x + b * bucket;
        const int64_t values = count - b * bucket < bucket ? count - b * bucket : bucket;
        const float norm = bucket_norm(from, values);
        if (norm < 0.0f || norm > 0x1.fffffep127f) return false;
        uint8_t* to = out + b * stride;
        encode_run(levels_of<BITS>(norm), from, values, row_key(seed, b), to);
        memcpy(to + packed_bytes(values, BITS), &norm, 4);
    }
    return true;
}

template <int BITS>
void decode_bucket_range(const uint8_t* data, int64_t begin, int64_t end, int64_t bucket, int64_t count, float* x,
                         Put put) {
    const int64_t stride = packed_bytes(bucket, BITS) + 4;
    for (int64_t b = begin; b < end; ++b) {
        const int64_t values = count - b * bucket < bucket ? count - b * bucket : bucket;
        const uint8_t* from = data + b * stride;
        float norm;
        memcpy(&norm, from + packed_bytes(values, BITS), 4);
        decode_run(levels_of<BITS>(norm), from, values, x + b * bucket, put);
    }
    end_of_stream();
}

bool encode_buckets(const float* x, int64_t begin, int64_t end, int64_t bucket, int64_t count, int bits, uint64_t seed,
                    uint8_t* out) {
    if (bits == 2) return encode_bucket_range<2>(x, begin, end, bucket, count, seed, out);
    if (bits == 4) return encode_bucket_range<4>(x, begin, end, bucket, count, seed, out);
    return encode_bucket_range<8>(x, begin, end, bucket, count, seed, out);
}

void decode_buckets(const uint8_t* data, int64_t begin, int64_t end, int64_t bucket, int64_t count, int bits, float* x,
                    Put put) {
    if (bits == 2) return decode_bucket_range<2>(data, begin, end, bucket, count, x, put);
    if (bits == 4) return decode_bucket_range<4>(data, begin, end, bucket, count, x, put);
    decode_bucket_range<8>(data, begin, end, bucket, count, x, put);
}

uint32_t magnitude_at(const float* x, int64_t i) {
    uint32_t bits;
    memcpy(&bits, x + i, 4);
    return bits & 0x7fffffffu;
}

// Visits positions whose magnitude is at least `least()`. They are few, so a register of values is dismissed with one
// test. `use` returns false to stop.
template <class Least, class Use>
TW_INLINE void for_magnitudes_from(const float* x, int64_t begin, int64_t end, Least least, Use use) {
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) {
        // `use` may raise the least, so every position is tested again.
        for (uint32_t found = lanes(magnitude(load<Floats>(x + i)) >= least()); found; found &= found - 1) {
            const int64_t at = i + __builtin_ctz(found);
            if (magnitude_at(x, at) >= least() && !use(at)) return;
        }
    }
    for (; i < end; ++i)
        if (magnitude_at(x, i) >= least() && !use(i)) return;
}

int64_t collect(const float* x, int64_t begin, int64_t end, uint32_t threshold, int64_t ties, int64_t room,
                int64_t* positions) {
    int64_t found = 0;
    auto least = [&] { return ties > 0 ? threshold : threshold + 1; };
    for_magnitudes_from(x, begin, end, least, [&](int64_t i) {
        if (found == room) return false;
        positions[found++] = i;
        ties -= magnitude_at(x, i) == threshold;
        return true;
    });
    return found;
}

void count_low(const float* x, int64_t begin, int64_t end, uint32_t prefix, int64_t* counts) {
    for_magnitudes_from(
        x, begin, end, [&] { return prefix << 15; },
        [&](int64_t i) {
            const uint32_t m = magnitude_at(x, i);
            if (m >> 15 == prefix) ++counts[m & 0x7fffu];
            return true;
        });
}

void drop_rows(const float* x, int64_t begin, int64_t end, int64_t width, const int64_t* ids, float keep, float gain,
               uint64_t seed, float* out) {
    for (int64_t row = begin; row < end; ++row)
        drop_row(x + row * width, width, row_key(seed, ids[row]), keep, gain, out + row * width);
}

void row_variances(const float* x, int64_t begin, int64_t end, int64_t width, const uint8_t* bits, int64_t count,
                   float* out) {
    for (int64_t row = begin; row < end; ++row) {
        float lowest, highest;
        const bool finite = range_of(x + row * width, width, lowest, highest);
        for (int64_t i = 0; i < count; ++i) {
            float variance = 0.0f;  // 32 bits: float32 itself, which adds no variance
            if (!finite) variance = __builtin_nanf("");
            else if (bits[i] < 32) variance = row_variance(x + row * width, width, lowest, highest, (1 << bits[i]) - 1);
            out[row * count + i] = variance;
        }
    }
}

bool encode_nearest_one(const float* x, int64_t width, int bits, uint8_t* out) {
    switch (bits) {
        case 1: return encode_nearest_row<1>(x, width, out);
        case 2: return encode_nearest_row<2>(x, width, out);
        case 4: return encode_nearest_row<4>(x, width, out);
        case 8: return encode_nearest_row<8>(x, width, out);
        default: return true;
    }
}

void decode_nearest_one(const uint8_t* data, int64_t width, int bits, float* x, Put put) {
    switch (bits) {
        case 1: return decode_nearest_row<1>(data, width, x, put);
        case 2: return decode_nearest_row<2>(data, width, x, put);
        case 4: return decode_nearest_row<4>(data, width, x, put);
        case 8: return decode_nearest_row<8>(data, width, x, put);
        default: return;
    }
}

bool encode_nearest(const float* x, float* copy, int64_t begin, int64_t end, int64_t width, int bits,
                    const uint8_t* widths, const int64_t* offsets, uint8_t* out) {
    const int64_t stride = packed_bytes(width, bits) + 4;
    std::vector<float> left(copy ? width : 0);
    for (int64_t row = begin; row < end; ++row) {
        const int own = widths ? widths[row] : bits;
        if (!own) continue;
        uint8_t* to = out + (widths ? offsets[row] : row * stride);
        if (!encode_nearest_one(difference_of(x, copy, row, width, left.data()), width, own, to)) return false;
        if (copy) decode_nearest_one(to, width, own, copy + row * width, Put::add);
    }
    return true;
}

void decode_nearest(const uint8_t* data, int64_t begin, int64_t end, int64_t width, int bits, const uint8_t* widths,
                    const int64_t* offsets, float* x, Put put) {
    const int64_t stride = packed_bytes(width, bits) + 4;
    for (int64_t row = begin; row < end; ++row) {
        const uint8_t* from = data + (widths ? offsets[row] : row * stride);
        decode_nearest_one(from, width, widths ? widths[row] : bits, x + row * width, put);
    }
    end_of_stream();
}

void nearest_errors(const float* x, const float* copy, int64_t begin, int64_t end, int64_t width, double* out) {
    std::vector<float> left(copy ? width : 0);
    for (int64_t row = begin; row < end; ++row)
        nearest_errors_of(difference_of(x, copy, row, width, left.data()), width, out + row * 5);
}

void measure_rows(const float* x, const float* copy, int64_t begin, int64_t end, int64_t width, const Wanted& wanted,
                  Measured* out) {
    Together block(x, copy, width);
    for (int64_t row = begin; row < end; row += block.most) {
        const int count = (int)std::min<int64_t>(block.most, end - row);
        for (int i = 0; i < count; ++i) {
            const int64_t next = row + i + block.most;
            block.take(i, row + i, next < end ? next : -1);
        }
        measure_together(block, count, width, out);
        measure_wanted(block, count, width, wanted, out);
    }
}

void measure_further(const float* x, const float* copy, const int32_t* rows, int64_t num_rows, int64_t width,
                     const Wanted& wanted, Measured* out) {
    Together block(x, copy, width);
    for (int64_t at = 0; at < num_rows; at += block.most) {
        const int count = (int)std::min<int64_t>(block.most, num_rows - at);
        for (int i = 0; i < count; ++i) {
            const int64_t next = at + i + block.most;
            block.take(i, rows[at + i], next < num_rows ? rows[next] : -1);
        }
        measure_wanted(block, count, width, wanted, out);
    }
}

void encode_measured_one(const float* x, int64_t width, int bits, const Measured& measured, uint8_t* out) {
    switch (bits) {
        case 1: return encode_measured_row<1>(x, width, measured, out);
        case 2: return encode_measured_row<2>(x, width, measured, out);
        case 4: return encode_measured_row<4>(x, width, measured, out);
        default: return encode_measured_row<8>(x, width, measured, out);
    }
}

void encode_measured(const float* x, float* copy, const int32_t* rows, int64_t num_rows, int64_t width,
                     const uint8_t* widths, const int64_t* offsets, const Measured* measured, uint8_t* out) {
    Together block(x, copy, width);
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t row = rows[i], next = i + ROWS_AHEAD;
        block.take(0, row, next < num_rows ? rows[next] : -1);
        block.fetch(0), block.fetch(0);
        encode_measured_one(block.rows[0], width, widths[row], measured[row], out + offsets[row]);
        if (copy) decode_nearest_one(out + offsets[row], width, widths[row], copy + row * width, Put::add);
    }
}

void one_row(const uint8_t* row, int format, int64_t width, float* out) {
    if (format == 32) return decode_copy<Single>(row, width, out, Put::write);
    if (format == 16) return decode_copy<Half>(row, width, out, Put::write);
    return decode_copy<Brain>(row, width, out, Put::write);
}

int64_t stored_bytes(int format, int64_t width) { return width * (format == 32 ? 4 : 2); }

void take_rows(const uint8_t* table, int format, const int32_t* rows, const int32_t* places, int64_t begin, int64_t end,
               int64_t width, float* out) {
    const int64_t bytes = stored_bytes(format, width);
    for (int64_t i = begin; i < end; ++i) {
        if (i + ROWS_AHEAD < end) fetch_ahead(table + rows[i + ROWS_AHEAD] * bytes, bytes);
        one_row(table + rows[i] * bytes, format, width, out + places[i] * width);
    }
}

bool encode_taken(const uint8_t* table, int format, const int32_t* rows, int64_t begin, int64_t end, int64_t width,
                  int bits, uint64_t seed, uint8_t* out) {
    const int64_t bytes = stored_bytes(format, width), stride = packed_bytes(width, bits) + 4;
    std::vector<float> row(width);
    for (int64_t i = begin; i < end; ++i) {
        if (i + ROWS_AHEAD < end) fetch_ahead(table + rows[i + ROWS_AHEAD] * bytes, bytes);
        one_row(table + rows[i] * bytes, format, width, row.data());
        if (!encode_one(row.data(), width, bits, row_key(seed, i), out + i * stride)) return false;
    }
    return true;
}

void decode_placed(const uint8_t* data, const int32_t* places, int64_t begin, int64_t end, int64_t width, int bits,
                   float* out) {
    const int64_t stride = packed_bytes(width, bits) + 4;
    for (int64_t i = begin; i < end; ++i)
        decode_one(data + i * stride, width, bits, out + places[i] * width, Put::write);
}

}  // namespace
}  // namespace thinwire::THINWIRE_ISA

namespace thinwire {
using namespace THINWIRE_ISA;

const Kernels TW_JOIN(kernels_, THINWIRE_ISA) = {
    TW_TEXT(THINWIRE_ISA),
    encode_rows,
    decode_rows,
    encode_format,
    decode_format,
    encode_scaled,
    decode_scaled,
    largest_in,
    sum_in,
    product_in,
    encode_buckets,
    decode_buckets,
    collect,
    count_low,
    drop_rows,
    row_variances,
    encode_nearest,
    decode_nearest,
    nearest_errors,
    measure_rows,
    measure_further,
    encode_measured,
    sum_neighbours,
    sum_readers,
    gather_rows,
    take_rows,
    encode_taken,
    decode_placed,
};
}  // namespace thinwire
