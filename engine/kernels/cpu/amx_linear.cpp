// y = x W^T + b on the tile unit (AMX) that x86 servers have since 2023: sixteen rows by sixteen
// columns by 64 bytes of k in one instruction, an order faster than vectors of floats.
//
// The unit multiplies bf16 numbers and sums in fp32. More precise numbers are taken as the sum of two
// of them, x = high + low, which loses less than 2^-16 of each:
//
//   bf16    W is bf16: x W = high W + low W
//   bf16x3  W = high + low, too: x W = high high + low high + high low; low low is left out
//
//   panel of 32 columns: per 32 of k two tiles [16 pairs of k][16 columns][2]; bf16x3: two tiles of
//   high parts, then two of low ones.
//
//   packed rows: per tile of 16 rows (fewer if there are fewer in all; the last one is filled up),
//   per 32 of k [rows][32] high parts, then [rows][32] low ones.
//
// Weights are laid out like this once: to make tiles of another layout when they are used takes
// longer than to multiply them. A row's sums go through k in one order: a result is bitwise the same
// in any batch.

#include <cstring>

#include "amx.h"
#include "tile.h"

#if VECTOR_FLOATS == 16 && defined(__x86_64__) && defined(__linux__)
#define HAS_TILES 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

using namespace slipstream;

namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kChunkBytes = 64;
constexpr int64_t kChunk = 32;  // of k

int64_t round_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
int64_t chunks_of(int64_t depth) { return (depth + kChunk - 1) / kChunk; }

// Tiles of a panel's chunk.
int64_t chunk_tiles(int64_t format) { return format == kAmxBf16x3 ? 4 : 2; }

int64_t panel_bytes(int64_t format, int64_t depth) {
    return chunks_of(depth) * chunk_tiles(format) * kTileBytes;
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bf16(uint16_t value) {
    const uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

// Where the number of a column at k lies in a panel, part by part.
int64_t place(int64_t format, int64_t part, int64_t k, int64_t column) {
    const int64_t tile = k / kChunk * chunk_tiles(format) + part * 2 + column / 16;
    return tile * kTileBytes + ((k % kChunk / 2 * 16 + column % 16) * 2 + k % 2) * 2;
}

}  // namespace

int64_t slipstream::amx_packed_bytes(int64_t rows, int64_t depth) {
    return round_up(rows, amx_tile_rows(rows)) * 2 * chunks_of(depth) * kChunkBytes;
}

#if HAS_TILES

#define WITH_TILES __attribute__((target("amx-tile,amx-bf16,avx512bf16,avx512bw,avx512vl")))

// The compiler does not know what tile instructions read and write.
#define SETTLE_MEMORY asm volatile("" ::: "memory")

namespace {

struct __attribute__((packed)) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Registers 0 to 3 hold sums, 4 and 5 rows, 6 and 7 weights.
WITH_TILES void begin_tiles(int64_t height) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
        config.row_bytes[i] = 64;
        config.rows[i] = i < 6 ? uint8_t(height) : 16;
    }
    SETTLE_MEMORY;
    _tile_loadconfig(&config);
}

WITH_TILES void pack_row(const float* x, uint8_t* to, int64_t stride, int64_t part,
                         int64_t depth) {
    for (int64_t k = 0; k < depth; k += 32) {
        const int64_t left = depth - k;
        const __mmask16 first = left >= 16 ? 0xffff : (1u << left) - 1;
        const __mmask16 second = left >= 32 ? 0xffff : left <= 16 ? 0 : (1u << (left - 16)) - 1;
        const __m512 a = _mm512_maskz_loadu_ps(first, x + k);
        const __m512 b = _mm512_maskz_loadu_ps(second, x + k + 16);
        const __m512i high = __m512i(_mm512_cvtne2ps_pbh(b, a));
        const __m512 a_high = __m512(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16));
        const __m512 b_high = __m512(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16));
        const __m512i low = __m512i(_mm512_cvtne2ps_pbh(b - b_high, a - a_high));
        _mm512_storeu_si512(to + k / 32 * stride, high);
        _mm512_storeu_si512(to + k / 32 * stride + part, low);
    }
}

// Where the operands of a block of sums lie.
struct Block {
    const uint8_t* rows[2];     // tiles of rows
    const uint8_t* columns[2];  // panels, after their scales
    int64_t chunks, height;
};

#define LOAD(register, from) _tile_loadd(register, from, kChunkBytes)
#define MULTIPLY(sum, row, column) _tile_dpbf16ps(sum, row, column)

// Two tiles of rows by one panel.
#define FOUR_SUMS      \
    MULTIPLY(0, 4, 6); \
    MULTIPLY(1, 4, 7); \
    MULTIPLY(2, 5, 6); \
    MULTIPLY(3, 5, 7)

