// thinwire._native's part for difference coding: nearest rows, and the choice of rows under a budget. The contract of
// each function is the class Kernels in src/thinwire/codecs/kernels.py; all sizes are checked here, as a wrong one
// would reach outside memory.
#include "differences.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "budget.h"
#include "checks.h"
#include "parallel.h"
#include "sampling.h"
#include "spend.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace thinwire {
namespace {

using Rows = Array<const float, 2>;
using RowsOut = Array<float, 2>;
using Data = Array<const uint8_t, 1>;
using DataOut = Array<uint8_t, 1>;
using Errors = Array<const double, 2>;
using ErrorsOut = Array<double, 2>;
using Weights = Array<const float, 1>;
using Ages = Array<const int64_t, 1>;

// Where the bytes of rows lie: all at one width, or each at its own.
struct Places {
    int bits = 0;
    const uint8_t* widths = nullptr;
    std::vector<int64_t> offsets;
};

Places alike(int64_t num_rows, int64_t width, int bits, int64_t size) {
    expect_bits(bits, {1, 2, 4, 8});
    expect(size, num_rows * row_bytes(width, bits), "nearest rows, bytes");
    return {bits, nullptr, {}};
}

Places chosen(int64_t num_rows, int64_t width, const Data& bits, int64_t size) {
    expect(bits.size(), num_rows, "chosen rows, one width a row");
    Places places{0, bits.data(), std::vector<int64_t>(num_rows + 1)};
    for (int64_t row = 0; row < num_rows; ++row) {
        expect_bits(bits.data()[row], {0, 1, 2, 4, 8});
        places.offsets[row + 1] = places.offsets[row] + row_bytes(width, bits.data()[row]);
    }
    expect(size, places.offsets.back(), "chosen rows, bytes");
    return places;
}

bool encode_rows(const Rows& x, float* copy, const Places& places, DataOut& out) {
    const int64_t width = x.shape(1);
    std::atomic<bool> ok{true};
    nb::gil_scoped_release release;
    parallel(x.shape(0), 1, rows_grain(width), [&](int, Range r) {
        if (!current_kernels().encode_nearest(x.data(), copy, r.begin, r.end, width, places.bits, places.widths,
                                              places.offsets.data(), out.data()))
            ok = false;
    });
    return ok;
}

void decode_rows(const Data& data, const Places& places, RowsOut& out, Put put) {
    const int64_t width = out.shape(1);
    // Output too large to be found in a cache afterwards is written around it, as module.cpp does.
    if (put == Put::write && out.size() >= (8 << 20)) put = Put::stream;
    nb::gil_scoped_release release;
    parallel(out.shape(0), 1, rows_grain(width), [&](int, Range r) {
        current_kernels().decode_nearest(data.data(), r.begin, r.end, width, places.bits, places.widths,
                                         places.offsets.data(), out.data(), put);
    });
}

void expect_same(const Rows& x, const RowsOut& copy) {
    expect(copy.shape(0), x.shape(0), "a copy's rows");
    expect(copy.shape(1), x.shape(1), "a copy's columns");
}

bool encode_nearest(Rows x, int bits, DataOut out) {
    return encode_rows(x, nullptr, alike(x.shape(0), x.shape(1), bits, out.size()), out);
}

bool encode_nearest_difference(Rows x, RowsOut copy, int bits, DataOut out) {
    expect_same(x, copy);
    return encode_rows(x, copy.data(), alike(x.shape(0), x.shape(1), bits, out.size()), out);
}

template <Put PUT>
void decode_nearest(Data data, int bits, RowsOut out) {
    decode_rows(data, alike(out.shape(0), out.shape(1), bits, data.size()), out, PUT);
}

bool encode_chosen(Rows x, Data bits, DataOut out) {
    return encode_rows(x, nullptr, chosen(x.shape(0), x.shape(1), bits, out.size()), out);
}

bool encode_chosen_difference(Rows x, RowsOut copy, Data bits, DataOut out) {
    expect_same(x, copy);
    return encode_rows(x, copy.data(), chosen(x.shape(0), x.shape(1), bits, out.size()), out);
}

template <Put PUT>
void decode_chosen(Data data, Data bits, RowsOut out) {
    decode_rows(data, chosen(out.shape(0), out.shape(1), bits, data.size()), out, PUT);
}

void errors_of(const Rows& x, const float* copy, ErrorsOut& out) {
    expect(out.shape(0), x.shape(0), "nearest_errors, rows");
    expect(out.shape(1), 5, "nearest_errors, columns");
    const int64_t width = x.shape(1);
    nb::gil_scoped_release release;
    parallel(x.shape(0), 1, rows_grain(width), [&](int, Range r) {
        current_kernels().nearest_errors(x.data(), copy, r.begin, r.end, width, out.data());
    });
}

void nearest_errors(Rows x, ErrorsOut out) { errors_of(x, nullptr, out); }

void nearest_difference_errors(Rows x, Rows copy, ErrorsOut out) {
    expect(copy.shape(0), x.shape(0), "a copy's rows");
    expect(copy.shape(1), x.shape(1), "a copy's columns");
    errors_of(x, copy.data(), out);
}

void choose(Errors errors, Weights weights, Ages must, int64_t width, int64_t size, DataOut bits) {
    const int64_t num_rows = bits.size();
    expect(errors.shape(0), num_rows, "choose_rows, rows of errors");
    expect(errors.shape(1), 5, "choose_rows, columns of errors");
    expect(weights.size(), num_rows, "choose_rows, weights");
    expect(must.size(), num_rows, "choose_rows, must");
    require(width >= 1 && size >= 1, "choose_rows: width and size must be at least 1");
    require(num_rows < (int64_t{1} << 32), "choose_rows: too many rows");
    nb::gil_scoped_release release;
    const WithSubnormals scope;
    choose_rows({errors.data(), NUM_CHOICES, weights.data(), must.data(), num_rows, width, size}, 0, bits.data());
}

bool encode_rows_within(const Rows& x, float* copy, const Weights& weights, const Ages& must, DataOut& out) {
    const int64_t num_rows = x.shape(0), width = x.shape(1);
    expect(weights.size(), num_rows, "encode_budget, weights");
    expect(must.size(), num_rows, "encode_budget, must");
    require(num_rows >= 1 && width >= 1, "encode_budget: rows and width must be at least 1");
    require(num_rows < (int64_t{1} << 31), "encode_budget: too many rows");
    require(out.size() >= sent_bytes(num_rows, 1) + row_bytes(width, 1), "encode_budget: not even a row fits");
    nb::gil_scoped_release release;
    return encode_budget(current_kernels(), x.data(), copy, weights.data(), must.data(), num_rows, width, out.size(),
                         out.data());
}

bool encode_budget_rows(Rows x, Weights weights, Ages must, DataOut out) {
    return encode_rows_within(x, nullptr, weights, must, out);
}

bool encode_budget_difference(Rows x, RowsOut copy, Weights weights, Ages must, DataOut out) {
    expect_same(x, copy);
    return encode_rows_within(x, copy.data(), weights, must, out);
}

void write(Data bits, DataOut out) {
    int64_t num_sent = 0;
    for (int64_t row = 0; row < bits.size(); ++row) {
        expect_bits(bits.data()[row], {0, 1, 2, 4, 8});
        num_sent += bits.data()[row] > 0;
    }
    expect(out.size(), sent_bytes(bits.size(), num_sent), "write_sent, bytes");
    write_sent(bits.data(), bits.size(), out.data());
}

int64_t read(Data data, DataOut bits) { return read_sent(data.data(), data.size(), bits.size(), bits.data()); }

}  // namespace

