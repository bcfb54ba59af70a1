// What one instruction set's build offers: plain functions over ranges, no threads, no allocation, no Python.
// An encoder returns false where a value can't be sent (not finite, or too wide a range for the codec).
#pragma once
#include <cstdint>

namespace thinwire {

// How decoded values reach their place: written; written around the cache, without reading first what is overwritten,
// for output too large to be found there afterwards; or added to what is there.
enum class Put { write, stream, add };

// What is known of a row's differences after it was measured at some of the choices 0, 1, 2, 4 and 8 bits.
struct Measured {
    double errors[5];        // squared, left at each choice; infinite where not measured, or where it can't be sent
    double squares, moment;  // scaled: of the row, and of the row without its mean
    float unit, mean, lowest, highest;
    int32_t known;  // the last choice that was measured; all before it were too
    // How codes are made at 1, 2, 4 and 8 bits, and the four bytes that follow them.
    struct Sent {
        float inverse, shift;
        uint16_t wire[2];
    } sent[4];
};

// Whether a row is worth measuring at one more choice.
class Wanted {
  public:
    virtual bool operator()(const Measured& row, int64_t number, int choice) const = 0;

  protected:
    ~Wanted() = default;
};

struct Kernels {
    const char* isa;

    // Rows [begin, end) of x, `width` values each. bits: one for all rows; or widths[row], bytes at offsets[row].
    bool (*encode_rows)(const float* x, int64_t begin, int64_t end, int64_t width, int bits, const uint8_t* widths,
                        const int64_t* offsets, uint64_t seed, uint8_t* out);
    void (*decode_rows)(const uint8_t* data, int64_t begin, int64_t end, int64_t width, int bits, const uint8_t* widths,
                        const int64_t* offsets, float* x, Put put);

    // Values [begin, end); format is 32 (float32), 16 (float16) or -16 (bfloat16).
    bool (*encode_copy)(const float* x, int64_t begin, int64_t end, int format, uint8_t* out);
    void (*decode_copy)(const uint8_t* data, int64_t begin, int64_t end, int format, float* x, Put put);

    // Values [begin, end), begin a multiple of RUN; bits 1 is signs, 2 is TernGrad.
    void (*encode_scaled)(const float* x, int64_t begin, int64_t end, int bits, float scale, uint64_t seed,
                          uint8_t* out);
    void (*decode_scaled)(const uint8_t* data, int64_t begin, int64_t end, int bits, float scale, float* x, Put put);
    uint32_t (*largest_magnitude)(const float* x, int64_t begin, int64_t end);
    // Sum of magnitudes, or of products, of at most RUN values, the same for any order of adding; NaN where one is not
    // finite.
    double (*run_sum)(const float* x, int64_t begin, int64_t end);
    double (*run_product)(const float* x, const float* y, int64_t begin, int64_t end);

    // Buckets [begin, end) of `bucket` values each, the last one as long as what is left of `count`.
    bool (*encode_buckets)(const float* x, int64_t begin, int64_t end, int64_t bucket, int64_t count, int bits,
                           uint64_t seed, uint8_t* out);
    void (*decode_buckets)(const uint8_t* data, int64_t begin, int64_t end, int64_t bucket, int64_t count, int bits,
                           float* x, Put put);

    // Positions in [begin, end) whose magnitude's bits are above `threshold`, and the first `ties` that equal it,
    // ascending; returns how many, at most `room`.
    int64_t (*collect)(const float* x, int64_t begin, int64_t end, uint32_t threshold, int64_t ties, int64_t room,
                       int64_t* positions);
    // Counts the low 15 bits of magnitudes in [begin, end) whose upper 16 bits are `prefix`.
    void (*count_low)(const float* x, int64_t begin, int64_t end, uint32_t prefix, int64_t* counts);

    // Rows [begin, end) of x, each value kept with probability `keep`, by the row's id, and times `gain`.
    void (*drop_rows)(const float* x, int64_t begin, int64_t end, int64_t width, const int64_t* ids, float keep,
                      float gain, uint64_t seed, float* out);

