// Products of a few rows with a small matrix, for attention.
#pragma once

#include "kv_rows.h"
#include "tile.h"

namespace slipstream {
namespace {

// The sums that fit the registers beside what is multiplied.
constexpr int kSums = kTileRows * kTileVectors;

// Rounded once wherever the processor can, as in vectors: a compiler that makes vectors of the products
// alone would round them by themselves.
inline float multiply_add(float a, float b, float sum) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, sum);
#else
    return a * b + sum;
#endif
}

// sums[r] += x[r][k] * rows[k] over k, for kVectors vectors of a row from `column` on. `ask` is called
// at each k.
template <class Format, int kRows, int kVectors, class Ask>
inline __attribute__((always_inline)) void multiply(const float* x, int64_t ldx, int64_t depth,
                                                    const uint8_t* rows, int64_t row_bytes,
                                                    int64_t column, float* sums, int64_t stride,
                                                    Ask& ask) {
    Vector acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = load(sums + r * stride + column + v * kLanes);
    for (int64_t k = 0; k < depth; ++k) {
        ask();
        const uint8_t* row = rows + k * row_bytes;
        Vector w[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) w[v] = Format::vector(row, column + v * kLanes);
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
        for (int v = 0; v < kVectors; ++v) store(sums + r * stride + column + v * kLanes, acc[r][v]);
}

// The same for rows of any width, as many vectors at a time as there are sums for.
template <class Format, int kRows, class Ask>
void multiply_rows(const float* x, int64_t ldx, int64_t depth, const uint8_t* rows,
                   int64_t row_bytes, float* sums, int64_t stride, int64_t width, Ask ask) {
    int64_t c = 0;
    auto take = [&](auto vectors) {
        constexpr int kVectors = vectors.value;
        if constexpr (kVectors == 1 || kRows * kVectors <= kSums)
            for (; c + kVectors * kLanes <= width; c += kVectors * kLanes)
                multiply<Format, kRows, kVectors>(x, ldx, depth, rows, row_bytes, c, sums, stride,
                                                  ask);
    };
    take(std::integral_constant<int, 8>());
    take(std::integral_constant<int, 4>());
    take(std::integral_constant<int, 2>());
    take(std::integral_constant<int, 1>());
    for (int64_t r = 0; r < kRows; ++r)
        for (int64_t i = c; i < width; ++i) {
            float total = sums[r * stride + i];
            for (int64_t k = 0; k < depth; ++k)
                total = multiply_add(x[r * ldx + k], Format::number(rows + k * row_bytes, i), total);
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
