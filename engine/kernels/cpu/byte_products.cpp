// Products of bytes by the multiply-adds of AVX2, or one by one where there is no such thing.

#include "integer_products.h"

#if VECTOR_FLOATS >= 8
#include <immintrin.h>
#endif

using namespace slipstream;

namespace {

// A format multiplies a group of kColumns neighbouring columns with kRows rows, and adds the
// products to the rows' sums.
#if VECTOR_FLOATS >= 8

constexpr int kColumns = 8;

inline __m256i bytes_at(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Four neighbouring codes of a row, for every column.
inline __m256i four_codes(const Activations& x, int word) {
    int32_t codes;
    std::memcpy(&codes, x.codes + 4 * word, 4);
    return _mm256_set1_epi32(codes);
}

// In place, which GCC 12 does not find out by itself: it kept half of the sums in memory.
inline void add_words(__m256i& total, __m256i value) {
    asm("vpaddw %1, %0, %0" : "+x"(total) : "x"(value));
}
inline void add_integers(__m256i& total, __m256i value) {
    asm("vpaddd %1, %0, %0" : "+x"(total) : "x"(value));
}

// What follows is not to be loaded before: the registers are full of sums until here.
#define KEEP_REGISTERS asm volatile("" ::: "memory")

inline __m256 halves_at(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Neighbouring pairs of 16-bit sums.
inline __m256i add_pairs(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

#else

constexpr int kColumns = 1;

#endif

template <class Format>
struct Bytes;

template <>
struct Bytes<W8A8> {
#if VECTOR_FLOATS >= 8
    template <int kRows, int kVectors>
    static inline __attribute__((always_inline)) void multiply(
        const uint8_t* group, int column, const Activations* const* rows,
        float (*sums)[kPanel]) {
        __m256i totals[kRows][kVectors] = {};
        const uint8_t* codes = group + 2 * kPanel + 4 * column;
#pragma GCC unroll 1
        for (int word = 0; word < kIntegerWords; ++word) {
            __m256i weights[kVectors], sizes[kVectors];
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                weights[v] = bytes_at(codes + word * 4 * kPanel + v * 32);
                sizes[v] = _mm256_abs_epi8(weights[v]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const __m256i x = four_codes(*rows[r], word);
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v)
                    // The instruction takes one side without a sign. Two products are at most
                    // 2 * 128 * 127, which 16 bits hold.
                    add_integers(totals[r][v],
                                 add_pairs(_mm256_maddubs_epi16(
                                     sizes[v], _mm256_sign_epi8(x, weights[v]))));
            }
        }
        KEEP_REGISTERS;
        __m256 scale[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
            scale[v] = halves_at(group + 2 * (column + v * kColumns));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m256 row_scale = _mm256_set1_ps(rows[r]->scale);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                float* at = sums[r] + column + v * kColumns;
                const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(totals[r][v]), scale[v]);
                _mm256_storeu_ps(at, _mm256_fmadd_ps(product, row_scale, _mm256_loadu_ps(at)));
            }
        }
    }
#else
    template <int kRows, int>
    static void multiply(const uint8_t* group, int column, const Activations* const* rows,
                         float (*sums)[kPanel]) {
        const float scale = half_to_float(group + 2 * column);
        for (int r = 0; r < kRows; ++r) {
            int32_t total = 0;
            for (int64_t k = 0; k < kIntegerGroup; ++k) total += W8A8::code(group, k, column) * rows[r]->codes[k];
            sums[r][column] += float(total) * scale * rows[r]->scale;
        }
    }
#endif
};

template <>
struct Bytes<W4A8> {
#if VECTOR_FLOATS >= 8
    template <int kRows, int kVectors>
    static inline __attribute__((always_inline)) void multiply(
        const uint8_t* group, int column, const Activations* const* rows,
        float (*sums)[kPanel]) {
        // A pair of products is at most 2 * 15 * 127; 16 bits hold the sum of all eight pairs.
        __m256i totals[kRows][kVectors];
        const uint8_t* codes = group + 4 * kPanel + 4 * column;
        const __m256i low_bits = _mm256_set1_epi8(15);
#pragma GCC unroll 4
        for (int word = 0; word < kIntegerWords; word += 2) {
            __m256i low[kVectors], high[kVectors];
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                const __m256i both = bytes_at(codes + word * 2 * kPanel + v * 32);
                low[v] = _mm256_and_si256(both, low_bits);
                high[v] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_bits);
            }
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const __m256i first = four_codes(*rows[r], word);
                const __m256i second = four_codes(*rows[r], word + 1);
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) {
                    const __m256i product = _mm256_maddubs_epi16(low[v], first);
                    // An addition less: an instruction in thirty, where those are what limits.
                    if (word == 0)
                        totals[r][v] = product;
                    else
                        add_words(totals[r][v], product);
                    add_words(totals[r][v], _mm256_maddubs_epi16(high[v], second));
                }
            }
        }
        KEEP_REGISTERS;
        __m256 scale[kVectors], minimum[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const uint8_t* numbers = group + 2 * (column + v * kColumns);
            scale[v] = halves_at(numbers), minimum[v] = halves_at(numbers + 2 * kPanel);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m256 row_scale = _mm256_set1_ps(rows[r]->scale);
            const __m256 row_sum = _mm256_set1_ps(rows[r]->sum);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                float* at = sums[r] + column + v * kColumns;
                const __m256 product =
                    _mm256_mul_ps(_mm256_cvtepi32_ps(add_pairs(totals[r][v])), scale[v]);
                const __m256 sum = _mm256_fmadd_ps(product, row_scale, _mm256_loadu_ps(at));
                _mm256_storeu_ps(at, _mm256_fmadd_ps(minimum[v], row_sum, sum));
            }
        }
    }
