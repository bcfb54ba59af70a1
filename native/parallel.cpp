#include "parallel.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace thinwire {
namespace {

thread_local int allowed = 1;

// torch's own OpenMP runtime, which it loads for all to see, if it has one. Its workers keep spinning for milliseconds
// after torch's last operator. Other threads would fight them for the cores, so they do the work.
using RunTeam = void (*)(void (*body)(void*), void* context, unsigned threads, unsigned flags);

RunTeam torch_team() {
    static const auto team = reinterpret_cast<RunTeam>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    return team;
}

void run_on_fresh_threads(int parts, void (*body)(void*), void* context) {
    std::vector<std::thread> threads;
    threads.reserve(parts - 1);
    try {
        for (int i = 1; i < parts; ++i) threads.emplace_back(body, context);
    } catch (const std::system_error&) {
        // No more threads can be started: those there are, at least this one, do all parts.
    }
    body(context);
    for (auto& thread : threads) thread.join();
}

}  // namespace

void set_num_threads(int threads) { allowed = std::max(1, threads); }

int most_parts() { return allowed; }

int parallel(int64_t count, int64_t align, int64_t grain, const std::function<void(int, Range)>& work) {
    const int64_t units = (count + align - 1) / align;
    const int64_t useful = count / std::max<int64_t>(1, grain);
    const int parts = (int)std::clamp<int64_t>(std::min(useful, units), 1, allowed);
    auto range = [&](int64_t part) {
        return Range{std::min(count, units * part / parts * align),
                     std::min(count, units * (part + 1) / parts * align)};
    };
    if (parts == 1) {
        const WithSubnormals scope;
        work(0, range(0));
        return 1;
    }
    std::vector<std::exception_ptr> failures(parts);
    std::atomic<int> next{0};
    // A free worker takes the next part: the team may be smaller than was asked for.
    auto take_parts = [&] {
        const WithSubnormals scope;
        for (int part = next++; part < parts; part = next++) {
            try {
                work(part, range(part));
            } catch (...) {
                failures[part] = std::current_exception();
            }
        }
    };
    auto body = [](void* context) { (*static_cast<decltype(take_parts)*>(context))(); };
    if (RunTeam team = torch_team()) team(body, &take_parts, (unsigned)parts, 0);
    else run_on_fresh_threads(parts, body, &take_parts);
    for (auto& failure : failures)
        if (failure) std::rethrow_exception(failure);
    return parts;
}

}  // namespace thinwire
