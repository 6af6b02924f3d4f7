// y = x W^T + b for fp32, with the weights packed once into panels.
//
//   W [N, K]  ->  panels [N / 32][K][32]     the 32 outputs of a panel lie side by side for each k,
//                                            so that a step in k is a few whole vectors
//
// Every output is one chain of fused multiply-adds over k = 0 .. K - 1, started from the bias. That
// order does not depend on the number of rows, the tile a row falls into, the number of threads or
// the width of a vector: a row's result is bitwise the same alone and in any batch.
//
// Threads come from the OpenMP runtime that torch has started.

#include <algorithm>

#include "vector.h"

using namespace slipstream;

namespace {

constexpr int kPanel = 32;

// Columns and rows of a register tile. Accumulators plus one row of weights must fit the register
// file: 12 x 2 of 32 for AVX-512, 6 x 2 of 16 for AVX2, 6 x 4 of 32 for NEON's four lanes.
constexpr int kTileVectors = kLanes >= 8 ? 2 : 4;
constexpr int kTileColumns = kTileVectors * kLanes;
constexpr int kTileRows = kLanes == 16 ? 12 : 6;

// With many rows a slice of a panel is used once per tile of rows: 192 x 32 floats are 24 KiB and
// stay in a first-level cache of 32. With one tile of rows there is nothing to keep.
constexpr int64_t kSlice = 192;

// How many steps in k the weights are asked for ahead: 6 KiB.
constexpr int64_t kAhead = 48;

// Below this many multiply-adds waking the threads costs more than it saves.
constexpr int64_t kMinParallelWork = 1 << 17;

struct Problem {
    const float* x;       // tiles of rows, each [depth][rows of the tile]
    const float* panels;  // [ceil(columns / 32), depth, 32]
    const float* bias;    // [columns] or null
    float* y;             // [rows, columns]
    int64_t rows, columns, depth;
};

// Lay the rows of one tile side by side for each k, as the tile reads them.
void pack_rows(const float* x, int64_t ldx, float* packed, int64_t height, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t r = 0; r < height; ++r) packed[k * height + r] = x[r * ldx + k];
}

// kTileColumns columns of a panel for `kRows` rows, over k in [begin, end).
template <int kRows>
void tile(const float* x, const float* panel, float* sums, int64_t stride, int64_t begin,
          int64_t end) {
    // The loops over rows and vectors must vanish, or the accumulators live in memory.
    Vector acc[kRows][kTileVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) acc[r][v] = load(sums + r * stride + v * kLanes);
    for (int64_t k = begin; k < end; ++k) {
        // Weights come from memory once per call. Asking ahead raised 8 rows from 52 to 78 GFLOP/s
        // (two cores, AVX-512, 3072 x 576); past the end it asks for what is not used, harmlessly.
        __builtin_prefetch(panel + (k + kAhead) * kPanel);
        __builtin_prefetch(panel + (k + kAhead) * kPanel + kPanel / 2);
        Vector w[kTileVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) w[v] = load(panel + k * kPanel + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            const float a = x[k * kRows + r];
#pragma GCC unroll 4
            for (int v = 0; v < kTileVectors; ++v) acc[r][v] += w[v] * a;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) store(sums + r * stride + v * kLanes, acc[r][v]);
}

typedef void (*Tile)(const float*, const float*, float*, int64_t, int64_t, int64_t);

// The tile for each number of rows, so that the last, smaller one wastes nothing.
const Tile kTiles[] = {tile<1>, tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>, tile<6>,
#if VECTOR_FLOATS == 16
                       tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>,
#endif
};

// All rows of one panel. Sums rest in y between slices, or, where the last panel is not full, in
// `spare` [rows, 32].
void panel_rows(const Problem& p, int64_t index, float* spare) {
    const float* panel = p.panels + index * p.depth * kPanel;
    const int64_t first = index * kPanel;
    const int64_t width = std::min<int64_t>(kPanel, p.columns - first);
    float* sums = width == kPanel ? p.y + first : spare;
    const int64_t stride = width == kPanel ? p.columns : kPanel;
    float start[kPanel] = {};
    if (p.bias) std::memcpy(start, p.bias + first, width * sizeof(float));
    for (int64_t r = 0; r < p.rows; ++r) std::memcpy(sums + r * stride, start, sizeof(start));
    const int64_t slice = p.rows > kTileRows ? kSlice : p.depth;
    for (int64_t begin = 0; begin < p.depth; begin += slice) {
        const int64_t end = std::min(p.depth, begin + slice);
        for (int64_t row = 0; row < p.rows; row += kTileRows) {
            const Tile run = kTiles[std::min<int64_t>(kTileRows, p.rows - row)];
            for (int column = 0; column < kPanel; column += kTileColumns)
                run(p.x + row * p.depth, panel + column, sums + row * stride + column, stride, begin,
                    end);
        }
    }
    if (width < kPanel)
        for (int64_t r = 0; r < p.rows; ++r)
            std::memcpy(p.y + r * p.columns + first, spare + r * kPanel, width * sizeof(float));
}

}  // namespace

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

// workspace must hold rows * (depth + 32) floats.
void packed_linear(const float* x, int64_t ldx, const float* panels, const float* bias, float* y,
                   int64_t rows, int64_t columns, int64_t depth, float* workspace,
                   int64_t threads) {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    const int64_t count = (columns + kPanel - 1) / kPanel;
    const int64_t team = rows * columns * depth < kMinParallelWork ? 1 : threads;
    // One row is packed as it stands.
    const Problem problem{rows == 1 ? x : workspace, panels, bias, y, rows, columns, depth};
#pragma omp parallel num_threads(team) if (team > 1)
    {
        if (rows > 1) {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < tiles; ++t) {
                const int64_t row = t * kTileRows;
                pack_rows(x + row * ldx, ldx, workspace + row * depth,
                          std::min<int64_t>(kTileRows, rows - row), depth);
            }
        }
#pragma omp for schedule(static)
        for (int64_t index = 0; index < count; ++index)
            panel_rows(problem, index, workspace + rows * depth);
    }
}
}
