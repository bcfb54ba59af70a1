// thinwire._native: the codecs' bindings, and those of differences.cpp and sampling.cpp. The contract of each function
// is the class Kernels in src/thinwire/codecs/kernels.py; sizes are checked here once more, since a wrong one would
// write outside memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "checks.h"
#include "differences.h"
#include "kernels.h"
#include "parallel.h"
#include "sampling.h"
#include "sparse.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace thinwire {
namespace {

using Values = Array<const float, 1>;
using Rows = Array<const float, 2>;
using ValuesOut = Array<float, 1>;
using RowsOut = Array<float, 2>;
using Data = Array<const uint8_t, 1>;
using Ids = Array<const int64_t, 1>;
using DataOut = Array<uint8_t, 1>;

// From 32 MiB of float32 on, hardly a cache would still hold the beginning of an output at its end.
template <bool ADD>
Put put_for(int64_t values) {
    if (ADD) return Put::add;
    return values >= (8 << 20) ? Put::stream : Put::write;
}

const Kernels* best_kernels() {
#if defined(THINWIRE_X86)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return &kernels_avx2;
#endif
    return &kernels_portable;
}

const Kernels* kernels = best_kernels();

}  // namespace

const Kernels& current_kernels() { return *kernels; }

namespace {

bool set_isa(const std::string& isa) {
    const Kernels* best = best_kernels();
    std::vector<const Kernels*> offered = {&kernels_portable};
#if defined(THINWIRE_X86)
    if (best != &kernels_portable) offered.push_back(&kernels_avx2);
    if (best == &kernels_avx512) offered.push_back(&kernels_avx512);
#endif
    for (const Kernels* candidate : offered)
        if (isa == candidate->isa) {
            kernels = candidate;
            return true;
        }
    if (isa == "best") kernels = best;
    return isa == "best";
}

// Where each row's bytes begin, and after the last, how many there are.
std::vector<int64_t> offsets_of(const Data& widths, int64_t width) {
    std::vector<int64_t> offsets(widths.size() + 1);
    for (int64_t row = 0; row < widths.size(); ++row) {
        expect_bits(widths.data()[row], {0, 1, 2, 4, 8, 16, 32});
        offsets[row + 1] = offsets[row] + row_bytes(width, widths.data()[row]);
    }
    return offsets;
}

bool encode_rows(Rows x, int bits, const uint8_t* widths, const int64_t* offsets, uint64_t seed, DataOut& out) {
    const int64_t width = x.shape(1);
    std::atomic<bool> ok{true};
    nb::gil_scoped_release release;
    parallel(x.shape(0), 1, rows_grain(width), [&](int, Range r) {
        if (!kernels->encode_rows(x.data(), r.begin, r.end, width, bits, widths, offsets, seed, out.data())) ok = false;
    });
    return ok;
}

template <bool ADD>
void decode_rows(Data& data, int bits, const uint8_t* widths, const int64_t* offsets, RowsOut& out) {
    const int64_t width = out.shape(1);
    nb::gil_scoped_release release;
    parallel(out.shape(0), 1, rows_grain(width), [&](int, Range r) {
        kernels->decode_rows(data.data(), r.begin, r.end, width, bits, widths, offsets, out.data(),
                             put_for<ADD>(out.size()));
    });
}

bool encode_uniform(Rows x, int bits, uint64_t seed, DataOut out) {
    expect_bits(bits, {1, 2, 4, 8, 16});
    expect(out.size(), x.shape(0) * row_bytes(x.shape(1), bits), "encode_uniform, bytes");
    return encode_rows(x, bits, nullptr, nullptr, seed, out);
}

template <bool ADD>
void decode_uniform(Data data, int bits, RowsOut out) {
    expect_bits(bits, {1, 2, 4, 8, 16});
    expect(data.size(), out.shape(0) * row_bytes(out.shape(1), bits), "decode_uniform, bytes");
    decode_rows<ADD>(data, bits, nullptr, nullptr, out);
}

bool encode_mixed(Rows x, Data bits, uint64_t seed, DataOut out) {
    expect(bits.size(), x.shape(0), "encode_mixed, one width a row");
    const auto offsets = offsets_of(bits, x.shape(1));
    expect(out.size(), offsets.back(), "encode_mixed, bytes");
    return encode_rows(x, 0, bits.data(), offsets.data(), seed, out);
}

template <bool ADD>
void decode_mixed(Data data, Data bits, RowsOut out) {
    expect(bits.size(), out.shape(0), "decode_mixed, one width a row");
    const auto offsets = offsets_of(bits, out.shape(1));
    expect(data.size(), offsets.back(), "decode_mixed, bytes");
    decode_rows<ADD>(data, 0, bits.data(), offsets.data(), out);
}

void drop_rows(Rows x, Ids ids, double keep, uint64_t seed, RowsOut out) {
    if (!(keep > 0.0 && keep <= 1.0)) throw std::invalid_argument("keep must be above 0 and at most 1");
    expect(ids.size(), x.shape(0), "drop_rows, one id a row");
    expect(out.shape(0), x.shape(0), "drop_rows, rows");
    expect(out.shape(1), x.shape(1), "drop_rows, columns");
    const int64_t width = x.shape(1);
    nb::gil_scoped_release release;
    parallel(x.shape(0), 1, rows_grain(width), [&](int, Range r) {
        kernels->drop_rows(x.data(), r.begin, r.end, width, ids.data(), (float)keep, (float)(1.0 / keep), seed,
                           out.data());
    });
}

void row_variances(Rows x, Data bits, RowsOut out) {
    for (int64_t i = 0; i < bits.size(); ++i) expect_bits(bits.data()[i], {1, 2, 4, 8, 16, 32});
    expect(out.shape(0), x.shape(0), "row_variances, rows");
    expect(out.shape(1), bits.size(), "row_variances, one column a width");
    const int64_t width = x.shape(1);
    nb::gil_scoped_release release;
    parallel(x.shape(0), 1, rows_grain(width), [&](int, Range r) {
        kernels->row_variances(x.data(), r.begin, r.end, width, bits.data(), bits.size(), out.data());
    });
}

int format_of(const std::string& dtype) {
    if (dtype == "float32") return 32;
    if (dtype == "float16") return 16;
    if (dtype == "bfloat16") return -16;
    throw std::invalid_argument("dtype " + dtype + " is not offered here");
}

bool encode_copy(Values x, const std::string& dtype, DataOut out) {
    const int format = format_of(dtype);
    expect(out.size(), x.size() * std::abs(format) / 8, "encode_copy, bytes");
    std::atomic<bool> ok{true};
    nb::gil_scoped_release release;
    parallel(x.size(), 64, GRAIN, [&](int, Range r) {
        if (!kernels->encode_copy(x.data(), r.begin, r.end, format, out.data())) ok = false;
    });
    return ok;
}

template <bool ADD>
void decode_copy(Data data, const std::string& dtype, ValuesOut out) {
    const int format = format_of(dtype);
    expect(data.size(), out.size() * std::abs(format) / 8, "decode_copy, bytes");
    nb::gil_scoped_release release;
    const Put put = ADD ? Put::add : Put::write;
    parallel(out.size(), 64, GRAIN,
             [&](int, Range r) { kernels->decode_copy(data.data(), r.begin, r.end, format, out.data(), put); });
}

float largest_magnitude(const Values& x) {
    std::vector<uint32_t> most(most_parts());
    parallel(x.size(), 64, GRAIN,
             [&](int part, Range r) { most[part] = kernels->largest_magnitude(x.data(), r.begin, r.end); });
    const uint32_t bits = *std::max_element(most.begin(), most.end());
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Mean of |x|, the same for any number of threads: runs are added up in order. Below 0 where a value is not finite.
float mean_magnitude(const Values& x) {
    const int64_t count = x.size(), runs = (count + RUN - 1) / RUN;
    if (count == 0) return 0.0f;
    const WithSubnormals scope;
    std::vector<double> sums(runs);
    parallel(runs, 1, 1, [&](int, Range r) {
        for (int64_t run = r.begin; run < r.end; ++run)
            sums[run] = kernels->run_sum(x.data(), run * RUN, std::min(count, (run + 1) * RUN));
    });
    double total = 0.0;
    for (double sum : sums) {
        if (!(sum >= 0.0)) return -1.0f;
        total += sum;
    }
    return (float)(total / (double)count);
}

// The scale that brings q nearest to x, <x, q> / <q, q>, and 0 for a q of zeros; the same for any number of threads.
// False where it is not finite.
bool fit_scale(Values x, Values q, DataOut out) {
    expect(q.size(), x.size(), "fit_scale, values");
    expect(out.size(), 4, "fit_scale, bytes");
    const int64_t count = x.size(), runs = (count + RUN - 1) / RUN;
    nb::gil_scoped_release release;
    const WithSubnormals scope;
    std::vector<double> xq(runs), qq(runs);
    parallel(runs, 1, 1, [&](int, Range r) {
        for (int64_t run = r.begin; run < r.end; ++run) {
            const int64_t begin = run * RUN, end = std::min(count, begin + RUN);
            xq[run] = kernels->run_product(x.data(), q.data(), begin, end);
            qq[run] = kernels->run_product(q.data(), q.data(), begin, end);
        }
    });
    double above = 0.0, below = 0.0;
    for (int64_t run = 0; run < runs; ++run) {
        above += xq[run];
        below += qq[run];
    }
    const float scale = below == 0.0 ? 0.0f : (float)(above / below);
    memcpy(out.data(), &scale, 4);
    return std::isfinite(scale);
}

// bits 1: signs, scaled by the mean magnitude; 2: TernGrad, by the largest.
template <int BITS>
bool encode_scaled(Values x, uint64_t seed, DataOut out) {
    const int64_t codes = ((int64_t)x.size() * BITS + 7) / 8;
    expect(out.size(), codes + 4, "encode_scaled, bytes");
    nb::gil_scoped_release release;
    const float scale = BITS == 1 ? mean_magnitude(x) : largest_magnitude(x);
    if (scale < 0.0f || !std::isfinite(scale)) return false;
    parallel(x.size(), RUN, GRAIN,
             [&](int, Range r) { kernels->encode_scaled(x.data(), r.begin, r.end, BITS, scale, seed, out.data()); });
    memcpy(out.data() + codes, &scale, 4);
    return true;
}

template <int BITS, bool ADD>
void decode_scaled(Data data, ValuesOut out) {
    const int64_t codes = ((int64_t)out.size() * BITS + 7) / 8;
    expect(data.size(), codes + 4, "decode_scaled, bytes");
    float scale;
    memcpy(&scale, data.data() + codes, 4);
    nb::gil_scoped_release release;
    const Put put = put_for<ADD>(out.size());
    parallel(out.size(), RUN, GRAIN,
             [&](int, Range r) { kernels->decode_scaled(data.data(), r.begin, r.end, BITS, scale, out.data(), put); });
}

int64_t bucket_bytes(int64_t count, int bits, int64_t bucket) {
    if (bucket < 1) throw std::invalid_argument("bucket must be at least 1");
    const int64_t whole = count / bucket, rest = count % bucket;
    return whole * row_bytes(bucket, bits) + (rest ? row_bytes(rest, bits) : 0);
}

bool encode_qsgd(Values x, int bits, int64_t bucket, uint64_t seed, DataOut out) {
    expect_bits(bits, {2, 4, 8});
    const int64_t count = x.size();
    expect(out.size(), bucket_bytes(count, bits, bucket), "encode_qsgd, bytes");
    std::atomic<bool> ok{true};
    nb::gil_scoped_release release;
    parallel((count + bucket - 1) / bucket, 1, rows_grain(bucket), [&](int, Range r) {
        if (!kernels->encode_buckets(x.data(), r.begin, r.end, bucket, count, bits, seed, out.data())) ok = false;
    });
    return ok;
}

template <bool ADD>
void decode_qsgd(Data data, int bits, int64_t bucket, ValuesOut out) {
    expect_bits(bits, {2, 4, 8});
    const int64_t count = out.size();
    expect(data.size(), bucket_bytes(count, bits, bucket), "decode_qsgd, bytes");
    nb::gil_scoped_release release;
    parallel((count + bucket - 1) / bucket, 1, rows_grain(bucket), [&](int, Range r) {
        kernels->decode_buckets(data.data(), r.begin, r.end, bucket, count, bits, out.data(), put_for<ADD>(count));
    });
}

void expect_k(int64_t k, int64_t count) {
    if (k < 0 || k > count || (count > 0 && k == 0) || count >= (int64_t{1} << 56))
        throw std::invalid_argument("k is " + std::to_string(k) + " of " + std::to_string(count) + " values");
}

bool encode_topk_values(Values x, int64_t k, DataOut out) {
    expect_k(k, x.size());
    expect(out.size(), topk_bytes(x.size(), k), "encode_topk, bytes");
    nb::gil_scoped_release release;
    return encode_topk(*kernels, x.data(), x.size(), k, out.data());
}

template <bool ADD>
bool decode_topk_values(Data data, int64_t k, ValuesOut out) {
    expect_k(k, out.size());
    expect(data.size(), topk_bytes(out.size(), k), "decode_topk, bytes");
    nb::gil_scoped_release release;
    return (ADD ? add_topk : decode_topk)(data.data(), out.size(), k, out.data());
}

bool encode_randomk_values(Values x, int64_t k, float gain, uint64_t seed, DataOut out) {
    expect_k(k, x.size());
    expect(out.size(), 4 * k, "encode_randomk, bytes");
    nb::gil_scoped_release release;
    // Also values that stay at home must be finite: dropping a NaN would hide it.
    if (!std::isfinite(largest_magnitude(x))) return false;
    return encode_randomk(x.data(), x.size(), k, gain, seed, out.data());
}

template <bool ADD>
void decode_randomk_values(Data data, int64_t k, uint64_t seed, ValuesOut out) {
    expect_k(k, out.size());
    expect(data.size(), 4 * k, "decode_randomk, bytes");
    nb::gil_scoped_release release;
    (ADD ? add_randomk : decode_randomk)(data.data(), out.size(), k, seed, out.data());
}

// Fresh memory comes from the kernel in 4 KiB pages, and faulting them in costs several times what writing them does.
void prefer_huge_pages(DataOut memory) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t PAGE = 4096;
    const uintptr_t begin = ((uintptr_t)memory.data() + PAGE - 1) & ~(PAGE - 1);
    const uintptr_t end = ((uintptr_t)memory.data() + memory.size()) & ~(PAGE - 1);
    if (begin < end) madvise((void*)begin, end - begin, MADV_HUGEPAGE);  // advice: a refusal changes nothing
#else
    (void)memory;
#endif
}

}  // namespace
}  // namespace thinwire

