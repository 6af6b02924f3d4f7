// Rows as the tiles of packed layers read them.
#pragma once

#include <algorithm>

#include "tile_shape.h"

namespace slipstream {
namespace {

// Rows of a tile, of so many rows in all: nearly the same for all tiles, since one with few rows has
// too few sums to keep the processor busy.
inline int64_t tile_height(int64_t rows) {
    const int64_t tiles = std::max<int64_t>(1, (rows + kTileRows - 1) / kTileRows);
    return std::max<int64_t>(1, (rows + tiles - 1) / tiles);
}

// Four steps of four rows, or of two, side by side for each step: `to` has steps `height` apart.
inline void pack_four_rows(const float* x, int64_t ldx, float* to, int64_t height) {
    Four in[4];
    for (int r = 0; r < 4; ++r) std::memcpy(&in[r], x + r * ldx, sizeof(Four));
    const Four low[2] = {__builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
                         __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5)};
    const Four high[2] = {__builtin_shufflevector(in[0], in[1], 2, 6, 3, 7),
                          __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7)};
    const Four out[4] = {__builtin_shufflevector(low[0], low[1], 0, 1, 4, 5),
                         __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7),
                         __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5),
                         __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7)};
    for (int k = 0; k < 4; ++k) std::memcpy(to + k * height, &out[k], sizeof(Four));
}
inline void pack_two_rows(const float* x, int64_t ldx, float* to, int64_t height) {
    Four in[2];
    for (int r = 0; r < 2; ++r) std::memcpy(&in[r], x + r * ldx, sizeof(Four));
    const Four pairs[2] = {__builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
                           __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7)};
    float floats[8];
    std::memcpy(floats, pairs, sizeof(floats));
    for (int k = 0; k < 4; ++k) std::memcpy(to + k * height, floats + 2 * k, 2 * sizeof(float));
}

// Lay the `height` rows of one tile, the first of which is row `first` of `rows`, side by side for each
// k. Slices of k are far apart, and the tiles lie next to each other: in this order they are read.
inline void pack_rows(const float* x, int64_t ldx, float* packed, int64_t first, int64_t height,
                      int64_t rows, int64_t depth) {
    for (int64_t begin = 0; begin < depth; begin += kSlice) {
        const int64_t steps = std::min(kSlice, depth - begin);
        float* to = packed + begin * rows + first * steps;
        int64_t k = 0;
        for (; k + 4 <= steps; k += 4) {
            const float* from = x + begin + k;
            float* at = to + k * height;
            int64_t r = 0;
            for (; r + 4 <= height; r += 4) pack_four_rows(from + r * ldx, ldx, at + r, height);
            for (; r + 2 <= height; r += 2) pack_two_rows(from + r * ldx, ldx, at + r, height);
            for (; r < height; ++r)
                for (int64_t j = 0; j < 4; ++j) at[j * height + r] = from[r * ldx + j];
        }
        for (; k < steps; ++k)
            for (int64_t r = 0; r < height; ++r) to[k * height + r] = x[r * ldx + begin + k];
    }
}

}  // namespace
}  // namespace slipstream
