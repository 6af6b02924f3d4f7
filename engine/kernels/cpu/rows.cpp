// What a layer does to each row by itself: norms, gated activations, rotary positions. Each row is
// computed in an order of its own, whatever the batch.

#include <cmath>

#include "vector.h"

using namespace slipstream;

namespace {

// Below this many floats waking the threads costs more than it saves.
constexpr int64_t kMinParallelFloats = 1 << 14;

float sum_of_squares(const float* x, int64_t width) {
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

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace

extern "C" {

// y = x / sqrt(mean(x^2) + epsilon) * weight, for rows of `width`.
void rms_norm(const float* x, const float* weight, float* y, int64_t rows, int64_t width,
              float epsilon, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = x + row * width;
        float* to = y + row * width;
        const float scale = 1.0f / std::sqrt(sum_of_squares(from, width) / width + epsilon);
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes)
            store(to + i, load(weight + i) * (load(from + i) * scale));
        for (; i < width; ++i) to[i] = weight[i] * (from[i] * scale);
    }
}

// y = silu(gate) * up, where a row of x is [gate | up], each of `width`.
void silu_mul(const float* x, float* y, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* gate = x + row * 2 * width;
        const float* up = gate + width;
        float* to = y + row * width;
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes) {
            const Vector g = load(gate + i);
            store(to + i, g / (1.0f + exp(-g)) * load(up + i));
        }
        for (; i < width; ++i) to[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

// Turns the first `heads` heads of each row by the row's angles: with x split in halves (a, b),
// a' = a cos - b sin and b' = b cos + a sin. Rows of x are `stride` apart, those of y
// heads * width; cosines and sines are [rows, width], rows `angle_stride` apart.
void rotate(const float* x, int64_t stride, const float* cosines, const float* sines,
            int64_t angle_stride, float* y, int64_t rows, int64_t heads, int64_t width,
            int64_t threads) {
    const int64_t half = width / 2;
#pragma omp parallel for schedule(static) num_threads(threads) \
    if (rows * heads * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* c = cosines + row * angle_stride;
        const float* s = sines + row * angle_stride;
        for (int64_t head = 0; head < heads; ++head) {
            const float* from = x + row * stride + head * width;
            float* to = y + (row * heads + head) * width;
            for (int64_t i = 0; i < half; ++i) {
                const float a = from[i], b = from[half + i];
                to[i] = a * c[i] - b * s[i];
                to[half + i] = b * c[half + i] + a * s[half + i];
            }
        }
    }
}
}
