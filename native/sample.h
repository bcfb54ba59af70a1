// Node-wise neighbour sampling: seeds, their neighbours, those neighbours' neighbours, in one compact CSR.
// The specification is src/thinwire/minibatch/twins.py.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire {

// In-neighbours of every vertex; ids are 32 or 64 bits wide.
template <class Id>
struct Topology {
    const int64_t* indptr;
    const Id* indices;
    int64_t num_nodes;
};

// Which vertices this rank holds: its own range, and cached ones in the order of their ids.
struct Held {
    std::vector<int64_t> starts;  // of each part, and the end of the last
    int rank = 0;
    std::vector<uint64_t> cached;  // a bit a vertex; empty where none is
    std::vector<int64_t> before;   // cached vertices before each word of 64

    bool is_own(int64_t id) const { return id >= starts[rank] && id < starts[rank + 1]; }
    // The row in the cache, or -1.
    int64_t cached_row(int64_t id) const {
        if (cached.empty()) return -1;
        const uint64_t word = cached[id >> 6], bit = uint64_t{1} << (id & 63);
        return word & bit ? before[id >> 6] + __builtin_popcountll(word & (bit - 1)) : -1;
    }
    int owner_of(int64_t id) const {
        int low = 0, high = (int)starts.size() - 1;  // the last start that is at most id
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (starts[middle] <= id ? low : high) = middle;
        }
        return low;
    }
};

// Vertices in the order in which they were found: seeds first, then hop by hop. Rows of the CSR are those of all hops
// but the last; a layer's adjacency is a prefix of it.
struct Batch {
    std::vector<int64_t> nodes;
    std::vector<int64_t> num_nodes;  // seeds, and with each hop
    std::vector<int32_t> indptr;
    std::vector<int32_t> columns;
    std::vector<int64_t> edges;  // where each stands in the topology; none where nobody asks
    // The transpose, of all layers but the first one computed, whose input needs no gradient: the rows of each column,
    // ascending, and which edges they are.
    std::vector<int32_t> column_ptr;
    std::vector<int32_t> rows;
    std::vector<int32_t> row_edges;
    std::vector<int32_t> own_at, own_rows;        // vertices of this rank's: their place in the batch, and their row
    std::vector<int32_t> cached_at, cached_rows;  // cached ones, and their row in the cache
    std::vector<int32_t> wanted_at, wanted_rows;  // others, grouped by owner, and their row there
    std::vector<int64_t> wanted_from;             // how many of each owner
};

// Vertex -> place in the batch: open addressing, kept across hops, emptied by what was put in.
template <class Id>
class Places {
  public:
    Places();
    void reserve(int64_t count);
    void prefetch(Id id) const { __builtin_prefetch(&slots_[at(id)], 1); }
    // The place of this vertex; `next` becomes its place if it has none.
    int32_t find_or_add(Id id, int32_t next);
    void clear(const std::vector<int64_t>& added);

  private:
    struct Slot {
        Id id;
        int32_t place;
    };
    size_t at(Id id) const { return (size_t)((uint64_t)id * 0x9e3779b97f4a7c15u >> shift_); }
    std::vector<Slot> slots_;
    int64_t used_ = 0;
    int shift_;
};

// One thread's scratch memory.
template <class Id>
struct Scratch {
    Places<Id> places;
    std::vector<int64_t> positions;
    std::vector<Id> ids;
    std::vector<int64_t> chosen;
    std::vector<uint64_t> taken;
    size_t nodes = 0, edges = 0;  // of the largest batch so far: the next one's memory is had at once
};

// `fanouts` from the seeds outwards, -1 for all. The same for the same seed, whoever calls.
// `with_edges`: also say which edges of the topology were drawn.
template <class Id>
Batch sample(const Topology<Id>& graph, const Held& held, const int64_t* seeds, int64_t num_seeds,
             const std::vector<int64_t>& fanouts, bool with_edges, uint64_t seed, Scratch<Id>& scratch);

extern template Batch sample(const Topology<int32_t>&, const Held&, const int64_t*, int64_t,
                             const std::vector<int64_t>&, bool, uint64_t, Scratch<int32_t>&);
extern template Batch sample(const Topology<int64_t>&, const Held&, const int64_t*, int64_t,
                             const std::vector<int64_t>&, bool, uint64_t, Scratch<int64_t>&);

}  // namespace thinwire
