// Threads that go through the same phases of one piece of work and wait for each other in between.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "linear.h"

namespace slipstream {

// A barrier that is passed in about a microsecond while all threads run. One whose partner has lost
// its core gives its own away instead of spinning on: on a crowded machine that is the difference
// between a step and a hundred.
class SLIPSTREAM_LOCAL Barrier {
public:
    explicit Barrier(int64_t size) : size_(size) {}

    void wait() {
        if (size_ == 1) return;
        const int64_t phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        for (int64_t spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins)
            if (spins < kSpins)
                pause();
            else
                std::this_thread::yield();
    }

private:
    // Some 20 microseconds: longer than any phase of a small model waits for its last thread.
    static constexpr int64_t kSpins = 500;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    const int64_t size_;
    std::atomic<int64_t> arrived_{0};
    std::atomic<int64_t> phase_{0};
};

// One thread of a team.
struct SLIPSTREAM_LOCAL Member {
    int64_t index, size;
    Barrier& barrier;

    int64_t begin(int64_t count) const { return count * index / size; }
    int64_t end(int64_t count) const { return count * (index + 1) / size; }
};

// Call `action(member)` on each of a team's threads, at most `threads` of them.
template <class Action>
void with_team(int64_t threads, Action action) {
#ifdef _OPENMP
    // How many come is known only inside: a barrier for more would never open.
    Barrier* barrier = nullptr;
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        barrier = new Barrier(omp_get_num_threads());
        action(Member{omp_get_thread_num(), omp_get_num_threads(), *barrier});
    }
    delete barrier;
#else
    Barrier barrier(1);
    action(Member{0, 1, barrier});
#endif
}

}  // namespace slipstream
