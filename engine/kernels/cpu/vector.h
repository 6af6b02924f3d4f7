// Vectors of the width that the compiler was told (-DVECTOR_FLOATS), and what the kernels do with
// them. The compiler's own vector types: one source for AVX-512, AVX2, NEON and anything else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if VECTOR_FLOATS >= 8
#include <immintrin.h>
#endif

namespace slipstream {

constexpr int kLanes = VECTOR_FLOATS;

typedef float Vector __attribute__((vector_size(sizeof(float) * kLanes)));
typedef int32_t Integers __attribute__((vector_size(sizeof(int32_t) * kLanes)));
typedef float Unaligned __attribute__((vector_size(sizeof(float) * kLanes), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
// Not a sum with 0, which would make -0 one and cost an addition.
inline Vector splat(float value) { return value - Vector{}; }

// Halves are added until four lanes are left: an order that depends on nothing but the width.
typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));

inline float sum(Four v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float sum(Eight v) {
    return sum(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
inline float max(Four v) {
    return std::max(std::max(v[0], v[2]), std::max(v[1], v[3]));
}
inline float max(Eight v) {
    const Four low = __builtin_shufflevector(v, v, 0, 1, 2, 3);
    const Four high = __builtin_shufflevector(v, v, 4, 5, 6, 7);
    return max(low > high ? low : high);
}
#if VECTOR_FLOATS == 16
inline float max(Vector v) {
    const Eight low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    const Eight high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    return max(low > high ? low : high);
}
inline float sum(Vector v) {
    return sum(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}
#endif

// The sum of whole numbers, exact in any order.
inline int32_t sum(Integers v) {
#if VECTOR_FLOATS == 16
    return _mm512_reduce_add_epi32(__m512i(v));
#elif VECTOR_FLOATS == 8
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(__m256i(v)),
                                 _mm256_extracti128_si256(__m256i(v), 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001));
    return _mm_cvtsi128_si32(four);
#else
    int32_t total = 0;
    for (int i = 0; i < kLanes; ++i) total += v[i];
    return total;
#endif
}

// Whether a comparison is true anywhere.
inline bool is_any(Integers mask) {
#if VECTOR_FLOATS == 16
    return _mm512_test_epi32_mask(__m512i(mask), __m512i(mask));
#elif VECTOR_FLOATS == 8
    return !_mm256_testz_si256(__m256i(mask), __m256i(mask));
#else
    for (int i = 0; i < kLanes; ++i)
        if (mask[i]) return true;
    return false;
#endif
}

// The nearest whole numbers, the even one of two.
inline Integers nearest(Vector value) {
#if VECTOR_FLOATS == 16
    return Integers(_mm512_cvtps_epi32(__m512(value)));
#elif VECTOR_FLOATS == 8
    return Integers(_mm256_cvtps_epi32(__m256(value)));
#else
    Integers whole;
    for (int i = 0; i < kLanes; ++i) whole[i] = int32_t(__builtin_nearbyintf(value[i]));
    return whole;
#endif
}

// The low 8, or 16, bits of numbers that these hold, with and without a sign. The compiler's own
// conversion takes them one by one.
inline void store_bytes(void* to, Integers numbers) {
#if VECTOR_FLOATS == 16
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(numbers)));
#elif VECTOR_FLOATS == 8
    const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(__m256i(numbers)),
                                          _mm256_extracti128_si256(__m256i(numbers), 1));
    _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packs_epi16(pairs, pairs));
#else
    int8_t bytes[kLanes];
    for (int i = 0; i < kLanes; ++i) bytes[i] = int8_t(numbers[i]);
    std::memcpy(to, bytes, sizeof(bytes));
#endif
}
inline void store_halves(void* to, Integers numbers) {
#if VECTOR_FLOATS == 16
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(__m512i(numbers)));
#elif VECTOR_FLOATS == 8
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     _mm_packus_epi32(_mm256_castsi256_si128(__m256i(numbers)),
                                      _mm256_extracti128_si256(__m256i(numbers), 1)));
#else
    uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = uint16_t(numbers[i]);
    std::memcpy(to, halves, sizeof(halves));
#endif
}

// e^x to about 2 ulp. Below -87 the result is the smallest normal number's neighbourhood, not 0;
// above 88 it saturates. Range reduction by ln 2 in two parts and a degree-6 polynomial (Cody and
// Waite 1980; coefficients of Cephes' expf).
inline Vector exp(Vector x) {
    const Vector low = splat(-87.0f), high = splat(88.0f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    // The sum's last places are the nearest whole number.
    constexpr float kShift = 12582912.0f;
    const Vector shifted = x * 1.44269504088896341f + kShift;
    const Vector whole = shifted - kShift;
    Vector r = x - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    Vector p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * Vector((Integers(shifted) << 23) + (127 << 23));
}

}  // namespace slipstream
