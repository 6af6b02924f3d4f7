// A piece: neighbouring keys whose scores are taken together.
#pragma once

#include "vector.h"

namespace slipstream {
namespace {

constexpr int64_t kPiece = 32;

// Lay 8 keys side by side: to[d][0 .. 7] = keys[0 .. 7][d].
inline void transpose(const float* const* keys, float* to, int64_t width) {
    typedef Eight Loose __attribute__((aligned(4), may_alias));
    int64_t d = 0;
    for (; d + 8 <= width; d += 8) {
        Eight in[8], pairs[8], fours[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) in[j] = *reinterpret_cast<const Loose*>(keys[j] + d);
#pragma GCC unroll 4
        for (int j = 0; j < 8; j += 2) {
            pairs[j] = __builtin_shufflevector(in[j], in[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
            pairs[j + 1] = __builtin_shufflevector(in[j], in[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 8; j += 4)
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const Eight a = pairs[j + i], b = pairs[j + i + 2];
                fours[j + 2 * i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
                fours[j + 2 * i + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
            }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const Eight a = fours[i], b = fours[i + 4];
            float* out = to + (d + i) * kPiece;
            *reinterpret_cast<Loose*>(out) =
                __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
            *reinterpret_cast<Loose*>(out + 4 * kPiece) =
                __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
        }
    }
    for (; d < width; ++d)
        for (int j = 0; j < 8; ++j) to[d * kPiece + j] = keys[j][d];
}

}  // namespace
}  // namespace slipstream
