// What a layer does to each row by itself: norms, gated activations, rotary positions. Each row is
// computed in an order of its own, whatever the batch.

#include "rows.h"

using namespace slipstream;

namespace {

// Below this many floats waking the threads costs more than it saves.
constexpr int64_t kMinParallelFloats = 1 << 14;

}  // namespace

extern "C" {

// y = norm(x), for rows of the norm's width.
void norm_rows(const Norm* norm, const float* x, float* y, int64_t rows, int64_t threads) {
    const int64_t width = norm->width;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) norm->apply(x + row * width, y + row * width);
}

// y = activation(gate) * up, where a row of x is [gate | up], each of `width`.
void gate_mul(int64_t activation, const float* x, float* y, int64_t rows, int64_t width,
              int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* gate = x + row * 2 * width;
        gate_row(activation, gate, gate + width, y + row * width, width);
    }
}

// Turns the first `turned` numbers of each head of each row by the row's angles; see rotate_head.
// sizes: what rows of x are apart, what those of the angles are, rows, heads of each, turned, width
// of a head, threads. y is [rows, heads, width].
void rotate(const float* x, const float* cosines, const float* sines, float* y,
            const int64_t* sizes) {
    const int64_t stride = sizes[0], angle_stride = sizes[1], rows = sizes[2], heads = sizes[3];
    const int64_t turned = sizes[4], width = sizes[5], threads = sizes[6];
#pragma omp parallel for schedule(static) num_threads(threads) \
    if (rows * heads * width > kMinParallelFloats)
    for (int64_t row = 0; row < rows; ++row) {
        const float* c = cosines + row * angle_stride;
        const float* s = sines + row * angle_stride;
        for (int64_t head = 0; head < heads; ++head)
            rotate_head(x + row * stride + head * width, c, s, y + (row * heads + head) * width,
                        turned, width);
    }
}
}
