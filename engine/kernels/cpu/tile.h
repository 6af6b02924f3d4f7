// The register tile that all packed linear layers share, and how a thread walks over panels.
//
//   W [N, K]  ->  panels [N / 32]     the 32 outputs of a panel lie side by side for each k, so that
//                                     a step in k is a few whole vectors
//
// Every output is one chain of fused multiply-adds over k = 0 .. K - 1, started from the bias. That
// order does not depend on the number of rows, the tile a row falls into, the number of threads, the
// width of a vector or how the weights are stored: a row's result is bitwise the same alone and in
// any batch, and the same as with the weights unpacked to fp32.
#pragma once

#include <algorithm>
#include <type_traits>

#include "panel_sums.h"
#include "prefetch.h"
#include "row_tiles.h"

namespace slipstream {
// Unnamed: what two builds for other instruction sets share by name, one process could mix up.
namespace {

// With few rows a chain's next step waits for its last: two tiles' columns are taken together. Those
// of two panels only where a step reads little, since one stretch of memory is read faster than two.
constexpr int kFewRows = 2;

template <class Format>
constexpr bool kPairsPanels = kTileColumns == kPanel && Format::kStep > 1;

// Steps of a round of the inner loop. A virtual machine's core is often half of one, whose other half
// is someone else's: then three or four instructions begin in a cycle, not six, and a loop's own cost
// as much as a multiplication. With AVX-512 there are half as many for the same work.
constexpr int kUnrolled = kLanes == 8 ? 4 : 1;

// Codes that are unpacked by many steps at once leave too few registers for a whole tile's sums.
template <class Format>
constexpr bool kIsTight = kLanes == 8 && Format::kStep > 2;

// As many rows are multiplied straight from the stored weights.
template <class Format>
constexpr int kDirectRows = kIsTight<Format> ? 4 : kTileRows;

// Weights as they are: [K][32] floats.
//
// A format gives the weights of kTileColumns columns of a panel. `enter` is called before the first
// k of each group of kGroup (0: there is one group) and whenever a tile begins; `load` returns the
// stored form of kStep steps in k, and `weight` one of these as numbers.
struct Float32 {
    static constexpr int64_t kGroup = 0;
    static constexpr int kStep = 1;
    struct Codes {
        Vector w[kTileVectors];
    };
    const float* panel;

    Float32(const uint8_t* data, int64_t, int column)
        : panel(reinterpret_cast<const float*>(data) + column) {}
    static constexpr int64_t panel_bytes(int64_t depth) { return depth * kPanel * 4; }
    void enter(int64_t) {}
    Codes load(int64_t k) const {
        Codes codes;
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v)
            codes.w[v] = slipstream::load(panel + k * kPanel + v * kLanes);
        return codes;
    }
    Vector weight(const Codes& codes, int, int v) const { return codes.w[v]; }
};

// In place: GCC 12 moves the sums of unrolled steps about, and some to memory.
inline __attribute__((always_inline)) void add_product(Vector& sum, Vector a, Vector b) {
#if VECTOR_FLOATS == 8
    Vector total = sum;
    asm("vfmadd231ps %1, %2, %0" : "+x"(total) : "x"(a), "x"(b));
    sum = total;
#else
    sum += a * b;
#endif
}

// One step in k. The loops over rows and vectors must vanish, or the accumulators live in memory.
template <class Format, int kRows, int kPieces>
inline __attribute__((always_inline)) void step(Vector (&acc)[kRows][kPieces * kTileVectors],
                                                const Format* formats,
                                                const typename Format::Codes* codes, int j,
                                                const float* x) {
#pragma GCC unroll 2
    for (int p = 0; p < kPieces; ++p) {
        Vector w[kTileVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) w[v] = formats[p].weight(codes[p], j, v);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            const Vector a = splat(x[r]);
#pragma GCC unroll 4
            for (int v = 0; v < kTileVectors; ++v) {
                Vector& sum = acc[r][p * kTileVectors + v];
                if constexpr (kIsTight<Format>)
                    sum += w[v] * a;
                else
                    add_product(sum, w[v], a);
            }
        }
    }
}

