// A piece: neighbouring keys whose scores are taken together.
#pragma once

#include "vector.h"

namespace slipstream {
namespace {

constexpr int64_t kPiece = 32;

// Four numbers of eight keys: to[d][0 .. 7] = keys[0 .. 7][d].
inline __attribute__((always_inline)) void turn_four(const float* keys, int64_t width, float* to) {
    typedef Eight Loose __attribute__((aligned(4), may_alias));
    Eight in[4], pairs[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) in[j] = two_fours(keys + j * width, keys + (j + 4) * width);
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
        pairs[j] = __builtin_shufflevector(in[j], in[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[j + 1] = __builtin_shufflevector(in[j], in[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const Eight a = pairs[i], b = pairs[i + 2];
        float* out = to + 2 * i * kPiece;
        *reinterpret_cast<Loose*>(out) = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
        *reinterpret_cast<Loose*>(out + kPiece) =
            __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
}

// Lay the keys of a piece side by side: to[d][j] = keys[j][d]. `ahead` asks for what is read later.
template <class Ahead>
void turn(const float* keys, int64_t width, float* to, Ahead& ahead) {
    for (int64_t j = 0; j < kPiece; j += 8, keys += 8 * width, to += 8) {
        int64_t d = 0;
        for (; d + 4 <= width; d += 4) {
            turn_four(keys + d, width, to + d * kPiece);
            ahead.ask(1);
        }
        for (; d < width; ++d)
            for (int i = 0; i < 8; ++i) to[d * kPiece + i] = keys[i * width + d];
    }
}

}  // namespace
}  // namespace slipstream
