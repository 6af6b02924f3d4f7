// The rows of the paged cache: one head's key, or value, at one position.
//
//   float32    D numbers
//   bfloat16   D numbers, rounded to the nearest
//   float16    likewise; what is too large becomes the largest
//   int8       D codes, then a float32 scale: a number is code * scale. A row with a number that is not
//              finite has a scale that is not, and is all NaN
#pragma once

#include <cmath>

#include "half.h"
#include "vector.h"

namespace slipstream {

// A layer's keys, or values: [blocks, kv_heads, page_size] rows, blocks and heads so far apart. Filled
// in from Python, too: eight bytes a field.
struct CachedRows {
    uint8_t* rows;
    int64_t block_bytes, head_bytes;

    uint8_t* at(int64_t block, int64_t kv, int64_t offset, int64_t row_bytes) const {
        return rows + block * block_bytes + kv * head_bytes + offset * row_bytes;
    }
};

namespace {

// Filled in from Python, see kv_rows.py.
enum KvFormat : int64_t { kKvFloat32, kKvBf16, kKvFp16, kKvInt8 };

constexpr int64_t kScaleBytes = sizeof(float);
constexpr float kLargestCode = 127.0f;
// Rows of smaller numbers are rows of zeros: what divides by them would not be finite.
constexpr float kSmallestRow = 1e-30f;

inline int64_t kv_row_bytes(int64_t format, int64_t width) {
    switch (format) {
        case kKvFloat32: return 4 * width;
        case kKvInt8: return width + kScaleBytes;
        default: return 2 * width;
    }
}

// kLanes smaller integers. The compiler's own conversion takes them one by one.
template <class Small>
inline Integers widen_integers(const uint8_t* from) {
#if VECTOR_FLOATS == 16
    if constexpr (sizeof(Small) == 2)
        return Integers(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
    else
        return Integers(
            _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif VECTOR_FLOATS == 8
    if constexpr (sizeof(Small) == 2)
        return Integers(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    else
        return Integers(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    Small small[kLanes];
    std::memcpy(small, from, sizeof(small));
    Integers wide;
    for (int i = 0; i < kLanes; ++i) wide[i] = small[i];
    return wide;
#endif
}

// Each format takes numbers out of a row. `kPerUnit` of them lie in four bytes; `take` makes number
// `i` of each of kLanes units a float, `number` one of a row, `vector` kLanes that follow each other.
struct Float32Rows {
    static constexpr int kPerUnit = 1;
    static Vector take(Integers units, int) { return Vector(units); }
    static float number(const uint8_t* row, int64_t i) {
        float value;
        std::memcpy(&value, row + 4 * i, sizeof(value));
        return value;
    }
    static Vector vector(const uint8_t* row, int64_t i) {
        return load(reinterpret_cast<const float*>(row) + i);
    }
};

struct Bf16Rows {
    static constexpr int kPerUnit = 2;
    static Vector take(Integers units, int i) {
        return Vector(i == 0 ? units << 16 : units & int32_t(0xffff0000));
    }
    static float number(const uint8_t* row, int64_t i) {
        uint16_t half;
        std::memcpy(&half, row + 2 * i, sizeof(half));
        const uint32_t bits = uint32_t(half) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
    static Vector vector(const uint8_t* row, int64_t i) {
        return Vector(widen_integers<uint16_t>(row + 2 * i) << 16);
    }
};

struct Fp16Rows {
    static constexpr int kPerUnit = 2;
#if VECTOR_FLOATS == 16
    static Vector take(Integers units, int i) {
        const __m512i low = __m512i(i == 0 ? units : units >> 16);
        return Vector(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(low)));
    }
#elif VECTOR_FLOATS == 8
    static Vector take(Integers units, int i) {
        // Within sixteen bytes, four that come first and the four behind them.
        const __m256i first = _mm256_and_si256(__m256i(units), _mm256_set1_epi32(0xffff));
        const __m256i second = _mm256_srli_epi32(__m256i(units), 16);
        const __m256i both =
            _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0b11011000);
        return Vector(_mm256_cvtph_ps(i == 0 ? _mm256_castsi256_si128(both)
                                             : _mm256_extracti128_si256(both, 1)));
    }
#else
    static Vector take(Integers units, int i) {
        if (i == 1) units = units >> 16;
        // The exponent's bias differs by 112; what has no exponent gets one, and loses it again.
        constexpr int32_t kOne = 1 << 23;
        const Integers magnitude = (units & 0x7fff) << 13;
        const Vector small = Vector(magnitude + 113 * kOne) - 6.103515625e-05f;
        Integers bits = magnitude < kOne ? Integers(small) : magnitude + 112 * kOne;
        bits |= magnitude >= 31 * kOne ? Integers{} + 0x7f800000 : Integers{};
        return Vector(bits | (units & 0x8000) << 16);
    }
#endif
    static float number(const uint8_t* row, int64_t i) { return half_to_float(row + 2 * i); }
    static Vector vector(const uint8_t* row, int64_t i) { return halves_to_floats(row + 2 * i); }
};

// Numbers are codes: whoever takes them multiplies with the scale later.
struct Int8Rows {
    static constexpr int kPerUnit = 4;
    static Vector take(Integers units, int i) {
        return __builtin_convertvector(units << (24 - 8 * i) >> 24, Vector);
    }
    static float number(const uint8_t* row, int64_t i) { return int8_t(row[i]); }
    static Vector vector(const uint8_t* row, int64_t i) {
        return __builtin_convertvector(widen_integers<int8_t>(row + i), Vector);
    }
    static float scale(const uint8_t* row, int64_t width) {
        return Float32Rows::number(row + width, 0);
    }
};

// Call `action(format's struct)` for a format that is not constant.
template <class Action>
inline auto with_format(int64_t format, Action action) {
    switch (format) {
        case kKvFloat32: return action(Float32Rows());
        case kKvBf16: return action(Bf16Rows());
        case kKvFp16: return action(Fp16Rows());
        default: return action(Int8Rows());
    }
}

inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (value != value) return 0x7fc0;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline uint16_t to_fp16(float value) {
    uint32_t bits;
    const float magnitude = std::min(std::fabs(value), 65504.0f);
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000;
    if (value != value) return sign | 0x7e00;
    // Below the smallest that has an exponent, the sum's last places are multiples of 2^-24.
    if (magnitude < 6.103515625e-05f) {
        const float sum = magnitude + 0.5f;
        std::memcpy(&bits, &sum, sizeof(bits));
        return sign | (bits - 0x3f000000);
    }
    std::memcpy(&bits, &magnitude, sizeof(bits));
    return sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10));
}

inline Integers to_bf16(Vector value) {
    const Integers bits = Integers(value);
    const Integers rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff;
    return value != value ? Integers{} + 0x7fc0 : rounded;
}

// kLanes numbers, as these make them.
inline void store_bf16(Vector value, uint8_t* to) { store_halves(to, to_bf16(value)); }
inline void store_fp16(Vector value, uint8_t* to) {
#if VECTOR_FLOATS >= 8
    const Vector low = splat(-65504.0f), high = splat(65504.0f);
    value = value < low ? low : value;
    value = value > high ? high : value;
#endif
#if VECTOR_FLOATS == 16
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(__m512(value), _MM_FROUND_TO_NEAREST_INT));
#elif VECTOR_FLOATS == 8
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(__m256(value), _MM_FROUND_TO_NEAREST_INT));
#else
    Integers halves;
    for (int i = 0; i < kLanes; ++i) halves[i] = to_fp16(value[i]);
    store_halves(to, halves);
#endif
}

inline void store_int8(const float* from, uint8_t* to, int64_t width) {
    float highest = 0.0f, probe = 0.0f;
    Vector tops{}, probes{};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Vector value = load(from + i), size = value < 0.0f ? -value : value;
        tops = size > tops ? size : tops;
        probes += value * 0.0f;
    }
    highest = max(tops), probe = sum(probes);
    for (; i < width; ++i) {
        highest = std::max(highest, std::fabs(from[i]));
        probe += from[i] * 0.0f;
    }
    const bool is_finite = probe == probe;
    const float inverse = is_finite && highest > kSmallestRow ? kLargestCode / highest : 0.0f;
    for (i = 0; is_finite && i + kLanes <= width; i += kLanes)
        store_bytes(to + i, nearest(load(from + i) * inverse));
    for (; i < width; ++i)
        to[i] = is_finite ? int8_t(std::nearbyint(from[i] * inverse)) : 0;
    const float scale = is_finite ? highest / kLargestCode : probe;
    std::memcpy(to + width, &scale, sizeof(scale));
}

inline void store_half_row(bool is_bf16, const float* from, uint8_t* to, int64_t width) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        const Vector value = load(from + i);
        if (is_bf16)
            store_bf16(value, to + 2 * i);
        else
            store_fp16(value, to + 2 * i);
    }
    for (; i < width; ++i) {
        const uint16_t half = is_bf16 ? to_bf16(from[i]) : to_fp16(from[i]);
        std::memcpy(to + 2 * i, &half, sizeof(half));
    }
}

// Bring a row of floats to the cache.
inline void store_kv_row(int64_t format, const float* from, uint8_t* to, int64_t width) {
    if (format == kKvFloat32)
        std::memcpy(to, from, width * sizeof(float));
    else if (format == kKvInt8)
        store_int8(from, to, width);
    else
        store_half_row(format == kKvBf16, from, to, width);
}

// The same for the row of a slot.
inline void store_at_slot(int64_t format, const float* from, const CachedRows& cached, int64_t slot,
                          int64_t kv, int64_t page_size, int64_t width) {
    uint8_t* to = cached.at(slot / page_size, kv, slot % page_size, kv_row_bytes(format, width));
    store_kv_row(format, from, to, width);
}

}  // namespace
}  // namespace slipstream