WITH_TILES void multiply_two_by_two(const Block& b, bool has_low_weights) {
    const int64_t plane = b.height * kChunkBytes, weights = has_low_weights ? 4 : 2;
    for (int64_t c = 0; c < b.chunks; ++c) {
        const uint8_t* w = b.columns[0] + c * weights * kTileBytes;
        const uint8_t *x = b.rows[0] + c * 2 * plane, *z = b.rows[1] + c * 2 * plane;
        LOAD(6, w);
        LOAD(7, w + kTileBytes);
        LOAD(4, x);
        LOAD(5, z);
        FOUR_SUMS;
        LOAD(4, x + plane);
        LOAD(5, z + plane);
        FOUR_SUMS;
        if (!has_low_weights) continue;
        LOAD(6, w + 2 * kTileBytes);
        LOAD(7, w + 3 * kTileBytes);
        LOAD(4, x);
        LOAD(5, z);
        FOUR_SUMS;
    }
}

// One tile of rows by two panels (the second may be the first again): one part of the rows with one
// part of the weights.
#define ONE_BY_FOUR(row, first, second) \
    LOAD(6, first);                     \
    MULTIPLY(0, row, 6);                \
    LOAD(7, (first) + kTileBytes);      \
    MULTIPLY(1, row, 7);                \
    LOAD(6, second);                    \
    MULTIPLY(2, row, 6);                \
    LOAD(7, (second) + kTileBytes);     \
    MULTIPLY(3, row, 7)

WITH_TILES void multiply_one_by_four(const Block& b, bool has_low_weights) {
    const int64_t plane = b.height * kChunkBytes, weights = has_low_weights ? 4 : 2;
    for (int64_t c = 0; c < b.chunks; ++c) {
        const uint8_t* first = b.columns[0] + c * weights * kTileBytes;
        const uint8_t* second = b.columns[1] + c * weights * kTileBytes;
        // Ahead of the tile loads, which fetch a line at a time.
        for (int64_t i = 0; i < weights * kTileBytes; i += 64) {
            __builtin_prefetch(first + kAheadBytes + i);
            __builtin_prefetch(second + kAheadBytes + i);
        }
        LOAD(4, b.rows[0] + c * 2 * plane);
        LOAD(5, b.rows[0] + c * 2 * plane + plane);
        ONE_BY_FOUR(4, first, second);
        ONE_BY_FOUR(5, first, second);
        if (has_low_weights) {
            ONE_BY_FOUR(4, first + 2 * kTileBytes, second + 2 * kTileBytes);
        }
    }
}

// A layer, its rows, and how their sums become results.
class Layer {
public:
    Layer(const Linear& linear, const Rows& rows)
        : linear(linear),
          rows(rows),
          height(amx_tile_rows(rows.count)),
          num_tiles((rows.count + height - 1) / height),
          chunks(chunks_of(linear.depth)),
          tile_bytes(height * 2 * chunks * kChunkBytes),
          has_low_weights(linear.format == kAmxBf16x3),
          packed(reinterpret_cast<const uint8_t*>(rows.packed)) {}

    // Panels `index` and, if `has_second`, the one after it.
    void run(int64_t index, bool has_second) const {
        int64_t tile = 0;
        for (; tile + 2 <= num_tiles; tile += 2)
            for (int64_t panel = index; panel <= index + has_second; ++panel)
                two_by_two(tile, panel);
        if (tile < num_tiles) one_by_four(tile, index, has_second);
    }

private:
    const uint8_t* panel_at(int64_t index) const {
        return linear.panels + index * panel_bytes(linear.format, linear.depth);
    }

    WITH_TILES void two_by_two(int64_t tile, int64_t panel) const {
        const uint8_t* columns = panel_at(panel);
        const Block block{{packed + tile * tile_bytes, packed + (tile + 1) * tile_bytes},
                          {columns, columns},
                          chunks,
                          height};
        clear();
        multiply_two_by_two(block, has_low_weights);
        alignas(64) float sums[4][256];
        take(sums);
        for (int i = 0; i < 4; ++i) finish(sums[i], tile + i / 2, panel, i % 2);
    }

    WITH_TILES void one_by_four(int64_t tile, int64_t panel, bool has_second) const {
        const Block block{{packed + tile * tile_bytes, nullptr},
                          {panel_at(panel), panel_at(panel + has_second)},
                          chunks,
                          height};
        clear();
        multiply_one_by_four(block, has_low_weights);
        alignas(64) float sums[4][256];
        take(sums);
        for (int i = 0; i < (has_second ? 4 : 2); ++i) finish(sums[i], tile, panel + i / 2, i % 2);
    }

