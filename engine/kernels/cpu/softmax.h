// The softmax of a query's scores, kept running over pieces (Milakov and Gimelshein 2018) and joined
// over spans.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "pieces.h"

namespace slipstream {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// A query head's running softmax.
struct Softmax {
    float reference = kLowest;  // what scores are taken relative to
    float total = 0.0f;
};

// How far a score may lie above the reference before what is summed so far is scaled to another one:
// e^8 is nowhere near the end of a float, and the highest score yet comes often at the beginning.
constexpr float kSlack = 8.0f;

void scale(float* sums, float factor, int64_t width) {
    for (int64_t i = 0; i < width; ++i) sums[i] *= factor;
}

// c tanh(x / c)
inline Vector cap(Vector x, float c) {
    return c - 2.0f * c / (exp(x * (2.0f / c)) + 1.0f);
}

inline bool is_any_above(Vector x, float limit) {
#if VECTOR_FLOATS == 16
    return _mm512_cmp_ps_mask(__m512(x), _mm512_set1_ps(limit), _CMP_GT_OQ);
#elif VECTOR_FLOATS == 8
    return _mm256_movemask_ps(_mm256_cmp_ps(__m256(x), _mm256_set1_ps(limit), _CMP_GT_OQ));
#else
    return max(x) > limit;
#endif
}

// Make a piece's scores weights: those of keys [low, high), which are seen, and 0 for the others.
// `sums`, weighted so far, are scaled where a score is much higher than those before it.
void weigh(float* scores, int64_t low, int64_t high, float softcap, Softmax& state, float* sums,
           int64_t width) {
    constexpr int kVectors = kPiece / kLanes;
    Integers index;
    for (int i = 0; i < kLanes; ++i) index[i] = i;
    Vector x[kVectors];
    Integers seen[kVectors];
    Vector top = splat(kLowest);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        x[v] = load(scores + v * kLanes);
        if (softcap > 0.0f) x[v] = cap(x[v], softcap);
        const Integers at = index + v * kLanes;
        seen[v] = (at >= int32_t(low)) & (at < int32_t(high));
        x[v] = seen[v] ? x[v] : splat(kLowest);
        top = x[v] > top ? x[v] : top;
    }
    if (is_any_above(top, state.reference + kSlack)) {
        const float highest = max(top);
        if (state.total > 0.0f) {
            const float keep = std::exp(state.reference - highest);
            state.total *= keep;
            scale(sums, keep, width);
        }
        state.reference = highest;
    }
    Vector total{};
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        const Vector weight = exp(x[v] - state.reference);
        x[v] = seen[v] ? weight : Vector{};
        total += x[v];
        store(scores + v * kLanes, x[v]);
    }
    state.total += sum(total);
}

// Add a span's result to those before it. Not inlined: the same instructions wherever it is called.
__attribute__((noinline)) void add_span(Softmax& all, float* all_sums, const Softmax& span,
                                        const float* sums, int64_t width) {
    if (span.total == 0.0f) return;
    if (all.total == 0.0f) {
        all = span;
        std::memcpy(all_sums, sums, width * sizeof(float));
        return;
    }
    const float highest = std::max(all.reference, span.reference);
    const float old = std::exp(all.reference - highest), fresh = std::exp(span.reference - highest);
    all = {highest, all.total * old + span.total * fresh};
    for (int64_t i = 0; i < width; ++i) all_sums[i] = all_sums[i] * old + sums[i] * fresh;
}

}  // namespace
}  // namespace slipstream