NB_MODULE(_native, m) {
    using namespace thinwire;
    m.doc() =
        "Kernels: codecs (module.cpp), minibatch training (sampling.cpp). Their contracts and twins are in Python.";
    m.def("isa", [] { return std::string(kernels->isa); }, "The instruction set in use: avx512, avx2 or portable.");
    m.def("set_isa", &set_isa, "isa"_a, "Use this instruction set, or `best`; False where this processor has it not.");
    m.def("set_num_threads", &set_num_threads, "threads"_a, "Let the calling thread's kernels use so many threads.");
    m.def("prefer_huge_pages", &prefer_huge_pages, "memory"_a,
          "Ask the system for huge pages in this memory, which is fresh.");
    m.def("encode_copy", &encode_copy, "x"_a, "dtype"_a, "out"_a,
          "Values as they are, or rounded to two bytes, to `out`; False where one can't be sent.");
    m.def("decode_copy", &decode_copy<false>, "data"_a, "dtype"_a, "out"_a, "What encode_copy wrote, to `out`.");
    m.def("add_copy", &decode_copy<true>, "data"_a, "dtype"_a, "out"_a, "What encode_copy wrote, added to `out`.");
    m.def("encode_uniform", &encode_uniform, "x"_a, "bits"_a, "seed"_a, "out"_a,
          "Rows in so many bits, with a range a row, to `out`; False where one can't be sent.");
    m.def("decode_uniform", &decode_uniform<false>, "data"_a, "bits"_a, "out"_a,
          "What encode_uniform wrote, to `out`.");
    m.def("add_uniform", &decode_uniform<true>, "data"_a, "bits"_a, "out"_a,
          "What encode_uniform wrote, added to `out`.");
    m.def("encode_mixed", &encode_mixed, "x"_a, "bits"_a, "seed"_a, "out"_a,
          "Rows in bits[row] bits, with a range a row, to `out`; False where one can't be sent.");
    m.def("decode_mixed", &decode_mixed<false>, "data"_a, "bits"_a, "out"_a, "What encode_mixed wrote, to `out`.");
    m.def("add_mixed", &decode_mixed<true>, "data"_a, "bits"_a, "out"_a, "What encode_mixed wrote, added to `out`.");
    m.def(
        "encode_sign", [](Values x, DataOut out) { return encode_scaled<1>(x, 0, out); }, "x"_a, "out"_a,
        "Values as signs, scaled by the mean magnitude, to `out`; False where one can't be sent.");
    m.def("decode_sign", &decode_scaled<1, false>, "data"_a, "out"_a, "What encode_sign wrote, to `out`.");
    m.def("add_sign", &decode_scaled<1, true>, "data"_a, "out"_a, "What encode_sign wrote, added to `out`.");
    m.def("encode_ternary", &encode_scaled<2>, "x"_a, "seed"_a, "out"_a,
          "Values as -1, 0 or 1, scaled by the largest magnitude, to `out`; False where one can't be sent.");
    m.def("decode_ternary", &decode_scaled<2, false>, "data"_a, "out"_a, "What encode_ternary wrote, to `out`.");
    m.def("add_ternary", &decode_scaled<2, true>, "data"_a, "out"_a, "What encode_ternary wrote, added to `out`.");
    m.def("encode_qsgd", &encode_qsgd, "x"_a, "bits"_a, "bucket"_a, "seed"_a, "out"_a,
          "Values in so many bits, with a scale a bucket, to `out`; False where one can't be sent.");
    m.def("decode_qsgd", &decode_qsgd<false>, "data"_a, "bits"_a, "bucket"_a, "out"_a,
          "What encode_qsgd wrote, to `out`.");
    m.def("add_qsgd", &decode_qsgd<true>, "data"_a, "bits"_a, "bucket"_a, "out"_a,
          "What encode_qsgd wrote, added to `out`.");
    m.def("encode_topk", &encode_topk_values, "x"_a, "k"_a, "out"_a,
          "Values the k of largest magnitude, with their positions, to `out`; False where one can't be sent.");
    m.def("decode_topk", &decode_topk_values<false>, "data"_a, "k"_a, "out"_a,
          "What encode_topk wrote, to `out`. False where the bytes are not k ascending positions.");
    m.def("add_topk", &decode_topk_values<true>, "data"_a, "k"_a, "out"_a,
          "What encode_topk wrote, added to `out`. False where the bytes are not k ascending positions.");
    m.def("encode_randomk", &encode_randomk_values, "x"_a, "k"_a, "gain"_a, "seed"_a, "out"_a,
          "Values k that the seed picks, to `out`; False where one can't be sent.");
    m.def("decode_randomk", &decode_randomk_values<false>, "data"_a, "k"_a, "seed"_a, "out"_a,
          "What encode_randomk wrote, to `out`.");
    m.def("add_randomk", &decode_randomk_values<true>, "data"_a, "k"_a, "seed"_a, "out"_a,
          "What encode_randomk wrote, added to `out`.");
    m.def("fit_scale", &fit_scale, "x"_a, "q"_a, "out"_a,
          "The scale that brings q nearest to x, as float32 in `out`; False where it is not finite.");
    m.def("drop_rows", &drop_rows, "x"_a, "ids"_a, "keep"_a, "seed"_a, "out"_a,
          "Dropout by the ids of rows: each value kept by chance `keep`, and divided by it.");
    m.def("row_variances", &row_variances, "x"_a, "bits"_a, "out"_a,
          "The variance that rounding each row to each of these widths adds.");
    bind_differences(m);
    bind_sampling(m);
}
