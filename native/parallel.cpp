#include "parallel.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace thinwire {
namespace {
thread_local int allowed = 1;
}

void set_num_threads(int threads) { allowed = std::max(1, threads); }

int most_parts() { return allowed; }

int parallel(int64_t count, int64_t align, int64_t grain, const std::function<void(int, Range)>& work) {
    const int64_t units = (count + align - 1) / align;
    const int64_t useful = count / std::max<int64_t>(1, grain);
    const int parts = (int)std::clamp<int64_t>(std::min(useful, units), 1, allowed);
    auto range = [&](int part) {
        return Range{std::min(count, units * part / parts * align), std::min(count, units * (part + 1) / parts * align)};
    };
    std::vector<std::exception_ptr> failures(parts);
    std::vector<std::thread> threads;
    threads.reserve(parts - 1);
    auto guarded = [&](int part) {
        try {
            work(part, range(part));
        } catch (...) {
            failures[part] = std::current_exception();
        }
    };
    int started = 1;
    try {
        for (; started < parts; ++started) threads.emplace_back(guarded, started);
    } catch (const std::system_error&) {
        // No more threads to be had: the caller does what they would have done.
    }
    for (int part = started; part < parts; ++part) guarded(part);
    guarded(0);
    for (auto& thread : threads) thread.join();
    for (auto& failure : failures)
        if (failure) std::rethrow_exception(failure);
    return parts;
}

}  // namespace thinwire