    // Of rows [begin, end): the variance of each at each of `count` widths, out[row * count + i].
    void (*row_variances)(const float* x, int64_t begin, int64_t end, int64_t width, const uint8_t* bits, int64_t count,
                          float* out);

    // Rows [begin, end) at `bits` or widths[row], as above, by codecs/twins/nearest.py. With a copy: of what x is more
    // than the copy, to which what `out` decodes to is then added.
    bool (*encode_nearest)(const float* x, float* copy, int64_t begin, int64_t end, int64_t width, int bits,
                           const uint8_t* widths, const int64_t* offsets, uint8_t* out);
    void (*decode_nearest)(const uint8_t* data, int64_t begin, int64_t end, int64_t width, int bits,
                           const uint8_t* widths, const int64_t* offsets, float* x, Put put);
    // The squared error left of rows [begin, end) at 0, 1, 2, 4 and 8 bits, out[row * 5 + i]; the copy may be null.
    void (*nearest_errors)(const float* x, const float* copy, int64_t begin, int64_t end, int64_t width, double* out);

    // The same a choice at a time, the width at least 1: 0 and 1 bits of rows [begin, end), then 2, 4 and 8 bits as far
    // as is wanted of each.
    void (*measure_rows)(const float* x, const float* copy, int64_t begin, int64_t end, int64_t width,
                         const Wanted& wanted, Measured* out);
    // Of those rows that are named, the next choice after those known, and further ones as far as is wanted.
    void (*measure_further)(const float* x, const float* copy, const int32_t* rows, int64_t num_rows, int64_t width,
                            const Wanted& wanted, Measured* out);
    // encode_nearest of the rows that are named, each at bits for which it was measured.
    void (*encode_measured)(const float* x, float* copy, const int32_t* rows, int64_t num_rows, int64_t width,
                            const uint8_t* widths, const int64_t* offsets, const Measured* measured, uint8_t* out);

    // out[r] = scale[r] * sum over edges e of row r of weight[e] * x[columns[e]], rows [begin, end) of `width` values.
    // weight and scale may be null: all 1.
    void (*sum_neighbours)(const int32_t* indptr, const int32_t* columns, const float* weight, const float* scale,
                           const float* x, int64_t begin, int64_t end, int64_t width, float* out);
    // Back: out[c] = sum over rows r < num_rows that read column c of scale[r] * weight[e] * grad[r], columns [begin,
    // end). Rows stand in ascending order within a column, their edges beside them.
    void (*sum_readers)(const int32_t* column_ptr, const int32_t* rows, const int32_t* row_edges, int64_t num_rows,
                        const float* weight, const float* scale, const float* grad, int64_t begin, int64_t end,
                        int64_t width, float* out);
    // For i in [begin, end), rows of a table in some format (as above): as they are, packed one after the other;
    void (*gather_rows)(const uint8_t* table, const int32_t* rows, int64_t begin, int64_t end, int64_t bytes,
                        uint8_t* out);
    // in float32, to out[places[i]];
    void (*take_rows)(const uint8_t* table, int format, const int32_t* rows, const int32_t* places, int64_t begin,
                      int64_t end, int64_t width, float* out);
    // quantized, as encode_rows does with these rows; and quantized rows to out[places[i]].
    bool (*encode_taken)(const uint8_t* table, int format, const int32_t* rows, int64_t begin, int64_t end,
                         int64_t width, int bits, uint64_t seed, uint8_t* out);
    void (*decode_placed)(const uint8_t* data, const int32_t* places, int64_t begin, int64_t end, int64_t width,
                          int bits, float* out);
};

// Randomness is counted in (row, column): a flat run is cut into rows of this many values.
constexpr int64_t RUN = 65536;
// Sums of whole numbers stay below 2^50: exact in a double, with room to round by adding 1.5 * 2^52.
constexpr int WHOLE_BITS = 50;

extern const Kernels kernels_portable;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

}  // namespace thinwire
