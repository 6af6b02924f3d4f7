// Memory that is asked for before it is wanted, so that multiplying does not wait for it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear.h"

namespace slipstream {

// How far the weights are asked for ahead where they are used once, into the second cache: into the
// first the processor has fewer requests under way. 8 rows of the default model in float32 went from
// 1.41 to 1.24 s for 65 steps on Zen 4, one row stayed as it was.
constexpr int64_t kAheadBytes = 6144;
constexpr int64_t kLineBytes = 64;

// Memory that will be wanted soon, asked for in small portions while something else is multiplied.
// Past the end of the weights it asks for what is not used, harmlessly.
struct SLIPSTREAM_LOCAL Prefetch {
    const uint8_t* next;
    const uint8_t* stop;
    int64_t lines = 0;  // of a portion

    // Bytes of one of `count` parts of so many, in whole lines.
    static int64_t share(int64_t bytes, int64_t count) {
        return (bytes + count * kLineBytes - 1) / (count * kLineBytes) * kLineBytes;
    }

    Prefetch part(int64_t offset, int64_t bytes) const {
        const uint8_t* from = std::min(next + offset, stop);
        return {from, std::min(from + bytes, stop)};
    }

    // Divide it among so many steps, and return how many of them a portion is for: `size`, or if that
    // is 0 few where there is much to ask for, so that the requests of a portion do not wait for each
    // other.
    int64_t divide(int64_t steps, int64_t size) {
        const int64_t all = (stop - next) / kLineBytes;
        if (size == 0) size = 4 * all >= steps ? 8 : 32;
        lines = (all * size + steps - 1) / steps;
        return size;
    }

    void ask() {
        for (int64_t i = 0; i < lines && next < stop; ++i, next += kLineBytes)
            __builtin_prefetch(next, 0, 2);
    }
};

}  // namespace slipstream
