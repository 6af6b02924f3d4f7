// A piece: neighbouring keys whose scores are taken together, as the products read them.
#pragma once

#include "kv_rows.h"

namespace slipstream {
namespace {

constexpr int64_t kPiece = 32;

// Up to so many rows take their products straight from the cache.
constexpr int kStraightRows = kLanes == 16 ? 8 : 4;

// Whether these read keys from a copy. A few bytes of many rows at a time are an order in which the
// processor does not read ahead by itself; that of a copy is (Zen 3: a decode over 4,000 positions
// went from 9.2 to 11.5 GB/s where a plain sum read 14.1). Those of int8 wait for the arithmetic, and
// wider vectors were not measured with it.
inline bool copies_keys(int64_t format) { return kLanes == 8 && format != kKvInt8; }

// Whether rows can be turned without a rest.
inline bool is_whole(int64_t width) { return width % 16 == 0; }

// Sixteen bytes of a row, and of those four, eight and twelve rows behind it where a vector has room.
inline __attribute__((always_inline)) Vector load_fours(const uint8_t* row, int64_t row_bytes) {
#if VECTOR_FLOATS >= 8
    auto four = [&](int j) {
        return _mm_loadu_ps(reinterpret_cast<const float*>(row + j * row_bytes));
    };
#endif
#if VECTOR_FLOATS == 16
    // Such a load needs no port for shuffles.
    __m512 all = _mm512_castps128_ps512(four(0));
    all = _mm512_mask_broadcast_f32x4(all, 0xf0, four(4));
    all = _mm512_mask_broadcast_f32x4(all, 0xf00, four(8));
    return Vector(_mm512_mask_broadcast_f32x4(all, 0xf000, four(12)));
#elif VECTOR_FLOATS == 8
    return Vector(_mm256_insertf128_ps(_mm256_castps128_ps256(four(0)), four(4), 1));
#else
    Vector four;
    std::memcpy(&four, row, sizeof(four));
    return four;
#endif
}

// Within each four lanes, the lower or the upper two of both vectors, in turns or pair by pair.
#if VECTOR_FLOATS == 16
#define WITHIN_FOURS(a, b, i, j, k, l)                                                            \
    __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8,    \
                            l + 8, i + 12, j + 12, k + 12, l + 12)
#elif VECTOR_FLOATS == 8
#define WITHIN_FOURS(a, b, i, j, k, l) \
    __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
#else
#define WITHIN_FOURS(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#endif

// Four units of four bytes of kLanes rows: out[u] is unit u of each.
inline __attribute__((always_inline)) void turn_units(const uint8_t* rows, int64_t row_bytes,
                                                      Vector* out) {
    constexpr int kSecond = kLanes;  // where the lanes of a second vector begin
    Vector in[4], pairs[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) in[j] = load_fours(rows + j * row_bytes, row_bytes);
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
        pairs[j] = WITHIN_FOURS(in[j], in[j + 1], 0, kSecond, 1, kSecond + 1);
        pairs[j + 1] = WITHIN_FOURS(in[j], in[j + 1], 2, kSecond + 2, 3, kSecond + 3);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const Vector a = pairs[i], b = pairs[i + 2];
        out[2 * i] = WITHIN_FOURS(a, b, 0, 1, kSecond, kSecond + 1);
        out[2 * i + 1] = WITHIN_FOURS(a, b, 2, 3, kSecond + 2, kSecond + 3);
    }
}
#undef WITHIN_FOURS

// Lay the keys of a piece side by side, as floats: to[d][j] = keys[j][d]. `ask` is called for each
// vector of sixteen bytes a row.
template <class Format, class Ask>
void turn(const uint8_t* keys, int64_t row_bytes, int64_t width, float* to, Ask ask) {
    constexpr int kPerUnit = Format::kPerUnit;
    for (int64_t j = 0; j < kPiece; j += kLanes, keys += kLanes * row_bytes, to += kLanes) {
        int64_t d = 0;
        for (; d + 4 * kPerUnit <= width; d += 4 * kPerUnit) {
            Vector units[4];
            turn_units(keys + 4 * d / kPerUnit, row_bytes, units);
            ask();
#pragma GCC unroll 4
            for (int u = 0; u < 4; ++u)
#pragma GCC unroll 4
                for (int i = 0; i < kPerUnit; ++i)
                    store(to + (d + u * kPerUnit + i) * kPiece,
                          Format::take(Integers(units[u]), i));
        }
        for (; d < width; ++d)
            for (int i = 0; i < kLanes; ++i)
                to[d * kPiece + i] = Format::number(keys + i * row_bytes, d);
    }
}

// scores[r][j] = queries[r] . keys[j], straight from the keys: for so few rows the products take no
// longer than to lay keys side by side, store and load them would. Each sum is formed in the same order.
template <class Format, int kRows, class Ask>
void score_keys(const float* queries, int64_t width, const uint8_t* keys, int64_t row_bytes,
                float* scores, Ask ask) {
    constexpr int kPerUnit = Format::kPerUnit;
    constexpr int kVectors = kPiece / kLanes < 2 ? 1 : 2;  // enough to hide a sum's latency
    for (int64_t j = 0; j < kPiece; j += kVectors * kLanes) {
        Vector acc[kVectors][kRows] = {};
        for (int64_t d = 0; d < width; d += 4 * kPerUnit) {
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
                Vector units[4];
                turn_units(keys + (j + v * kLanes) * row_bytes + 4 * d / kPerUnit, row_bytes,
                           units);
                ask();
#pragma GCC unroll 4
                for (int u = 0; u < 4; ++u)
#pragma GCC unroll 4
                    for (int i = 0; i < kPerUnit; ++i) {
                        const Vector key = Format::take(Integers(units[u]), i);
                        const float* x = queries + d + u * kPerUnit + i;
#pragma GCC unroll 8
                        for (int r = 0; r < kRows; ++r) acc[v][r] += key * x[r * width];
                    }
            }
        }
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
                store(scores + r * kPiece + j + v * kLanes, acc[v][r]);
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
