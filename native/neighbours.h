// Sums over neighbours in a batch's CSR, and back along its transpose: each row of a result has one writer, and adds in
// the order of edges. The specification is src/thinwire/minibatch/twins.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vec.h"

namespace thinwire::THINWIRE_ISA {

constexpr int64_t ROWS_AHEAD = 4;  // to fetch before they are needed

TW_INLINE void fetch_ahead(const void* row, int64_t bytes) {
    for (int64_t at = 0; at < std::min<int64_t>(bytes, 1024); at += 64) __builtin_prefetch((const char*)row + at);
}

TW_INLINE void put_scaled(float* __restrict__ out, const float* __restrict__ x, float by, int64_t width) {
    for (int64_t i = 0; i < width; ++i) out[i] = by * x[i];
}

TW_INLINE void add_scaled(float* __restrict__ out, const float* __restrict__ x, float by, int64_t width) {
    for (int64_t i = 0; i < width; ++i) out[i] += by * x[i];
}

inline void sum_neighbours(const int32_t* indptr, const int32_t* columns, const float* weight, const float* scale,
                           const float* x, int64_t begin, int64_t end, int64_t width, float* out) {
    const int32_t last = indptr[end];
    for (int64_t row = begin; row < end; ++row) {
        float* to = out + row * width;
        if (indptr[row] == indptr[row + 1]) std::fill(to, to + width, 0.0f);
        for (int32_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
            if (edge + ROWS_AHEAD < last) fetch_ahead(x + columns[edge + ROWS_AHEAD] * width, 4 * width);
            const float by = (weight ? weight[edge] : 1.0f) * (scale ? scale[row] : 1.0f);
            const float* from = x + columns[edge] * width;
            if (edge == indptr[row]) put_scaled(to, from, by, width);
            else add_scaled(to, from, by, width);
        }
    }
}

inline void sum_readers(const int32_t* column_ptr, const int32_t* rows, const int32_t* row_edges, int64_t num_rows,
                        const float* weight, const float* scale, const float* grad, int64_t begin, int64_t end,
                        int64_t width, float* out) {
    for (int64_t column = begin; column < end; ++column) {
        float* to = out + column * width;
        int32_t at = column_ptr[column];
        const int32_t stop = column_ptr[column + 1];
        if (at == stop || rows[at] >= num_rows) std::fill(to, to + width, 0.0f);
        for (bool first = true; at < stop && rows[at] < num_rows; ++at, first = false) {
            const float by = (weight ? weight[row_edges[at]] : 1.0f) * (scale ? scale[rows[at]] : 1.0f);
            const float* from = grad + rows[at] * width;
            if (first) put_scaled(to, from, by, width);
            else add_scaled(to, from, by, width);
        }
    }
}

inline void gather_rows(const uint8_t* table, const int32_t* rows, int64_t begin, int64_t end, int64_t bytes,
                        uint8_t* out) {
    for (int64_t i = begin; i < end; ++i) {
        if (i + ROWS_AHEAD < end) fetch_ahead(table + rows[i + ROWS_AHEAD] * bytes, bytes);
        std::memcpy(out + i * bytes, table + rows[i] * bytes, bytes);
    }
}

}  // namespace thinwire::THINWIRE_ISA