#else
    template <int kRows, int>
    static void multiply(const uint8_t* group, int column, const Activations* const* rows,
                         float (*sums)[kPanel]) {
        const float scale = half_to_float(group + 2 * column);
        const float minimum = half_to_float(group + 2 * (kPanel + column));
        for (int r = 0; r < kRows; ++r) {
            int32_t total = 0;
            for (int64_t k = 0; k < kIntegerGroup; ++k) total += W4A8::code(group, k, column) * rows[r]->codes[k];
            sums[r][column] += float(total) * scale * rows[r]->scale;
            sums[r][column] += minimum * rows[r]->sum;
        }
    }
#endif
};

// A tile of rows times a panel: kRows times kVectors vectors of sums are in registers at a time.
template <class Format, int kRows>
void multiply_panel(const uint8_t* panel, const Activations* const* rows, int64_t groups,
                    Prefetch prefetch, float (*sums)[kPanel]) {
    constexpr int kVectors = VECTOR_FLOATS < 8 ? 1 : kRows <= 2 ? 4 : 2;
    const Activations* at[kRows];
    for (int r = 0; r < kRows; ++r) at[r] = rows[r];
    for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* group = panel + g * Format::kBytes;
        prefetch.ask();
        for (int column = 0; column < kPanel; column += kVectors * kColumns)
            Bytes<Format>::template multiply<kRows, kVectors>(group, column, at, sums);
        for (int r = 0; r < kRows; ++r) ++at[r];
    }
}

constexpr int kMostRows = 4;

template <class Format>
void multiply_rows(int64_t count, const uint8_t* panel, const Activations* const* rows,
                   int64_t groups, Prefetch prefetch, float (*sums)[kPanel]) {
    switch (count) {
        case 1: return multiply_panel<Format, 1>(panel, rows, groups, prefetch, sums);
        case 2: return multiply_panel<Format, 2>(panel, rows, groups, prefetch, sums);
        case 3: return multiply_panel<Format, 3>(panel, rows, groups, prefetch, sums);
        default: return multiply_panel<Format, kMostRows>(panel, rows, groups, prefetch, sums);
    }
}

}  // namespace

Products slipstream::byte_products() {
    return {multiply_rows<W8A8>, multiply_rows<W4A8>, kMostRows};
}
