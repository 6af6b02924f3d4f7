// fp16 to fp32, exactly; what is not finite stays so.
#pragma once

#include "vector.h"

#if VECTOR_FLOATS >= 8
#include <immintrin.h>
#endif

namespace slipstream {
namespace {

// The exponent's bias differs by 112.
inline float half_to_float(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, sizeof(half));
    const uint32_t magnitude = uint32_t(half & 0x7fff) << 13;
    // What has no exponent is a multiple of 2^-24, and gets there through an integer.
    float value = float(int32_t(magnitude >> 13)) * 5.9604644775390625e-8f;
    uint32_t moved = magnitude + (112u << 23);
    if (magnitude >= 31u << 23) moved |= 0x7f800000u;
    if (magnitude >= 1u << 23) std::memcpy(&value, &moved, sizeof(value));
    return half & 0x8000 ? -value : value;
}

// A vector of them.
#if VECTOR_FLOATS == 16
inline Vector halves_to_floats(const uint8_t* from) {
    return Vector(
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
#elif VECTOR_FLOATS == 8
inline Vector halves_to_floats(const uint8_t* from) {
    return Vector(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#else
inline Vector halves_to_floats(const uint8_t* from) {
    Vector value;
    for (int i = 0; i < kLanes; ++i) value[i] = half_to_float(from + 2 * i);
    return value;
}
#endif

}  // namespace
}  // namespace slipstream