void bind_differences(nb::module_& m) {
    m.def("encode_nearest", &encode_nearest, "x"_a, "bits"_a, "out"_a,
          "Rows in so many bits, nothing at random, to `out`; False where one can't be sent.");
    m.def("encode_nearest_difference", &encode_nearest_difference, "x"_a, "copy"_a, "bits"_a, "out"_a,
          "The same of x - copy, to which what was sent is then added.");
    m.def("decode_nearest", &decode_nearest<Put::write>, "data"_a, "bits"_a, "out"_a,
          "What encode_nearest wrote, to `out`.");
    m.def("add_nearest", &decode_nearest<Put::add>, "data"_a, "bits"_a, "out"_a,
          "What encode_nearest wrote, added to `out`.");
    m.def("encode_chosen", &encode_chosen, "x"_a, "bits"_a, "out"_a,
          "Rows in bits[row] bits, nothing at random, to `out`; False where one can't be sent.");
    m.def("encode_chosen_difference", &encode_chosen_difference, "x"_a, "copy"_a, "bits"_a, "out"_a,
          "The same of x - copy, to which what was sent is then added.");
    m.def("decode_chosen", &decode_chosen<Put::write>, "data"_a, "bits"_a, "out"_a,
          "What encode_chosen wrote, to `out`; other rows stay.");
    m.def("add_chosen", &decode_chosen<Put::add>, "data"_a, "bits"_a, "out"_a,
          "What encode_chosen wrote, added to `out`; other rows stay.");
    m.def("nearest_errors", &nearest_errors, "x"_a, "out"_a,
          "The squared error left of each row at 0, 1, 2, 4 and 8 bits.");
    m.def("nearest_difference_errors", &nearest_difference_errors, "x"_a, "copy"_a, "out"_a, "The same of x - copy.");
    m.def("choose_rows", &choose, "errors"_a, "weights"_a, "must"_a, "width"_a, "size"_a, "bits"_a,
          "The bits of each row, so that all fits into `size` bytes, to `bits`.");
    m.def("encode_budget", &encode_budget_rows, "x"_a, "weights"_a, "must"_a, "out"_a,
          "Which rows are sent, and those rows, to `out`, as choose_rows has it; False where one can't be sent.");
    m.def("encode_budget_difference", &encode_budget_difference, "x"_a, "copy"_a, "weights"_a, "must"_a, "out"_a,
          "The same of x - copy, to which what was sent is then added.");
    m.def("write_sent", &write, "bits"_a, "out"_a, "Which rows are sent at how many bits, to `out`.");
    m.def("read_sent", &read, "data"_a, "bits"_a,
          "What write_sent wrote, to `bits`; how many bytes it was, -1 where they can't be its.");
}

}  // namespace thinwire
