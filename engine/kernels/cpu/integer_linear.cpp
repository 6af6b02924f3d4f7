// y = x W^T + b for weights of 8 or 4 bits and activations of 8: products and sums of integers.
//
// A row's activations are rounded to -127 .. 127 times a scale of their own for 32 of them, where
// the weights have theirs. What a group adds to an output is then
//
//   scale of x * (scale of w * (sum of integers) + minimum of w * (sum of x's integers))
//
// The integers are summed exactly, the groups in fp32 from the first to the last: a row's result is
// bitwise the same alone and in any batch, whatever the threads.
//
//   w8a8   per 32 of K: [32] fp16 scales, then [8][32] times 4 codes, those of k .. k + 3
//   w4a8   per 32 of K: [32] fp16 scales, [32] fp16 minima, then [4][32] times 4 bytes: the codes of
//          k .. k + 3 in the low halves, those of k + 4 .. k + 7 in the high ones
//
// Incomplete groups are filled with zeros.

#include "integer.h"

#include <limits>

#include "integer_products.h"
#include "packed_rows.h"

using namespace slipstream;

namespace {

constexpr int64_t kGroup = kIntegerGroup;

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

// 32 numbers as codes and a scale. None becomes more than 127: what the inverse is off by is far less
// than half a code.
void round_group(const float* x, Activations& to) {
    Vector top{};
    Integers is_nan{};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
        const Vector value = load(x + i);
        const Vector size = value < 0.0f ? -value : value;
        top = size > top ? size : top;
        is_nan |= value != value;
    }
    const float highest = max(top);
    // No scale for these: the outputs must show it.
    if (is_any(is_nan) || !(highest <= std::numeric_limits<float>::max())) {
        to = {};
        to.scale = to.sum = std::numeric_limits<float>::quiet_NaN();
        return;
    }
    // Numbers so small that the inverse of their scale has no finite value count as zeros.
    const bool has_scale = highest > 1e-30f;
    const float inverse = has_scale ? 127.0f / highest : 0.0f;
    Integers totals{};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
        const Integers codes = nearest(load(x + i) * inverse);
        store_bytes(to.codes + i, codes);
        totals += codes;
    }
    const int32_t total = sum(totals);
    to.scale = has_scale ? highest / 127.0f : 0.0f;
    to.sum = to.scale * float(total);
    to.offset = -128 * total;
}

template <class Action>
void with_format(int64_t format, Action action) {
    if (format == kW8A8)
        action(static_cast<W8A8*>(nullptr));
    else
        action(static_cast<W4A8*>(nullptr));
}

// Tests look at both kinds on processors that have both.
Products products = has_dot_products() ? dot_products() : byte_products();

// One of several tiles asks for its share of the next panel, so that none waits for memory; one
// alone for what it will come to itself.
Prefetch prefetch_for(const uint8_t* panel, int64_t bytes, int64_t groups, int64_t tile,
                      int64_t tiles) {
    const uint8_t* next = panel + (tiles == 1 ? kAheadBytes : bytes);
    const int64_t share = Prefetch::share(bytes, tiles);
    Prefetch prefetch = Prefetch{next, next + bytes}.part(tile * share, share);
    prefetch.divide(groups, 1);
    return prefetch;
}

// One panel of a layer for all rows.
void run_panel(const Linear& linear, const Rows& rows, int64_t index) {
    const int64_t groups = groups_of(linear.depth), first_column = index * kPanel;
    const int64_t width = std::min<int64_t>(kPanel, linear.columns - first_column);
    const int64_t bytes = integer_panel_bytes(linear.format, linear.depth);
    const uint8_t* panel = linear.panels + index * bytes;
    const MultiplyRows multiply = linear.format == kW8A8 ? products.w8a8 : products.w4a8;
    const auto* packed = reinterpret_cast<const Activations*>(rows.packed);
    float bias[kPanel] = {};
    if (linear.bias) std::memcpy(bias, linear.bias + first_column, width * sizeof(float));
    // Of nearly the same size, so that none is left that has too few sums to keep busy.
    const int64_t tiles = (rows.count + products.most_rows - 1) / products.most_rows;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = rows.count * tile / tiles;
        const int64_t count = rows.count * (tile + 1) / tiles - first;
        const Activations* at[kMostProductRows];
        alignas(64) float sums[kMostProductRows][kPanel];
        for (int64_t r = 0; r < count; ++r) {
            at[r] = packed + (first + r) * groups;
            std::memcpy(sums[r], bias, sizeof(bias));
            // Far apart: with many rows none is in a cache when it is stored, and the stores of the
            // next tile wait behind it.
            float* y = rows.y + (first + r) * linear.columns + first_column;
            __builtin_prefetch(y, 1);
            __builtin_prefetch(y + width - 1, 1);
        }
        const Prefetch prefetch = prefetch_for(panel, bytes, groups, tile, tiles);
        multiply(count, panel, at, groups, prefetch, sums);
        for (int64_t r = 0; r < count; ++r) {
            float* y = rows.y + (first + r) * linear.columns + first_column;
            // Added last, as a sum of two layers is: a bit that differs here may let the next
            // layer round a number the other way.
            int64_t c = 0;
            for (; c + kLanes <= width; c += kLanes) {
                const Vector sum = load(sums[r] + c);
                store(y + c, rows.adds ? load(y + c) + sum : sum);
            }
            for (; c < width; ++c) y[c] = rows.adds ? y[c] + sums[r][c] : sums[r][c];
        }
    }
}

