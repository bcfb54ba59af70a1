#include "sample.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "splitmix.h"

namespace thinwire {
namespace {

constexpr int64_t BLOCK = 16;  // rows whose memory is fetched ahead together
constexpr int64_t SCAN = 48;   // picks up to which looking through them beats a bitmap
constexpr int PICK_BITS = 20;  // of a draw's counter: picks of one row

// Uniform in 0 .. most, of which there are less than 2^32.
int64_t draw(uint64_t key, int64_t row, int64_t pick, int64_t most) {
    const uint64_t word = splitmix64(key + ((uint64_t)row << PICK_BITS | (uint64_t)pick));
    return (int64_t)((word >> 32) * (uint64_t)(most + 1) >> 32);
}

// Floyd: `count` of `degree` places, each set equally likely.
template <class Id>
void choose(uint64_t key, int64_t row, int64_t degree, int64_t count, Scratch<Id>& scratch) {
    auto& chosen = scratch.chosen;
    chosen.clear();
    if (count <= SCAN) {
        for (int64_t pick = 0; pick < count; ++pick) {
            const int64_t last = degree - count + pick, drawn = draw(key, row, pick, last);
            const bool seen = std::find(chosen.begin(), chosen.end(), drawn) != chosen.end();
            chosen.push_back(seen ? last : drawn);
        }
        return;
    }
    auto& taken = scratch.taken;
    taken.assign((degree + 63) / 64, 0);
    for (int64_t pick = 0; pick < count; ++pick) {
        const int64_t last = degree - count + pick, drawn = draw(key, row, pick, last);
        const int64_t place = taken[drawn >> 6] >> (drawn & 63) & 1 ? last : drawn;
        taken[place >> 6] |= uint64_t{1} << (place & 63);
        chosen.push_back(place);
    }
}

void transpose(Batch& batch) {
    const size_t hops = batch.num_nodes.size() - 1;
    const int64_t num_rows = hops > 1 ? batch.num_nodes[hops - 2] : 0, num_columns = batch.num_nodes[hops - 1];
    const int32_t num_edges = batch.indptr[num_rows];
    batch.column_ptr.assign(num_columns + 1, 0);
    for (int32_t edge = 0; edge < num_edges; ++edge) ++batch.column_ptr[batch.columns[edge] + 1];
    for (int64_t column = 0; column < num_columns; ++column) batch.column_ptr[column + 1] += batch.column_ptr[column];
    batch.rows.resize(num_edges);
    batch.row_edges.resize(num_edges);
    std::vector<int32_t> next(batch.column_ptr.begin(), batch.column_ptr.end() - 1);
    for (int64_t row = 0; row < num_rows; ++row)
        for (int32_t edge = batch.indptr[row]; edge < batch.indptr[row + 1]; ++edge) {
            const int32_t at = next[batch.columns[edge]]++;
            batch.rows[at] = (int32_t)row;
            batch.row_edges[at] = edge;
        }
}

void split(Batch& batch, const Held& held) {
    const int parts = (int)held.starts.size() - 1;
    std::vector<std::vector<int32_t>> at(parts);
    batch.own_at.reserve(batch.nodes.size());
    batch.own_rows.reserve(batch.nodes.size());
    for (size_t place = 0; place < batch.nodes.size(); ++place) {
        const int64_t id = batch.nodes[place];
        if (held.is_own(id)) {
            batch.own_at.push_back((int32_t)place);
            batch.own_rows.push_back((int32_t)(id - held.starts[held.rank]));
        } else if (const int64_t row = held.cached_row(id); row >= 0) {
            batch.cached_at.push_back((int32_t)place);
            batch.cached_rows.push_back((int32_t)row);
        } else {
            at[held.owner_of(id)].push_back((int32_t)place);
        }
    }
    for (int part = 0; part < parts; ++part) {
        batch.wanted_from.push_back((int64_t)at[part].size());
        for (int32_t place : at[part]) {
            batch.wanted_at.push_back(place);
            batch.wanted_rows.push_back((int32_t)(batch.nodes[place] - held.starts[part]));
        }
    }
}

}  // namespace

template <class Id>
Places<Id>::Places() : slots_(1 << 12, Slot{-1, 0}), shift_(64 - 12) {}

template <class Id>
void Places<Id>::reserve(int64_t count) {
    if (2 * (used_ + count) <= (int64_t)slots_.size()) return;
    while (2 * (used_ + count) > (int64_t{1} << (64 - shift_))) --shift_;
    std::vector<Slot> old((size_t)1 << (64 - shift_), Slot{-1, 0});
    old.swap(slots_);
    for (const Slot& slot : old)
        if (slot.id >= 0) {
            size_t i = at(slot.id);
            while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
            slots_[i] = slot;
        }
}

template <class Id>
int32_t Places<Id>::find_or_add(Id id, int32_t next) {
    size_t i = at(id);
    for (; slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1))
        if (slots_[i].id == id) return slots_[i].place;
    slots_[i] = Slot{id, next};
    ++used_;
    return next;
}

