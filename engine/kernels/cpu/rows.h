// What a layer does to one row by itself, in an order of its own, whatever the batch.
#pragma once

#include <cmath>

#include "vector.h"

namespace slipstream {
namespace {

inline float sum_of_squares(const float* x, int64_t width) {
    Vector acc{};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Vector v = load(x + i);
        acc += v * v;
    }
    float total = sum(acc);
    for (; i < width; ++i) total += x[i] * x[i];
    return total;
}

inline float sum_of(const float* x, int64_t width) {
    Vector acc{};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) acc += load(x + i);
    float total = sum(acc);
    for (; i < width; ++i) total += x[i];
    return total;
}

// y = x / sqrt(mean(x^2) + epsilon) * weight; y may be x.
inline void norm_row(const float* x, const float* weight, float* y, int64_t width, float epsilon) {
    const float scale = 1.0f / std::sqrt(sum_of_squares(x, width) / width + epsilon);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        store(y + i, load(weight + i) * (load(x + i) * scale));
    for (; i < width; ++i) y[i] = weight[i] * (x[i] * scale);
}

// A norm of a row. Filled in from Python, too: eight bytes a field.
struct Norm {
    const float* weight;  // [width], or null: there is none
    const float* bias;    // [width], added in the end, or null
    int64_t width;
    int64_t centres;  // whether the row's mean is taken away first
    double epsilon;

    // y may be x.
    void apply(const float* x, float* y) const {
        const float mean = centres ? sum_of(x, width) / width : 0.0f;
        if (centres)
            for (int64_t i = 0; i < width; ++i) y[i] = x[i] - mean;
        norm_row(centres ? y : x, weight, y, width, float(epsilon));
        if (bias)
            for (int64_t i = 0; i < width; ++i) y[i] += bias[i];
    }
};

// x += factor * y, rounded twice, as it is where layers compute one after another; y is overwritten.
inline void add_row(float* x, float* y, float factor, int64_t width) {
    for (int64_t i = 0; i < width; ++i) y[i] *= factor;
    for (int64_t i = 0; i < width; ++i) x[i] += y[i];
}

// The activations of rows.py, by its numbers. Each lets x * sigmoid(slope(x)) pass.
constexpr int64_t kSilu = 0;
constexpr int64_t kGeluTanh = 1;

struct Silu {
    template <class Number>
    static Number slope(Number x) {
        return x;
    }
};

// x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), where u = sqrt(2 / pi) * (x + 0.044715 x^3).
struct GeluTanh {
    template <class Number>
    static Number slope(Number x) {
        return x * (1.5957691216f + 0.0713548163f * (x * x));
    }
};

template <class Activation>
inline void gate_row_with(const float* gate, const float* up, float* y, int64_t width) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Vector g = load(gate + i);
        store(y + i, g / (1.0f + exp(-Activation::slope(g))) * load(up + i));
    }
    for (; i < width; ++i)
        y[i] = gate[i] / (1.0f + std::exp(-Activation::slope(gate[i]))) * up[i];
}

// y = activation(gate) * up, for `width` numbers.
inline void gate_row(int64_t activation, const float* gate, const float* up, float* y,
                     int64_t width) {
    if (activation == kGeluTanh)
        gate_row_with<GeluTanh>(gate, up, y, width);
    else
        gate_row_with<Silu>(gate, up, y, width);
}

// Turn the first `turned` numbers of a head by its row's angles: split in halves (a, b), they become
// a' = a cos - b sin and b' = b cos + a sin. The others stay. y may be x.
inline void rotate_head(const float* x, const float* cosines, const float* sines, float* y,
                        int64_t turned, int64_t width) {
    const int64_t half = turned / 2;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const Vector a = load(x + i), b = load(x + half + i);
        store(y + i, a * load(cosines + i) - b * load(sines + i));
        store(y + half + i, b * load(cosines + half + i) + a * load(sines + half + i));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        y[i] = a * cosines[i] - b * sines[i];
        y[half + i] = b * cosines[half + i] + a * sines[half + i];
    }
    if (y != x) std::memcpy(y + turned, x + turned, (width - turned) * sizeof(float));
}

}  // namespace
}  // namespace slipstream
