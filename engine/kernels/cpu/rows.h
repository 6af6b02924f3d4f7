// What a layer does to one row by itself, in an order of its own, whatever the batch.
#pragma once

#include <cmath>

#include "vector.h"

namespace slipstream {
namespace {

inline float sum_of_squares(const float* x, int64_t width) {
    Vector acc{};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Vector v = load(x + i);
        acc += v * v;
    }
    float total = sum(acc);
    for (; i < width; ++i) total += x[i] * x[i];
    return total;
}

// y = x / sqrt(mean(x^2) + epsilon) * weight; y may be x.
inline void norm_row(const float* x, const float* weight, float* y, int64_t width, float epsilon) {
    const float scale = 1.0f / std::sqrt(sum_of_squares(x, width) / width + epsilon);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        store(y + i, load(weight + i) * (load(x + i) * scale));
    for (; i < width; ++i) y[i] = weight[i] * (x[i] * scale);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// y = silu(gate) * up, for `width` numbers.
inline void silu_mul_row(const float* gate, const float* up, float* y, int64_t width) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Vector g = load(gate + i);
        store(y + i, g / (1.0f + exp(-g)) * load(up + i));
    }
    for (; i < width; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

// Turn a head by its row's angles: with x split in halves (a, b), a' = a cos - b sin and
// b' = b cos + a sin. y may be x.
inline void rotate_head(const float* x, const float* cosines, const float* sines, float* y,
                        int64_t width) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        y[i] = a * cosines[i] - b * sines[i];
        y[half + i] = b * cosines[half + i] + a * sines[half + i];
    }
}

}  // namespace
}  // namespace slipstream
