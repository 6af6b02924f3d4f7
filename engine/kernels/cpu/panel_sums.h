// Where the sums of a panel begin, rest and end.
#pragma once

#include <algorithm>

#include "tile_shape.h"

namespace slipstream {
namespace {

// Where the sums of rows begin, `stride` floats apart: 0 where all begin with the same.
struct Starts {
    const float* at;
    int64_t stride;

    Starts shifted(int64_t rows, int64_t columns) const {
        return {at + rows * stride + columns, stride};
    }
};

// Where they rest between slices, and end.
struct Sums {
    float* at;
    int64_t stride;

    Sums shifted(int64_t rows, int64_t columns) const {
        return {at + rows * stride + columns, stride};
    }
    operator Starts() const { return {at, stride}; }
};

// A linear layer and what it is applied to.
struct Problem {
    const float* x;         // as pack_rows leaves it
    const uint8_t* panels;  // [ceil(columns / 32)] of the format's
    const float* bias;      // [columns] or null
    float* y;               // [rows, columns]
    int64_t rows, columns, depth;
    bool adds = false;      // y += x W^T + b: the sums begin with what is in y
};

// A panel's sums in y, of rows from `first` on.
inline Sums sums_in_y(const Problem& p, int64_t index, int64_t first) {
    return {p.y + first * p.columns + index * kPanel, p.columns};
}

inline void copy_row(const float* from, float* to, int64_t width) {
    if (width < kPanel) return void(std::memcpy(to, from, width * sizeof(float)));
#pragma GCC unroll 8
    for (int c = 0; c < kPanel; c += kLanes) store(to + c, load(from + c));
}

// Where the sums of a panel for rows [first, first + count) begin: with the bias or 0, where they are
// in memory, else in `rest`, which may be in y.
inline Starts begin_sums(const Problem& p, int64_t index, int64_t first, int64_t count, Sums rest) {
    alignas(64) static constexpr float kZeros[2 * kPanel] = {};
    const int64_t column = index * kPanel, width = std::min<int64_t>(kPanel, p.columns - column);
    if (width == kPanel && !p.adds) return {p.bias ? p.bias + column : kZeros, 0};
    const Sums y = sums_in_y(p, index, first);
    for (int64_t r = 0; r < count; ++r) {
        const float* from = y.at + r * y.stride;
        float* to = rest.at + r * rest.stride;
        if (width < kPanel) std::memset(to, 0, kPanel * sizeof(float));
        if (p.adds && from != to) copy_row(from, to, width);
        if (p.bias)
            for (int64_t c = 0; c < width; ++c) to[c] += p.bias[column + c];
    }
    return rest;
}

// Bring them to y.
inline void end_sums(const Problem& p, int64_t index, int64_t first, int64_t count, Sums rest) {
    const int64_t width = std::min<int64_t>(kPanel, p.columns - index * kPanel);
    const Sums y = sums_in_y(p, index, first);
    for (int64_t r = 0; r < count; ++r)
        copy_row(rest.at + r * rest.stride, y.at + r * y.stride, width);
}

}  // namespace
}  // namespace slipstream
