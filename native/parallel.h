// Splits a range over threads: the team of workers that torch itself uses, or threads that live only for the call.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thinwire {

// Subnormals count, whatever the caller has told this thread's floating-point unit: bytes must not depend on it.
class WithSubnormals {
  public:
#if defined(__x86_64__)
    WithSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
    ~WithSubnormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#endif
};

// Threads the calling thread may use; every kernel gives the same bytes for any number.
void set_num_threads(int threads);

struct Range {
    int64_t begin, end;
};

// Calls work(part, range) for consecutive ranges covering [0, count), cut at multiples of `align`, of at
// least `grain` items each (waking a worker costs microseconds, starting a thread 30: a part should take longer).
// Returns how many parts there were.
int parallel(int64_t count, int64_t align, int64_t grain, const std::function<void(int, Range)>& work);

constexpr int64_t GRAIN = 1 << 15;  // values a thread must have to be worth starting

// The same in rows of so many values.
inline int64_t rows_grain(int64_t width) { return std::max<int64_t>(1, GRAIN / std::max<int64_t>(1, width)); }

// The most parts `parallel` will make of anything.
int most_parts();

}  // namespace thinwire