    WITH_TILES static void clear() {
        SETTLE_MEMORY;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    WITH_TILES static void take(float (&sums)[4][256]) {
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
        SETTLE_MEMORY;
    }

    // Bring sums [height][16] to y.
    WITH_TILES void finish(const float* sums, int64_t tile, int64_t panel, int64_t half) const {
        const int64_t first_column = panel * kPanel + half * 16;
        const int64_t width = std::min<int64_t>(16, linear.columns - first_column);
        if (width <= 0) return;
        const __mmask16 mask = (1u << width) - 1;
        const __m512 bias = linear.bias
                                ? _mm512_maskz_loadu_ps(mask, linear.bias + first_column)
                                : _mm512_setzero_ps();
        for (int64_t r = 0; r < std::min(height, rows.count - tile * height); ++r) {
            float* y = rows.y + (tile * height + r) * linear.columns + first_column;
            __m512 sum = _mm512_load_ps(sums + r * 16) + bias;
            if (rows.adds) sum = _mm512_maskz_loadu_ps(mask, y) + sum;
            _mm512_mask_storeu_ps(y, mask, sum);
        }
    }

    const Linear& linear;
    const Rows& rows;
    const int64_t height, num_tiles, chunks, tile_bytes;
    const bool has_low_weights;
    const uint8_t* packed;
};

}  // namespace

void slipstream::amx_pack_tile(const float* x, int64_t ldx, void* packed, int64_t first,
                               int64_t height, int64_t rows, int64_t depth) {
    const int64_t full = amx_tile_rows(rows), chunks = chunks_of(depth);
    const int64_t part = full * kChunkBytes;
    uint8_t* tile = static_cast<uint8_t*>(packed) + first * 2 * chunks * kChunkBytes;
    if (height < full) std::memset(tile, 0, chunks * 2 * part);
    for (int64_t r = 0; r < height; ++r)
        pack_row(x + r * ldx, tile + r * kChunkBytes, 2 * part, part, depth);
}

WITH_TILES void slipstream::run_amx_panels(const Linear& linear, const Rows& rows, int64_t first,
                                           int64_t last) {
    if (first == last) return;
    const Layer layer(linear, rows);
    begin_tiles(amx_tile_rows(rows.count));
    for (int64_t index = first; index < last; index += 2) layer.run(index, index + 1 < last);
    // Else every switch to another thread would save the tiles.
    _tile_release();
}

#else

void slipstream::amx_pack_tile(const float*, int64_t, void*, int64_t, int64_t, int64_t, int64_t) {}
void slipstream::run_amx_panels(const Linear&, const Rows&, int64_t, int64_t) {}

#endif

int64_t slipstream::amx_panel_bytes(int64_t format, int64_t depth) {
    return panel_bytes(format, depth);
}

void slipstream::amx_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                            void* workspace, int64_t rows, int64_t threads) {
    const int64_t height = amx_tile_rows(rows), tiles = (rows + height - 1) / height;
    const int64_t count = (linear.columns + kPanel - 1) / kPanel;
    const int64_t team = rows * linear.columns * linear.depth < kMinParallelWork ? 1 : threads;
#pragma omp parallel num_threads(team) if (team > 1)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tiles; ++t)
            amx_pack_tile(x + t * height * ldx, ldx, workspace, t * height,
                          std::min(height, rows - t * height), rows, linear.depth);
#pragma omp for schedule(static)
        for (int64_t share = 0; share < team; ++share)
            run_amx_panels(linear, {static_cast<const float*>(workspace), y, rows, false},
                           count * share / team, count * (share + 1) / team);
    }
}

void slipstream::amx_unpack_row(int64_t format, const uint8_t* panel, int64_t column, float* out,
                                int64_t depth) {
    for (int64_t k = 0; k < depth; ++k) {
        uint16_t parts[2] = {};
        for (int i = 0; i < chunk_tiles(format) / 2; ++i)
            std::memcpy(&parts[i], panel + place(format, i, k, column), 2);
        out[k] = from_bf16(parts[0]) + from_bf16(parts[1]);
    }
}

extern "C" {

// Whether this process may use the tile unit; asks the kernel for it.
int64_t has_amx() {
#if HAS_TILES
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if ((d & (kBf16 | kTile)) != (kBf16 | kTile)) return 0;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5))) return 0;  // AVX512_BF16
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return 0;
#endif
}

// weight [columns, depth] fp32; bf16 or bf16x3.
void amx_pack_bf16(int64_t format, const float* weight, uint8_t* panels, int64_t columns,
                   int64_t depth) {
    for_each_output(panels, panel_bytes(format, depth), columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t k = 0; k < depth; ++k) {
                            const float value = weight[column * depth + k];
                            const uint16_t high = to_bf16(value);
                            std::memcpy(panel + place(format, 0, k, c), &high, 2);
                            if (format != kAmxBf16x3) continue;
                            const uint16_t low = to_bf16(value - from_bf16(high));
                            std::memcpy(panel + place(format, 1, k, c), &low, 2);
                        }
                    });
}
}
