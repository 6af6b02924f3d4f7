// y = x W^T + b for fp32 weights, packed once into panels; see tile.h for the order of the sums.
//
// Threads come from the OpenMP runtime that torch has started.

#include "linear.h"
#include "tile.h"

using namespace slipstream;

void slipstream::run_float_panels(const Linear& linear, const Rows& rows, int64_t first,
                                  int64_t last) {
    const Problem problem{rows.packed, linear.panels,  linear.bias,  rows.y,
                          rows.count,  linear.columns, linear.depth, rows.adds};
    run_panels<Float32>(problem, first, last);
}

extern "C" {

// panels must hold ceil(columns / 32) * depth * 32 floats.
void pack_linear(const float* weight, float* panels, int64_t columns, int64_t depth) {
    const int64_t count = (columns + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(static)
    for (int64_t index = 0; index < count; ++index)
        for (int64_t k = 0; k < depth; ++k)
            for (int64_t c = 0; c < kPanel; ++c) {
                const int64_t column = index * kPanel + c;
                panels[(index * depth + k) * kPanel + c] =
                    column < columns ? weight[column * depth + k] : 0.0f;
            }
}

// workspace must hold rows * depth floats.
void packed_linear(const float* x, int64_t ldx, const float* panels, const float* bias, float* y,
                   int64_t rows, int64_t columns, int64_t depth, float* workspace,
                   int64_t threads) {
    const Problem problem{x,    reinterpret_cast<const uint8_t*>(panels), bias, y, rows, columns,
                          depth};
    run_linear<Float32>(x, ldx, problem, workspace, threads);
}
}
