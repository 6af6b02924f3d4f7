// Linear layers of any format, for callers that have a team of threads of their own.
#pragma once

#include <cstdint>

#define SLIPSTREAM_LOCAL __attribute__((visibility("hidden")))

namespace slipstream {

// A packed linear layer. The fields are eight bytes each: they are filled in from Python.
struct Linear {
    int64_t format;         // kFloat32, or a number of quantized_linear.cpp
    const uint8_t* panels;  // [ceil(columns / 32)] of the format's
    const float* bias;      // [columns] or null
    int64_t columns, depth;
};

constexpr int64_t kFloat32 = -1;

// What a linear layer is applied to.
struct Rows {
    const float* packed;  // as the format's packer leaves them; one row as it stands
    float* y;             // [count, columns]
    int64_t count;
    bool adds;            // y += instead of y =
};

// Panels [first, last) of a layer: one thread's share.
SLIPSTREAM_LOCAL void run_float_panels(const Linear& linear, const Rows& rows, int64_t first,
                                       int64_t last);
SLIPSTREAM_LOCAL void run_quantized_panels(const Linear& linear, const Rows& rows, int64_t first,
                                           int64_t last);

}  // namespace slipstream
