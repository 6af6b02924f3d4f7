// Products of bytes by the instruction that x86 processors have for it (VNNI): four products of
// neighbours and their sum into 32 bits, for each lane, where AVX2 takes three instructions.
//
// Its weights have no sign and its activations have one. Weights that have a sign are moved up by
// 128, and 128 times the sum of the activations is taken off again.

#include "integer_products.h"

#if defined(__x86_64__) && (VECTOR_FLOATS == 16 || VECTOR_FLOATS == 8)
#define HAS_DOT_PRODUCTS 1
#include <immintrin.h>
#endif

using namespace slipstream;

#if HAS_DOT_PRODUCTS

namespace {

#if VECTOR_FLOATS == 16

#define WITH_DOT __attribute__((target("avx512vnni,avx512bw,avx512vl")))
#define INLINE_DOT WITH_DOT inline __attribute__((always_inline))
using Ints = __m512i;
using Floats = __m512;

INLINE_DOT Ints load_codes(const uint8_t* at) { return _mm512_loadu_si512(at); }
INLINE_DOT Ints every(int32_t value) { return _mm512_set1_epi32(value); }
INLINE_DOT Ints dot(Ints sums, Ints w, Ints x) { return _mm512_dpbusd_epi32(sums, w, x); }
INLINE_DOT Ints flip(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
INLINE_DOT Ints keep(Ints a, Ints b) { return _mm512_and_si512(a, b); }
INLINE_DOT Ints high_halves(Ints a) { return _mm512_srli_epi16(a, 4); }
INLINE_DOT Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
INLINE_DOT Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
INLINE_DOT Floats times_plus(Floats a, float b, Floats c) {
    return _mm512_fmadd_ps(a, _mm512_set1_ps(b), c);
}
INLINE_DOT Floats load_halves(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
INLINE_DOT Floats load_sums(const float* at) { return _mm512_loadu_ps(at); }
INLINE_DOT void store_sums(float* at, Floats value) { _mm512_storeu_ps(at, value); }

constexpr int kMostRows = 8;

#else

#define WITH_DOT __attribute__((target("avxvnni,avx2,fma,f16c")))
#define INLINE_DOT WITH_DOT inline __attribute__((always_inline))
using Ints = __m256i;
using Floats = __m256;

INLINE_DOT Ints load_codes(const uint8_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
INLINE_DOT Ints every(int32_t value) { return _mm256_set1_epi32(value); }
INLINE_DOT Ints dot(Ints sums, Ints w, Ints x) { return _mm256_dpbusd_avx_epi32(sums, w, x); }
INLINE_DOT Ints flip(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
INLINE_DOT Ints keep(Ints a, Ints b) { return _mm256_and_si256(a, b); }
INLINE_DOT Ints high_halves(Ints a) { return _mm256_srli_epi16(a, 4); }
INLINE_DOT Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
INLINE_DOT Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
INLINE_DOT Floats times_plus(Floats a, float b, Floats c) {
    return _mm256_fmadd_ps(a, _mm256_set1_ps(b), c);
}
INLINE_DOT Floats load_halves(const uint8_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
INLINE_DOT Floats load_sums(const float* at) { return _mm256_loadu_ps(at); }
INLINE_DOT void store_sums(float* at, Floats value) { _mm256_storeu_ps(at, value); }

constexpr int kMostRows = 2;

#endif

constexpr int kColumns = VECTOR_FLOATS;
// Vectors of columns whose sums are in registers at a time.
constexpr int kVectors = 2;

// Four neighbouring codes of a row.
INLINE_DOT Ints four_codes(const Activations& x, int word) {
    int32_t codes;
    std::memcpy(&codes, x.codes + 4 * word, 4);
    return every(codes);
}

template <class Format>
struct Dots;

template <>
struct Dots<W8A8> {
    template <int kRows>
    static INLINE_DOT void add(const uint8_t* group, int column, const Activations* const* rows,
                               Ints (&totals)[kRows][kVectors]) {
        const uint8_t* codes = group + 2 * kPanel + 4 * column;
        const Ints sign = every(int32_t(0x80808080));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v) totals[r][v] = every(rows[r]->offset);
#pragma GCC unroll 8
        for (int word = 0; word < kIntegerWords; ++word) {
            Ints weights[kVectors];
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v)
                weights[v] = flip(load_codes(codes + (word * kPanel + v * kColumns) * 4), sign);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v)
                    totals[r][v] = dot(totals[r][v], weights[v], four_codes(*rows[r], word));
        }
    }
};

template <>
struct Dots<W4A8> {
    template <int kRows>
    static INLINE_DOT void add(const uint8_t* group, int column, const Activations* const* rows,
                               Ints (&totals)[kRows][kVectors]) {
        const uint8_t* codes = group + 4 * kPanel + 4 * column;
        const Ints low_bits = every(0x0f0f0f0f);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v) totals[r][v] = every(0);
#pragma GCC unroll 4
        for (int word = 0; word < kIntegerWords; word += 2) {
            Ints low[kVectors], high[kVectors];
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
                const Ints both = load_codes(codes + (word / 2 * kPanel + v * kColumns) * 4);
                low[v] = keep(both, low_bits);
                high[v] = keep(high_halves(both), low_bits);
            }
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const Ints first = four_codes(*rows[r], word);
                const Ints second = four_codes(*rows[r], word + 1);
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v) {
                    totals[r][v] = dot(totals[r][v], low[v], first);
                    totals[r][v] = dot(totals[r][v], high[v], second);
                }
            }
        }
    }
};

