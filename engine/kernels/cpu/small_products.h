// Products of a few rows with a matrix whose rows may lie anywhere, for attention.
#pragma once

#include "tile.h"

namespace slipstream {
namespace {

// The sums that fit the registers beside what is multiplied.
constexpr int kSums = kTileRows * kTileVectors;

// sums[r] += x[r][k] * row_of(k) over k, for kVectors vectors of a row.
template <int kRows, int kVectors, class RowOf>
inline __attribute__((always_inline)) void multiply(const float* x, int64_t ldx, int64_t depth,
                                                    RowOf row_of, float* sums, int64_t stride) {
    Vector acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = load(sums + r * stride + v * kLanes);
    for (int64_t k = 0; k < depth; ++k) {
        const float* row = row_of(k);
        Vector w[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) w[v] = load(row + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            const float a = x[r * ldx + k];
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) acc[r][v] += w[v] * a;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) store(sums + r * stride + v * kLanes, acc[r][v]);
}

// The same for rows of any width.
template <int kRows, class RowOf>
void multiply_rows(const float* x, int64_t ldx, int64_t depth, RowOf row_of, float* sums,
                   int64_t stride, int64_t width) {
    constexpr int kFit = kSums / kRows;
    constexpr int kVectors = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
    int64_t c = 0;
    auto from = [&](int64_t k) { return row_of(k) + c; };
    for (; c + kVectors * kLanes <= width; c += kVectors * kLanes)
        multiply<kRows, kVectors>(x, ldx, depth, from, sums + c, stride);
    for (; c + kLanes <= width; c += kLanes)
        multiply<kRows, 1>(x, ldx, depth, from, sums + c, stride);
    for (int64_t r = 0; r < kRows; ++r)
        for (int64_t i = c; i < width; ++i) {
            float total = sums[r * stride + i];
            for (int64_t k = 0; k < depth; ++k) total += x[r * ldx + k] * row_of(k)[i];
            sums[r * stride + i] = total;
        }
}

// Call `action(std::integral_constant<int, rows>)` for a number of rows that is not constant.
template <int kMost, class Action>
void with_rows(int64_t rows, Action action) {
    if constexpr (kMost > 1)
        if (rows < kMost) return with_rows<kMost - 1>(rows, action);
    action(std::integral_constant<int, kMost>());
}

}  // namespace
}  // namespace slipstream
