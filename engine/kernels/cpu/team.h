// Threads that go through the same phases of one piece of work and wait for each other in between.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "linear.h"

namespace slipstream {

// A barrier that is passed in about a microsecond while all threads run. Who waits longer sleeps until
// the last one comes: a thread that spins on, or yields its core again and again, is charged for time
// in which it did nothing, and where other programs want the cores it then waits at each barrier until
// they have had theirs.
class SLIPSTREAM_LOCAL Barrier {
public:
    explicit Barrier(int64_t size) : size_(size) {}

    void wait() {
        if (size_ == 1) return;
        const uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            // In one order with the sleepers' own: either they are seen here, or they see the phase.
            phase_.store(phase + 1, std::memory_order_seq_cst);
            if (sleepers_.load(std::memory_order_seq_cst) > 0) wake();
            return;
        }
        for (int64_t spins = 0; spins < kSpins; ++spins) {
            if (phase_.load(std::memory_order_acquire) != phase) return;
            pause();
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (phase_.load(std::memory_order_seq_cst) == phase) sleep(phase);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

private:
    // On x86 5 to 20 microseconds, by how long a pause is: longer than most phases of a small model
    // wait for their last thread. Elsewhere a pause is shorter, and who waits sleeps sooner.
    static constexpr int64_t kSpins = 500;

#if defined(__linux__)
    // Until it is woken; at once if the phase is over.
    void sleep(uint32_t phase) {
        syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
    }

    void wake() {
        constexpr int all = std::numeric_limits<int>::max();
        syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, all, nullptr, nullptr, 0);
    }
#else
    void sleep(uint32_t) { std::this_thread::yield(); }
    void wake() {}
#endif

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    const int64_t size_;
    std::atomic<int64_t> arrived_{0};
    std::atomic<uint32_t> phase_{0};
    std::atomic<int64_t> sleepers_{0};
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