void put16(uint8_t* at, uint16_t value) { std::memcpy(at, &value, sizeof(value)); }

}  // namespace

int64_t slipstream::integer_packed_bytes(int64_t rows, int64_t depth) {
    return rows * groups_of(depth) * int64_t(sizeof(Activations));
}

void slipstream::integer_pack_rows(const float* x, int64_t ldx, void* packed, int64_t first,
                                   int64_t height, int64_t depth) {
    auto* to = static_cast<Activations*>(packed) + first * groups_of(depth);
    const int64_t whole = depth / kGroup * kGroup;
    for (int64_t r = 0; r < height; ++r) {
        const float* row = x + r * ldx;
        for (int64_t k = 0; k < whole; k += kGroup) round_group(row + k, *to++);
        if (whole == depth) continue;
        float filled[kGroup] = {};
        std::memcpy(filled, row + whole, (depth - whole) * sizeof(float));
        round_group(filled, *to++);
    }
}

int64_t slipstream::integer_panel_bytes(int64_t format, int64_t depth) {
    return groups_of(depth) * (format == kW8A8 ? W8A8::kBytes : W4A8::kBytes);
}

void slipstream::run_integer_panels(const Linear& linear, const Rows& rows, int64_t first,
                                    int64_t last) {
    for (int64_t index = first; index < last; ++index) run_panel(linear, rows, index);
}

void slipstream::integer_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                                void* workspace, int64_t rows, int64_t threads) {
    run_packed_rows(integer_pack_rows, run_integer_panels, x, ldx, linear, y, workspace, rows, threads);
}

void slipstream::integer_unpack_row(int64_t format, const uint8_t* panel, int64_t column,
                                    float* out, int64_t depth) {
    with_format(format, [&](auto* kind) {
        using Format = std::remove_pointer_t<decltype(kind)>;
        for (int64_t k = 0; k < depth; ++k)
            out[k] = Format::number(panel + k / kGroup * Format::kBytes, k % kGroup, column);
    });
}

extern "C" {

// Use dot products (1), use bytes (0), or leave it as it is (-1); return what was used.
int64_t use_dot_products(int64_t wanted) {
    const bool used = products.w8a8 != byte_products().w8a8;
    if (wanted == 0) products = byte_products();
    if (wanted == 1 && has_dot_products()) products = dot_products();
    return used;
}

// codes [columns, depth], scales [columns, ceil(depth / 32)] fp16.
void pack_w8a8(const int8_t* codes, const uint16_t* scales, uint8_t* panels, int64_t columns,
               int64_t depth) {
    const int64_t groups = groups_of(depth);
    for_each_output(panels, groups * W8A8::kBytes, columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t g = 0; g < groups; ++g)
                            put16(panel + g * W8A8::kBytes + 2 * c, scales[column * groups + g]);
                        for (int64_t k = 0; k < depth; ++k)
                            panel[k / kGroup * W8A8::kBytes + W8A8::place(k % kGroup, c)] =
                                uint8_t(codes[column * depth + k]);
                    });
}

// codes [columns, depth] in 0 .. 15, scales and minima [columns, ceil(depth / 32)] fp16.
void pack_w4a8(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima,
               uint8_t* panels, int64_t columns, int64_t depth) {
    const int64_t groups = groups_of(depth);
    for_each_output(panels, groups * W4A8::kBytes, columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t g = 0; g < groups; ++g) {
                            uint8_t* group = panel + g * W4A8::kBytes;
                            put16(group + 2 * c, scales[column * groups + g]);
                            put16(group + 2 * (kPanel + c), minima[column * groups + g]);
                        }
                        for (int64_t k = 0; k < depth; ++k)
                            panel[k / kGroup * W4A8::kBytes + W4A8::place(k % kGroup, c)] |=
                                (codes[column * depth + k] & 15) << W4A8::shift(k % kGroup);
                    });
}
}
