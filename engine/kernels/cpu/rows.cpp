// What a layer does to each row by itself: norms, gated activations, rotary positions. Each row is
// computed in an order of its own, whatever the batch.

#include "rows.h"

using namespace slipstream;

namespace {

// Below this many floats waking the threads costs more than it saves.
constexpr int64_t kMinParallelFloats = 1 << 14;

}  // namespace

extern "C" {

// y = x / sqrt(mean(x^2) + epsilon) * weight, for rows of `width`.
void rms_norm(const float* x, const float* weight, float* y, int64_t rows, int64_t width,
              float epsilon, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row)
        norm_row(x + row * width, weight, y + row * width, width, epsilon);
}

// y = silu(gate) * up, where a row of x is [gate | up], each of `width`.
void silu_mul(const float* x, float* y, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* gate = x + row * 2 * width;
        silu_mul_row(gate, gate + width, y + row * width, width);
    }
}

// Turns the first `heads` heads of each row by the row's angles: with x split in halves (a, b),
// a' = a cos - b sin and b' = b cos + a sin. Rows of x are `stride` apart, those of y
// heads * width; cosines and sines are [rows, width], rows `angle_stride` apart.
void rotate(const float* x, int64_t stride, const float* cosines, const float* sines,
            int64_t angle_stride, float* y, int64_t rows, int64_t heads, int64_t width,
            int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) \
    if (rows * heads * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* c = cosines + row * angle_stride;
        const float* s = sines + row * angle_stride;
        for (int64_t head = 0; head < heads; ++head)
            rotate_head(x + row * stride + head * width, c, s, y + (row * heads + head) * width,
                        width);
    }
}
}