template <class Id>
void Places<Id>::clear(const std::vector<int64_t>& added) {
    if ((int64_t)added.size() * 4 > (int64_t)slots_.size()) {
        std::fill(slots_.begin(), slots_.end(), Slot{-1, 0});
    } else {
        // Each vertex stands somewhere in the run of full slots from its own; runs are emptied whole.
        for (int64_t id : added)
            for (size_t i = at((Id)id); slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) slots_[i].id = -1;
    }
    used_ = 0;
}

template <class Id>
Batch sample(const Topology<Id>& graph, const Held& held, const int64_t* seeds, int64_t num_seeds,
             const std::vector<int64_t>& fanouts, bool with_edges, uint64_t seed, Scratch<Id>& scratch) {
    Batch batch;
    batch.nodes.reserve(scratch.nodes);
    batch.columns.reserve(scratch.edges);
    batch.indptr.reserve(scratch.nodes);
    if (with_edges) batch.edges.reserve(scratch.edges);
    auto& nodes = batch.nodes;
    auto& places = scratch.places;
    const uint64_t key = splitmix64(seed);
    places.reserve(num_seeds);
    for (int64_t i = 0; i < num_seeds; ++i) {
        if (seeds[i] < 0 || seeds[i] >= graph.num_nodes) {
            places.clear(nodes);
            throw std::invalid_argument("seed " + std::to_string(seeds[i]) + "; vertices are 0 to " +
                                        std::to_string(graph.num_nodes - 1));
        }
        // A vertex given twice has two rows. Whoever looks it up gets the first.
        places.find_or_add((Id)seeds[i], (int32_t)i);
        nodes.push_back(seeds[i]);
    }
    batch.num_nodes.push_back(num_seeds);
    batch.indptr.push_back(0);
    int64_t begin = 0;
    for (int64_t fanout : fanouts) {
        const int64_t end = (int64_t)nodes.size();
        for (int64_t first = begin; first < end; first += BLOCK) {
            const int64_t last = std::min(first + BLOCK, end);
            for (int64_t row = last; row < std::min(last + BLOCK, end); ++row)
                __builtin_prefetch(&graph.indptr[nodes[row]]);
            scratch.positions.clear();
            for (int64_t row = first; row < last; ++row) {
                const int64_t from = graph.indptr[nodes[row]], degree = graph.indptr[nodes[row] + 1] - from;
                if (fanout < 0 || degree <= fanout) {
                    for (int64_t at = 0; at < degree; ++at) scratch.positions.push_back(from + at);
                } else {
                    choose(key, row, degree, fanout, scratch);
                    for (int64_t at : scratch.chosen) scratch.positions.push_back(from + at);
                }
                const int64_t filled = (int64_t)(batch.columns.size() + scratch.positions.size());
                if (filled > std::numeric_limits<int32_t>::max()) {
                    places.clear(nodes);
                    throw std::length_error("a batch of more than 2^31 edges; give fewer seeds or smaller fan-outs");
                }
                batch.indptr.push_back((int32_t)filled);
            }
            for (int64_t at : scratch.positions) __builtin_prefetch(&graph.indices[at]);
            scratch.ids.clear();
            places.reserve((int64_t)scratch.positions.size());
            for (int64_t at : scratch.positions) {
                scratch.ids.push_back(graph.indices[at]);
                places.prefetch(graph.indices[at]);
            }
            const size_t filled = batch.columns.size();
            batch.columns.resize(filled + scratch.ids.size());
            int32_t* column = batch.columns.data() + filled;
            for (Id id : scratch.ids) {
                const auto next = (int32_t)nodes.size();
                *column = places.find_or_add(id, next);
                if (*column++ == next) nodes.push_back(id);
            }
            if (with_edges) batch.edges.insert(batch.edges.end(), scratch.positions.begin(), scratch.positions.end());
        }
        batch.num_nodes.push_back((int64_t)nodes.size());
        begin = end;
    }
    places.clear(nodes);
    scratch.nodes = std::max(scratch.nodes, nodes.size() + nodes.size() / 16);
    scratch.edges = std::max(scratch.edges, batch.columns.size() + batch.columns.size() / 16);
    transpose(batch);
    split(batch, held);
    return batch;
}

template class Places<int32_t>;
template class Places<int64_t>;
template Batch sample(const Topology<int32_t>&, const Held&, const int64_t*, int64_t, const std::vector<int64_t>&, bool,
                      uint64_t, Scratch<int32_t>&);
template Batch sample(const Topology<int64_t>&, const Held&, const int64_t*, int64_t, const std::vector<int64_t>&, bool,
                      uint64_t, Scratch<int64_t>&);

}  // namespace thinwire
