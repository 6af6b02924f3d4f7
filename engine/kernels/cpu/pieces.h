// A piece: neighbouring keys whose scores are taken together, as the products read them.
#pragma once

#include "kv_rows.h"

namespace slipstream {
namespace {

constexpr int64_t kPiece = 32;

// Four units of four bytes of eight rows: out[u][0 .. 7] are unit u of rows 0 .. 7.
inline __attribute__((always_inline)) void turn_units(const uint8_t* rows, int64_t row_bytes,
                                                      Eight* out) {
    Eight in[4], pairs[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
        in[j] = two_fours(rows + j * row_bytes, rows + (j + 4) * row_bytes);
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
        pairs[j] = __builtin_shufflevector(in[j], in[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[j + 1] = __builtin_shufflevector(in[j], in[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const Eight a = pairs[i], b = pairs[i + 2];
        out[2 * i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
        out[2 * i + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
}

// Lay the keys of a piece side by side, as floats: to[d][j] = keys[j][d]. `ahead` asks for what is read
// later.
template <class Format, class Ahead>
void turn(const uint8_t* keys, int64_t row_bytes, int64_t width, float* to, Ahead& ahead) {
    constexpr int kPerUnit = Format::kPerUnit;
    for (int64_t j = 0; j < kPiece; j += 8, keys += 8 * row_bytes, to += 8) {
        int64_t d = 0;
        for (; d + 4 * kPerUnit <= width; d += 4 * kPerUnit) {
            Eight units[4];
            turn_units(keys + 4 * d / kPerUnit, row_bytes, units);
            ahead.ask(1);
#pragma GCC unroll 4
            for (int u = 0; u < 4; ++u)
#pragma GCC unroll 4
                for (int i = 0; i < kPerUnit; ++i)
                    store_eight(to + (d + u * kPerUnit + i) * kPiece,
                                Format::take(EightIntegers(units[u]), i));
        }
        for (; d < width; ++d)
            for (int i = 0; i < 8; ++i) to[d * kPiece + i] = Format::number(keys + i * row_bytes, d);
    }
}

// Rows [low, high) of a piece as floats: to[j][i].
template <class Format>
void widen(const uint8_t* rows, int64_t row_bytes, int64_t width, int64_t low, int64_t high,
           float* to) {
    for (int64_t j = low; j < high; ++j) {
        const uint8_t* row = rows + j * row_bytes;
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes) store(to + j * width + i, Format::vector(row, i));
        for (; i < width; ++i) to[j * width + i] = Format::number(row, i);
    }
}

// The scales of rows [low, high).
inline void find_scales(const uint8_t* rows, int64_t row_bytes, int64_t width, int64_t low,
                        int64_t high, float* to) {
    for (int64_t j = low; j < high; ++j) to[j] = Int8Rows::scale(rows + j * row_bytes, width);
}

}  // namespace
}  // namespace slipstream
