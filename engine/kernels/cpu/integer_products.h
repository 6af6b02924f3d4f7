// Tiles of rows times panels of integer weights, by whatever the processor has for it.
#pragma once

#include "integer_formats.h"
#include "linear.h"

namespace slipstream {

// What a tile asks for while it is multiplied: some lines of the next panel with every group, or,
// without one, its own panel a little ahead.
struct Ahead {
    const uint8_t* next;
    int64_t lines;

    template <class Format>
    void ask(const uint8_t* group) {
        if (!next) return ask_ahead(group, Format::kBytes);
        // Into the second cache: in the first is the panel that is multiplied.
        for (int64_t i = 0; i < lines; ++i, next += kLineBytes) __builtin_prefetch(next, 0, 2);
    }
};

// Add what a panel makes of `count` rows to sums [count][32].
using MultiplyRows = void (*)(int64_t count, const uint8_t* panel, const Activations* const* rows,
                              int64_t groups, Ahead ahead, float (*sums)[kPanel]);

struct Products {
    MultiplyRows w8a8, w4a8;
    int64_t most_rows;  // at a time
};

constexpr int64_t kMostProductRows = 8;

SLIPSTREAM_LOCAL Products byte_products();

// What `byte_products` does, to the bit; only where has_dot_products().
SLIPSTREAM_LOCAL bool has_dot_products();
SLIPSTREAM_LOCAL Products dot_products();

}  // namespace slipstream