// kRows rows times kVectors vectors of a panel's columns, through all groups.
template <class Format, int kRows>
WITH_DOT void multiply_columns(const uint8_t* panel, int column, const Activations* const* rows,
                               int64_t groups, Prefetch prefetch, float (*sums)[kPanel]) {
    const Activations* at[kRows];
    Floats acc[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        at[r] = rows[r];
        for (int v = 0; v < kVectors; ++v)
            acc[r][v] = load_sums(sums[r] + column + v * kColumns);
    }
    for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* group = panel + g * Format::kBytes;
        prefetch.ask();
        Ints totals[kRows][kVectors];
        Dots<Format>::add(group, column, at, totals);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            const uint8_t* numbers = group + 2 * (column + v * kColumns);
            const Floats scale = load_halves(numbers);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const Floats product = times(to_floats(totals[r][v]), scale);
                acc[r][v] = times_plus(product, at[r]->scale, acc[r][v]);
                if (std::is_same<Format, W4A8>::value)
                    acc[r][v] =
                        times_plus(load_halves(numbers + 2 * kPanel), at[r]->sum, acc[r][v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) ++at[r];
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v)
            store_sums(sums[r] + column + v * kColumns, acc[r][v]);
}

template <class Format, int kRows>
void multiply_panel(const uint8_t* panel, const Activations* const* rows, int64_t groups,
                    Prefetch prefetch, float (*sums)[kPanel]) {
    for (int column = 0; column < kPanel; column += kVectors * kColumns) {
        multiply_columns<Format, kRows>(panel, column, rows, groups, prefetch, sums);
        prefetch.stop = prefetch.next;
    }
}

template <class Format>
void multiply_rows(int64_t count, const uint8_t* panel, const Activations* const* rows,
                   int64_t groups, Prefetch prefetch, float (*sums)[kPanel]) {
    switch (count) {
        case 1: return multiply_panel<Format, 1>(panel, rows, groups, prefetch, sums);
#if VECTOR_FLOATS == 16
        case 2: return multiply_panel<Format, 2>(panel, rows, groups, prefetch, sums);
        case 3: return multiply_panel<Format, 3>(panel, rows, groups, prefetch, sums);
        case 4: return multiply_panel<Format, 4>(panel, rows, groups, prefetch, sums);
        case 5: return multiply_panel<Format, 5>(panel, rows, groups, prefetch, sums);
        case 6: return multiply_panel<Format, 6>(panel, rows, groups, prefetch, sums);
        case 7: return multiply_panel<Format, 7>(panel, rows, groups, prefetch, sums);
#endif
        default: return multiply_panel<Format, kMostRows>(panel, rows, groups, prefetch, sums);
    }
}

}  // namespace

bool slipstream::has_dot_products() {
    #if VECTOR_FLOATS == 16
    return __builtin_cpu_supports("avx512vnni");
#else
    return __builtin_cpu_supports("avxvnni");
#endif
}

Products slipstream::dot_products() {
    return {multiply_rows<W8A8>, multiply_rows<W4A8>, kMostRows};
}

#else

bool slipstream::has_dot_products() { return false; }

Products slipstream::dot_products() { return byte_products(); }

#endif
