// Splits a range over threads: the team of workers that torch itself uses, or threads that live only for the call.
#pragma once
#include <cstdint>
#include <functional>

namespace thinwire {

// Threads the calling thread may use; every kernel gives the same bytes for any number.
void set_num_threads(int threads);

struct Range {
    int64_t begin, end;
};

// Calls work(part, range) for consecutive ranges covering [0, count), cut at multiples of `align`, of at
// least `grain` items each (waking a worker costs microseconds, starting a thread 30: a part should take longer).
// Returns how many parts there were.
int parallel(int64_t count, int64_t align, int64_t grain, const std::function<void(int, Range)>& work);

// The most parts `parallel` will make of anything.
int most_parts();

}  // namespace thinwire
