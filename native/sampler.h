// Batches sampled ahead of use, in order, by as many threads as were asked for. They block while there is nothing to do
// or `ahead` batches wait to be fetched.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "sample.h"

namespace thinwire {

struct Todo {
    std::vector<int64_t> seeds;
    uint64_t seed;
};

template <class Id>
class Sampler {
  public:
    Sampler(Topology<Id> graph, Held held, std::vector<int64_t> fanouts, bool with_edges, int threads, int64_t ahead)
        : graph_(graph), held_(std::move(held)), fanouts_(std::move(fanouts)), with_edges_(with_edges), ahead_(ahead) {
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    }

    ~Sampler() {
        {
            const std::lock_guard lock(mutex_);
            stops_ = true;
        }
        changed_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    // Add batches to sample, behind those that wait.
    void add(std::vector<Todo> todo) {
        {
            const std::lock_guard lock(mutex_);
            for (auto& each : todo) queue_.push_back({std::move(each), nullptr, nullptr});
        }
        changed_.notify_all();
    }

    // The next one; waits for it.
    Batch next() {
        std::unique_lock lock(mutex_);
        if (queue_.empty()) throw std::out_of_range("no batch is left");
        changed_.wait(lock, [&] { return queue_.front().batch || queue_.front().error; });
        const Entry entry = std::move(queue_.front());
        queue_.pop_front();
        --taken_;
        lock.unlock();
        changed_.notify_all();
        if (entry.error) std::rethrow_exception(entry.error);
        return std::move(*entry.batch);
    }

  private:
    struct Entry {
        Todo todo;
        std::unique_ptr<Batch> batch;
        std::exception_ptr error;
    };

    void work() {
        Scratch<Id> scratch;
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return stops_ || taken_ < std::min(ahead_, (int64_t)queue_.size()); });
            if (stops_) return;
            // A deque's entries stay where they are while others come and go at its ends; this one goes when it is
            // done.
            Entry& own = queue_[taken_++];
            lock.unlock();
            std::unique_ptr<Batch> batch;
            std::exception_ptr error;
            try {
                batch =
                    std::make_unique<Batch>(sample(graph_, held_, own.todo.seeds.data(), (int64_t)own.todo.seeds.size(),
                                                   fanouts_, with_edges_, own.todo.seed, scratch));
            } catch (...) {
                error = std::current_exception();
                scratch = Scratch<Id>{};  // whatever it was left in
            }
            lock.lock();
            own.batch = std::move(batch);
            own.error = error;
            changed_.notify_all();
        }
    }

    const Topology<Id> graph_;
    const Held held_;
    const std::vector<int64_t> fanouts_;
    const bool with_edges_;
    const int64_t ahead_;
    std::deque<Entry> queue_;  // what is to be sampled; the first `taken_` are being, or have been
    int64_t taken_ = 0;
    bool stops_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::thread> threads_;
};

}  // namespace thinwire
