// thinwire._native's part for minibatch training: a sampler that works ahead, sums over neighbours, rows gathered.
// The contract is src/thinwire/minibatch/kernels.py; all sizes and ids are checked here, as a wrong one would reach
// outside memory.
#include "sampling.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <variant>

#include "checks.h"
#include "parallel.h"
#include "sampler.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace thinwire {
namespace {

// What a function reads and writes while it runs.
template <class T>
using Vector = Array<const T, 1>;
template <class T>
using Matrix = Array<T, 2>;
using Bytes = Matrix<const uint8_t>;
using MaybeFloats = std::optional<Vector<float>>;
// What a sampler keeps: these hold a reference of their own.
using KeptIds = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using KeptIndices = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu, nb::ro>;

// Hands a vector over to Python without a copy.
template <class T>
nb::object to_python(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

Held held_of(const Vector<int64_t>& starts, int rank, const Vector<int64_t>& cached) {
    Held held;
    held.starts.assign(starts.data(), starts.data() + starts.size());
    held.rank = rank;
    require(starts.size() >= 2 && rank >= 0 && rank + 1 < starts.size(), "starts and rank do not fit");
    require(std::is_sorted(held.starts.begin(), held.starts.end()) && held.starts[0] == 0, "starts must rise from 0");
    for (int64_t part = 0; part + 1 < starts.size(); ++part)
        require(held.starts[part + 1] - held.starts[part] < INT32_MAX, "a part has more than 2^31 vertices");
    if (cached.size() == 0) return held;
    const int64_t words = held.starts.back() / 64 + 1;
    held.cached.assign(words, 0);
    held.before.assign(words, 0);
    for (int64_t i = 0; i < cached.size(); ++i) {
        const int64_t id = cached.data()[i];
        require(id >= 0 && id < held.starts.back() && (i == 0 || id > cached.data()[i - 1]), "cached ids must rise");
        held.cached[id >> 6] |= uint64_t{1} << (id & 63);
    }
    for (int64_t word = 1; word < words; ++word)
        held.before[word] = held.before[word - 1] + __builtin_popcountll(held.cached[word - 1]);
    return held;
}

template <class Id>
Topology<Id> topology_of(const KeptIds& indptr, const Id* indices, int64_t num_edges) {
    require(indptr.size() >= 1 && indptr.data()[0] == 0, "indptr must begin with 0");
    const int64_t num_nodes = (int64_t)indptr.size() - 1;
    for (int64_t node = 0; node < num_nodes; ++node)
        require(indptr.data()[node] <= indptr.data()[node + 1], "indptr must rise");
    expect(num_edges, indptr.data()[num_nodes], "edges, which indptr ends with");
    for (int64_t edge = 0; edge < num_edges; ++edge)
        require(indices[edge] >= 0 && indices[edge] < num_nodes, "an edge comes from no vertex");
    return {indptr.data(), indices, num_nodes};
}

// A Sampler for either width of ids; keeps the arrays alive that it reads.
class AnySampler {
  public:
    AnySampler(KeptIds indptr, KeptIndices indices, Vector<int64_t> starts, int rank, Vector<int64_t> cached,
               std::vector<int64_t> fanouts, bool with_edges, int threads, int64_t ahead)
        : indptr_(indptr), indices_(indices) {
        require(threads >= 1 && ahead >= 1, "a sampler needs a thread, and room for a batch");
        for (int64_t fanout : fanouts)
            require(fanout == -1 || (fanout >= 1 && fanout < (1 << 20)), "fan-outs are -1 or 1 to 2^20");
        Held held = held_of(starts, rank, cached);
        expect(held.starts.back(), (int64_t)indptr.size() - 1, "vertices, which starts ends with");
        const auto count = (int64_t)indices.shape(0);
        if (indices.dtype() == nb::dtype<int32_t>())
            make<int32_t>(static_cast<const int32_t*>(indices.data()), count, std::move(held), fanouts, with_edges,
                          threads, ahead);
        else if (indices.dtype() == nb::dtype<int64_t>())
            make<int64_t>(static_cast<const int64_t*>(indices.data()), count, std::move(held), fanouts, with_edges,
                          threads, ahead);
        else throw std::invalid_argument("indices must be int32 or int64");
    }

    void add(Vector<int64_t> seeds, Vector<int64_t> ends, Vector<uint64_t> keys) {
        expect(keys.size(), ends.size(), "Sampler.add, one key a batch");
        std::vector<Todo> todo;
        int64_t from = 0;
        for (int64_t batch = 0; batch < ends.size(); ++batch) {
            const int64_t to = ends.data()[batch];
            require(to >= from && to <= seeds.size(), "ends of batches must rise, up to the number of seeds");
            todo.push_back({{seeds.data() + from, seeds.data() + to}, keys.data()[batch]});
            from = to;
        }
        nb::gil_scoped_release release;
        std::visit([&](auto& sampler) { sampler->add(std::move(todo)); }, sampler_);
    }

    nb::dict next() {
        Batch batch;
        {
            nb::gil_scoped_release release;
            batch = std::visit([](auto& sampler) { return sampler->next(); }, sampler_);
        }
        nb::dict found;
        found["nodes"] = to_python(std::move(batch.nodes));
        found["num_nodes"] = to_python(std::move(batch.num_nodes));
        found["indptr"] = to_python(std::move(batch.indptr));
        found["columns"] = to_python(std::move(batch.columns));
        found["edges"] = to_python(std::move(batch.edges));
        found["column_ptr"] = to_python(std::move(batch.column_ptr));
        found["rows"] = to_python(std::move(batch.rows));
        found["row_edges"] = to_python(std::move(batch.row_edges));
        found["own_at"] = to_python(std::move(batch.own_at));
        found["own_rows"] = to_python(std::move(batch.own_rows));
        found["cached_at"] = to_python(std::move(batch.cached_at));
        found["cached_rows"] = to_python(std::move(batch.cached_rows));
        found["wanted_at"] = to_python(std::move(batch.wanted_at));
        found["wanted_rows"] = to_python(std::move(batch.wanted_rows));
        found["wanted_from"] = to_python(std::move(batch.wanted_from));
        return found;
    }

  private:
    template <class Id>
    void make(const Id* indices, int64_t count, Held held, const std::vector<int64_t>& fanouts, bool with_edges,
              int threads, int64_t ahead) {
        sampler_ = std::make_unique<Sampler<Id>>(topology_of(indptr_, indices, count), std::move(held), fanouts,
                                                 with_edges, threads, ahead);
    }

    KeptIds indptr_;
    KeptIndices indices_;
    std::variant<std::unique_ptr<Sampler<int32_t>>, std::unique_ptr<Sampler<int64_t>>> sampler_;
};

const float* or_null(const MaybeFloats& given, int64_t wanted, const char* what) {
    if (!given) return nullptr;
    require(given->size() >= wanted, what);
    return given->data();
}

void expect_csr(const Vector<int32_t>& indptr, int64_t num_rows, const Vector<int32_t>& entries, int64_t below) {
    require(num_rows >= 0 && num_rows < indptr.size() && indptr.data()[0] == 0, "rows and indptr do not fit");
    for (int64_t row = 0; row < num_rows; ++row)
        require(indptr.data()[row] <= indptr.data()[row + 1], "indptr must rise");
    const int64_t count = indptr.data()[num_rows];
    require(count <= entries.size(), "indptr has more entries than there are");
    for (int64_t i = 0; i < count; ++i)
        require(entries.data()[i] >= 0 && entries.data()[i] < below, "an entry points outside");
}

void sum_neighbours(Vector<int32_t> indptr, Vector<int32_t> columns, MaybeFloats weight, MaybeFloats scale,
                    Matrix<const float> x, Matrix<float> out) {
    const int64_t num_rows = out.shape(0);
    expect_csr(indptr, num_rows, columns, x.shape(0));
    expect(out.shape(1), x.shape(1), "sum_neighbours, columns");
    const float* weights = or_null(weight, indptr.data()[num_rows], "one weight an edge");
    const float* scales = or_null(scale, num_rows, "one scale a row");
    const int64_t width = x.shape(1);
    nb::gil_scoped_release release;
    parallel(num_rows, 1, rows_grain(width), [&](int, Range r) {
        current_kernels().sum_neighbours(indptr.data(), columns.data(), weights, scales, x.data(), r.begin, r.end,
                                         width, out.data());
    });
}

void sum_readers(Vector<int32_t> column_ptr, Vector<int32_t> rows, Vector<int32_t> row_edges, MaybeFloats weight,
                 MaybeFloats scale, Matrix<const float> grad, Matrix<float> out) {
    const int64_t num_rows = grad.shape(0), num_columns = out.shape(0);
    expect_csr(column_ptr, num_columns, rows, INT32_MAX);
    require(row_edges.size() >= column_ptr.data()[num_columns], "one edge an entry");
    expect(out.shape(1), grad.shape(1), "sum_readers, columns");
    const float* scales = or_null(scale, num_rows, "one scale a row");
    const float* weights = or_null(weight, 0, "");
    if (weights)
        for (int64_t i = 0; i < column_ptr.data()[num_columns]; ++i)
            require(rows.data()[i] >= num_rows || (row_edges.data()[i] < weight->size() && row_edges.data()[i] >= 0),
                    "one weight an edge");
    const int64_t width = grad.shape(1);
    nb::gil_scoped_release release;
    parallel(num_columns, 1, rows_grain(width), [&](int, Range r) {
        current_kernels().sum_readers(column_ptr.data(), rows.data(), row_edges.data(), num_rows, weights, scales,
                                      grad.data(), r.begin, r.end, width, out.data());
    });
}

void expect_rows(const Vector<int32_t>& rows, int64_t below, const char* otherwise) {
    for (int64_t i = 0; i < rows.size(); ++i) require(rows.data()[i] >= 0 && rows.data()[i] < below, otherwise);
}

// Bytes of a value in a table of this format: 32 (float32), 16 (float16) or -16 (bfloat16).
int64_t value_bytes(int format) {
    require(format == 32 || format == 16 || format == -16, "stored is 32, 16 or -16");
    return format == 32 ? 4 : 2;
}

void gather_rows(Bytes table, Vector<int32_t> rows, Matrix<uint8_t> out) {
    expect(out.shape(0), rows.size(), "gather_rows, rows");
    expect(out.shape(1), table.shape(1), "gather_rows, bytes a row");
    expect_rows(rows, table.shape(0), "a row is not in the table");
    const int64_t bytes = out.shape(1);
    nb::gil_scoped_release release;
    parallel(rows.size(), 1, rows_grain(bytes / 4), [&](int, Range r) {
        current_kernels().gather_rows(table.data(), rows.data(), r.begin, r.end, bytes, out.data());
    });
}

void take_rows(Bytes table, int format, Vector<int32_t> rows, Vector<int32_t> places, Matrix<float> out) {
    const int64_t width = out.shape(1);
    expect(table.shape(1), width * value_bytes(format), "take_rows, bytes a row");
    expect(places.size(), rows.size(), "take_rows, one place a row");
    expect_rows(rows, table.shape(0), "a row is not in the table");
    expect_rows(places, out.shape(0), "a place is not in out");
    nb::gil_scoped_release release;
    parallel(rows.size(), 1, rows_grain(width), [&](int, Range r) {
        current_kernels().take_rows(table.data(), format, rows.data(), places.data(), r.begin, r.end, width,
                                    out.data());
    });
}

bool encode_taken(Bytes table, int format, Vector<int32_t> rows, int bits, uint64_t seed, Array<uint8_t, 1> out) {
    const int64_t width = table.shape(1) / value_bytes(format);
    expect(table.shape(1), width * value_bytes(format), "encode_taken, bytes a row");
    expect_bits(bits, {1, 2, 4, 8});
    expect(out.size(), rows.size() * row_bytes(width, bits), "encode_taken, bytes");
    expect_rows(rows, table.shape(0), "a row is not in the table");
    std::atomic<bool> ok{true};
    nb::gil_scoped_release release;
    parallel(rows.size(), 1, rows_grain(width), [&](int, Range r) {
        if (!current_kernels().encode_taken(table.data(), format, rows.data(), r.begin, r.end, width, bits, seed,
                                            out.data()))
            ok = false;
    });
    return ok;
}

void decode_placed(Vector<uint8_t> data, Vector<int32_t> places, int bits, Matrix<float> out) {
    const int64_t width = out.shape(1);
    expect_bits(bits, {1, 2, 4, 8});
    expect(data.size(), places.size() * row_bytes(width, bits), "decode_placed, bytes");
    expect_rows(places, out.shape(0), "a place is not in out");
    nb::gil_scoped_release release;
    parallel(places.size(), 1, rows_grain(width), [&](int, Range r) {
        current_kernels().decode_placed(data.data(), places.data(), r.begin, r.end, width, bits, out.data());
    });
}

}  // namespace

void bind_sampling(nb::module_& m) {
    nb::class_<AnySampler>(m, "Sampler",
                           "Samples batches ahead, on threads of its own, and splits their vertices by who holds them.")
        .def(nb::init<KeptIds, KeptIndices, Vector<int64_t>, int, Vector<int64_t>, std::vector<int64_t>, bool, int,
                      int64_t>(),
             "indptr"_a, "indices"_a, "starts"_a, "rank"_a, "cached"_a, "fanouts"_a, "with_edges"_a, "threads"_a,
             "ahead"_a)
        .def("add", &AnySampler::add, "seeds"_a, "ends"_a, "keys"_a,
             "Batches to sample: each one's seeds end where `ends` says; its key is its randomness.")
        .def("next", &AnySampler::next, "The next batch, in the order in which they were added, as arrays by name.");
    m.def("sum_neighbours", &sum_neighbours, "indptr"_a, "columns"_a, "weight"_a.none(), "scale"_a.none(), "x"_a,
          "out"_a,
          "For each row of a CSR the sum of its columns' rows of x, weighted by edge and scaled by row, to `out`.");
    m.def("sum_readers", &sum_readers, "column_ptr"_a, "rows"_a, "row_edges"_a, "weight"_a.none(), "scale"_a.none(),
          "grad"_a, "out"_a, "Its backward: for each column the sum over the rows that read it, to `out`.");
    m.def("gather_rows", &gather_rows, "table"_a, "rows"_a, "out"_a,
          "Rows of a table, as bytes, one after the other, to `out`.");
    m.def("take_rows", &take_rows, "table"_a, "stored"_a, "rows"_a, "places"_a, "out"_a,
          "Rows of a table, as float32, each to its place in `out`.");
    m.def("encode_taken", &encode_taken, "table"_a, "stored"_a, "rows"_a, "bits"_a, "seed"_a, "out"_a,
          "Rows of a table as encode_uniform writes them, to `out`; False where one can't be sent.");
    m.def("decode_placed", &decode_placed, "data"_a, "places"_a, "bits"_a, "out"_a,
          "What encode_taken wrote, each row to its place in `out`.");
}

}  // namespace thinwire