// kPieces * kTileColumns neighbouring columns for kRows rows, over k in [begin, end), from the sums
// `from` to those of `to`.
//
// x is [K][kRows]; the columns may lie in two panels.
template <class Format, int kRows, int kPieces>
void tile(const float* x, const uint8_t* panel, int64_t depth, int column, Starts from, Sums to,
          int64_t begin, int64_t end, Prefetch prefetch) {
    constexpr int kVectors = kPieces * kTileVectors;
    constexpr int kRound = std::max(kUnrolled, Format::kStep);
    const int64_t steps = prefetch.divide(end - begin, Format::kGroup);
    const int64_t panel_bytes = Format::panel_bytes(depth);
    auto format_of = [&](int p) {
        const int at = column + p * kTileColumns;
        return Format(panel + at / kPanel * panel_bytes, depth, at % kPanel);
    };
    Format formats[2] = {format_of(0), format_of(kPieces - 1)};
    Vector acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = load(from.at + r * from.stride + v * kLanes);
    typename Format::Codes codes[kPieces];
    int64_t k = begin;
    for (const int64_t whole = end - (end - begin) % kRound; k < whole;) {
        const int64_t stop = std::min(whole, k + steps);
#pragma GCC unroll 2
        for (int p = 0; p < kPieces; ++p) formats[p].enter(k);
        prefetch.ask();
        for (; k < stop; k += kRound) {
#pragma GCC unroll 8
            for (int i = 0; i < kRound; i += Format::kStep) {
#pragma GCC unroll 2
                for (int p = 0; p < kPieces; ++p) codes[p] = formats[p].load(k + i);
#pragma GCC unroll 8
                for (int j = 0; j < Format::kStep; ++j)
                    step<Format, kRows, kPieces>(acc, formats, codes, j, x + (k + i + j) * kRows);
            }
        }
    }
    if (k < end) {
        for (int p = 0; p < kPieces; ++p) formats[p].enter(k);
        for (int j = 0; k < end; ++j, ++k) {
            if (j % Format::kStep == 0)
                for (int p = 0; p < kPieces; ++p) codes[p] = formats[p].load(k);
            step<Format, kRows, kPieces>(acc, formats, codes, j % Format::kStep, x + k * kRows);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) store(to.at + r * to.stride + v * kLanes, acc[r][v]);
}

typedef void (*Tile)(const float*, const uint8_t*, int64_t, int, Starts, Sums, int64_t, int64_t,
                     Prefetch);

// The tile for each number of rows, so that the last, smaller one wastes nothing.
template <class Format>
struct Tiles {
    static constexpr Tile kSingle[] = {
        tile<Format, 1, 1>, tile<Format, 1, 1>, tile<Format, 2, 1>,  tile<Format, 3, 1>,
        tile<Format, 4, 1>, tile<Format, 5, 1>, tile<Format, 6, 1>,
#if VECTOR_FLOATS == 16
        tile<Format, 7, 1>, tile<Format, 8, 1>, tile<Format, 9, 1>,  tile<Format, 10, 1>,
        tile<Format, 11, 1>, tile<Format, 12, 1>,
#endif
    };
    static constexpr Tile kDouble[] = {tile<Format, 1, 2>, tile<Format, 1, 2>, tile<Format, 2, 2>};
};

// The tile for some columns, two pieces of which are taken together where rows are few.
template <class Format>
Tile tile_for(int64_t rows, bool together) {
    return together ? Tiles<Format>::kDouble[rows] : Tiles<Format>::kSingle[rows];
}

// `width` columns of a panel or of two, for at most one tile of rows: straight from the stored weights.
template <class Format>
void few_rows(const Problem& p, const uint8_t* panel, Starts from, Sums to, int width) {
    const bool together = p.rows <= kFewRows && width >= 2 * kTileColumns;
    const Tile run = tile_for<Format>(p.rows, together);
    const int columns = together ? 2 * kTileColumns : kTileColumns;
    // Columns that share a line of memory are taken before it leaves the cache.
    const int64_t slice = columns < kPanel ? kSlice : p.depth;
    const int64_t bytes = Format::panel_bytes(p.depth) * width / kPanel;
    const bool in_order = columns == kPanel && width == kPanel;
    for (int64_t begin = 0; begin < p.depth; begin += slice) {
        const int64_t end = std::min(p.depth, begin + slice);
        const int64_t size = bytes * (end - begin) / p.depth;
        const uint8_t* next = panel + bytes * begin / p.depth + (in_order ? kAheadBytes : size);
        const Prefetch ahead{next, next + size};
        const int64_t share = Prefetch::share(size, width / columns);
        for (int column = 0; column < width; column += columns)
            run(p.x, panel, p.depth, column, from.shifted(0, column), to.shifted(0, column), begin,
                end, ahead.part(column / columns * share, share));
        from = to;
    }
}

// A slice of a panel as floats [kSlice][32].
template <class Format>
void unpack_slice(const uint8_t* panel, int64_t depth, int64_t begin, int64_t end, float* to) {
    for (int column = 0; column < kPanel; column += kTileColumns) {
        Format format(panel, depth, column);
        for (int64_t k = begin; k < end; k += Format::kStep) {
            if (k == begin || (Format::kGroup && k % Format::kGroup == 0)) format.enter(k);
            const typename Format::Codes codes = format.load(k);
            float* at = to + (k - begin) * kPanel + column;
#pragma GCC unroll 8
            for (int j = 0; j < Format::kStep; ++j)
#pragma GCC unroll 4
                for (int v = 0; v < kTileVectors; ++v)
                    store(at + j * kPanel + v * kLanes, format.weight(codes, j, v));
        }
    }
}

// Tiles whose sums are at hand together. In y they would be far apart, often by a multiple of what a
// cache's ways are apart, so that it holds few of them.
constexpr int64_t kBlockTiles = 240 / kTileRows;

// A panel for many rows: each slice is made floats once a block and used for every tile of rows.
template <class Format>
void many_rows(const Problem& p, const uint8_t* panel, int64_t index) {
    constexpr bool kUnpack = !std::is_same<Format, Float32>::value;
    constexpr int kPieces = kPanel / kTileColumns;
    alignas(64) float unpacked[kUnpack ? kSlice * kPanel : 1];
    alignas(64) float room[kBlockTiles * kTileRows * kPanel];
    const Sums rest{room, kPanel};
    const int64_t height = tile_height(p.rows), bytes = Format::panel_bytes(p.depth);
    for (int64_t first = 0; first < p.rows; first += kBlockTiles * height) {
        const int64_t last = std::min(p.rows, first + kBlockTiles * height);
        const int64_t tiles = (last - first + height - 1) / height;
        Starts from = begin_sums(p, index, first, last - first, rest);
        for (int64_t begin = 0; begin < p.depth; begin += kSlice) {
            const int64_t steps = std::min(kSlice, p.depth - begin);
            const uint8_t* next = panel + bytes * (begin + steps) / p.depth;
            const uint8_t* slice = panel + begin * kPanel * sizeof(float);
            if (kUnpack) {
                unpack_slice<Format>(panel, p.depth, begin, begin + steps, unpacked);
                slice = reinterpret_cast<const uint8_t*>(unpacked);
            }
            const Prefetch ahead{next, next + bytes * steps / p.depth};
            const int64_t share = Prefetch::share(bytes * steps / p.depth, tiles * kPieces);
            for (int64_t t = 0; t < tiles; ++t) {
                const int64_t done = t * height, row = first + done;
                const int64_t rows = std::min(height, last - row);
                const int together = rows <= kFewRows ? std::min(kPieces, 2) : 1;
                const Tile run = tile_for<Float32>(rows, together == 2);
                for (int piece = 0; piece < kPieces; piece += together) {
                    const int column = piece * kTileColumns;
                    run(p.x + begin * p.rows + row * steps, slice, steps, column,
                        from.shifted(done, column), rest.shifted(done, column), 0, steps,
                        ahead.part((t * kPieces + piece) * share, together * share));
                }
            }
            from = rest;
        }
        end_sums(p, index, first, last - first, rest);
    }
}

// Panels [first, last): one thread's share.
template <class Format>
void run_panels(const Problem& p, int64_t first, int64_t last) {
    const int64_t bytes = Format::panel_bytes(p.depth);
    alignas(64) float room[kTileRows * kPanel];
    const Sums rest{room, kPanel};
    for (int64_t index = first; index < last; ++index) {
        const uint8_t* panel = p.panels + index * bytes;
        if (p.rows > kDirectRows<Format>) {
            many_rows<Format>(p, panel, index);
            continue;
        }
        const bool is_full = (index + 1) * kPanel <= p.columns;
        const Sums sums = is_full ? sums_in_y(p, index, 0) : rest;
        const Starts from = begin_sums(p, index, 0, p.rows, sums);
        if (kPairsPanels<Format> && p.rows <= kFewRows && index + 1 < last &&
            (index + 2) * kPanel <= p.columns) {
            begin_sums(p, ++index, 0, p.rows, sums.shifted(0, kPanel));
            few_rows<Format>(p, panel, from, sums, 2 * kPanel);
        } else {
            few_rows<Format>(p, panel, from, sums, kPanel);
        }
        if (!is_full) end_sums(p, index, 0, p.rows, rest);
    }
}

// Below this many multiply-adds waking the threads costs more than it saves.
constexpr int64_t kMinParallelWork = 1 << 17;

// y = x W^T + b. `workspace` must hold rows * depth floats.
template <class Format>
void run_linear(const float* x, int64_t ldx, Problem problem, float* workspace, int64_t threads) {
    const int64_t rows = problem.rows, depth = problem.depth;
    const int64_t height = tile_height(rows), tiles = (rows + height - 1) / height;
    const int64_t count = (problem.columns + kPanel - 1) / kPanel;
    const int64_t team = rows * problem.columns * depth < kMinParallelWork ? 1 : threads;
    // One row is packed as it stands.
    problem.x = rows == 1 ? x : workspace;
#pragma omp parallel num_threads(team) if (team > 1)
    {
        if (rows > 1) {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < tiles; ++t) {
                const int64_t row = t * height;
                pack_rows(x + row * ldx, ldx, workspace, row, std::min(height, rows - row), rows,
                          depth);
            }
        }
        // Shares of neighbouring panels, so that each thread reads one stretch of memory.
#pragma omp for schedule(static)
        for (int64_t share = 0; share < team; ++share)
            run_panels<Format>(problem, count * share / team, count * (share + 1) / team);
    }
}

// Call `action(panel, column of the panel, output)` for each output, panels in parallel.
template <class Action>
void for_each_output(uint8_t* panels, int64_t panel_bytes, int64_t columns, Action action) {
    const int64_t count = (columns + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(static)
    for (int64_t index = 0; index < count; ++index) {
        uint8_t* panel = panels + index * panel_bytes;
        std::memset(panel, 0, panel_bytes);
        for (int64_t c = 0; c < std::min<int64_t>(kPanel, columns - index * kPanel); ++c)
            action(panel, c, index * kPanel + c);
    }
}

}  // namespace
}  // namespace slipstream
