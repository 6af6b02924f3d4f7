// How weights of 8 or 4 bits and activations of 8 lie in memory; see integer_linear.cpp.
#pragma once

#include "half.h"
#include "tile.h"

namespace slipstream {

constexpr int64_t kIntegerGroup = 32;
constexpr int kIntegerWords = kIntegerGroup / 4;

// A group of a row.
struct Activations {
    float scale;
    float sum;       // of the rounded numbers
    int32_t offset;  // -128 times the sum of the codes
    int8_t codes[kIntegerGroup];
};

namespace {

struct W8A8 {
    static constexpr int64_t kBytes = kPanel * (2 + kIntegerGroup);

    static int64_t place(int64_t k, int64_t column) {
        return 2 * kPanel + k / 4 * 4 * kPanel + 4 * column + k % 4;
    }
    static int32_t code(const uint8_t* group, int64_t k, int64_t column) {
        return int8_t(group[place(k, column)]);
    }
    static float number(const uint8_t* group, int64_t k, int64_t column) {
        return half_to_float(group + 2 * column) * code(group, k, column);
    }
};

struct W4A8 {
    static constexpr int64_t kBytes = kPanel * (2 + 2 + kIntegerGroup / 2);

    static int64_t place(int64_t k, int64_t column) {
        return 4 * kPanel + k / 8 * 4 * kPanel + 4 * column + k % 4;
    }
    static int shift(int64_t k) { return k % 8 < 4 ? 0 : 4; }
    static int32_t code(const uint8_t* group, int64_t k, int64_t column) {
        return group[place(k, column)] >> shift(k) & 15;
    }
    static float number(const uint8_t* group, int64_t k, int64_t column) {
        return half_to_float(group + 2 * column) * code(group, k, column) +
               half_to_float(group + 2 * (kPanel + column));
    }
};

}  // namespace
}  // namespace slipstream
