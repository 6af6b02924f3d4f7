// Tiles of rows times panels of integer weights, by whatever the processor has for it.
#pragma once

#include "integer_formats.h"
#include "linear.h"

namespace slipstream {

// Add what a panel makes of `count` rows to sums [count][32].
using MultiplyRows = void (*)(int64_t count, const uint8_t* panel, const Activations* const* rows,
                              int64_t groups, Prefetch prefetch, float (*sums)[kPanel]);

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
