// y = x W^T + b for weights of 8 or 4 bits and activations of 8: products and sums of integers.
//
// A row's activations are rounded to -127 .. 127 times a scale of their own for 32 of them, where
// the weights have theirs. What a group adds to an output is then
//
//   scale of x * (scale of w * (sum of integers) + minimum of w * (sum of x's integers))
//
// The integers are summed exactly, the groups in fp32 from the first to the last: a row's result is
// bitwise the same alone and in any batch, whatever the threads.
//
//   w8a8   per 32 of K: [32] fp16 scales, then [8][32] times 4 codes, those of k .. k + 3
//   w4a8   per 32 of K: [32] fp16 scales, [32] fp16 minima, then [4][32] times 4 bytes: the codes of
//          k .. k + 3 in the low halves, those of k + 4 .. k + 7 in the high ones
//
// Incomplete groups are filled with zeros.

#include "integer.h"

#include <cmath>
#include <limits>

#include "half.h"
#include "tile.h"

using namespace slipstream;

namespace {

constexpr int64_t kGroup = 32;
constexpr int kWords = kGroup / 4;

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

// A group of a row.
struct Activations {
    float scale;
    float sum;  // of the rounded numbers
    int8_t codes[kGroup];
};

void round_group(const float* x, int64_t count, Activations& to) {
    float filled[kGroup] = {};
    std::memcpy(filled, x, count * sizeof(float));
    Vector top{};
    Integers is_nan{};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
        const Vector value = load(filled + i);
        const Vector size = value < 0.0f ? -value : value;
        top = size > top ? size : top;
        is_nan |= value != value;
    }
    const float highest = max(top);
    // No scale for these: the outputs must show it.
    bool is_finite = highest <= std::numeric_limits<float>::max();
    for (int i = 0; i < kLanes; ++i) is_finite &= !is_nan[i];
    // Numbers so small that the inverse of their scale has no finite value count as zeros.
    const bool has_scale = is_finite && highest > 1e-30f;
    const float inverse = has_scale ? 127.0f / highest : 0.0f;
    to.scale = has_scale  ? highest / 127.0f
               : is_finite ? 0.0f
                           : std::numeric_limits<float>::quiet_NaN();
    int32_t total = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
        const int32_t code = is_finite ? int32_t(std::nearbyint(filled[i] * inverse)) : 0;
        to.codes[i] = int8_t(std::min(127, std::max(-127, code)));
        total += to.codes[i];
    }
    to.sum = to.scale * float(total);
}

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

struct W8A8 {
    static constexpr int64_t kBytes = kPanel * (2 + kGroup);

#if VECTOR_FLOATS >= 8
    template <int kRows, int kVectors>
    static inline __attribute__((always_inline)) void multiply(
        const uint8_t* group, int column, const Activations* const* rows,
        float (*sums)[kPanel]) {
        __m256i totals[kRows][kVectors] = {};
        const uint8_t* codes = group + 2 * kPanel + 4 * column;
#pragma GCC unroll 1
        for (int word = 0; word < kWords; ++word) {
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
                    totals[r][v] = _mm256_add_epi32(
                        totals[r][v], add_pairs(_mm256_maddubs_epi16(
                                          sizes[v], _mm256_sign_epi8(x, weights[v]))));
            }
        }
        KEEP_REGISTERS;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const __m256 scale = halves_at(group + 2 * (column + v * kColumns));
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                float* at = sums[r] + column + v * kColumns;
                const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(totals[r][v]), scale);
                _mm256_storeu_ps(at, _mm256_fmadd_ps(product, _mm256_set1_ps(rows[r]->scale),
                                                     _mm256_loadu_ps(at)));
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
            for (int64_t k = 0; k < kGroup; ++k) total += code(group, k, column) * rows[r]->codes[k];
            sums[r][column] += float(total) * scale * rows[r]->scale;
        }
    }
#endif

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
    static constexpr int64_t kBytes = kPanel * (2 + 2 + kGroup / 2);

#if VECTOR_FLOATS >= 8
    template <int kRows, int kVectors>
    static inline __attribute__((always_inline)) void multiply(
        const uint8_t* group, int column, const Activations* const* rows,
        float (*sums)[kPanel]) {
        // A pair of products is at most 2 * 15 * 127; 16 bits hold the sum of all eight pairs.
        __m256i totals[kRows][kVectors] = {};
        const uint8_t* codes = group + 4 * kPanel + 4 * column;
        const __m256i low_bits = _mm256_set1_epi8(15);
#pragma GCC unroll 1
        for (int word = 0; word < kWords; word += 2) {
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
                    totals[r][v] =
                        _mm256_add_epi16(totals[r][v], _mm256_maddubs_epi16(low[v], first));
                    totals[r][v] =
                        _mm256_add_epi16(totals[r][v], _mm256_maddubs_epi16(high[v], second));
                }
            }
        }
        KEEP_REGISTERS;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const uint8_t* numbers = group + 2 * (column + v * kColumns);
            const __m256 scale = halves_at(numbers), minimum = halves_at(numbers + 2 * kPanel);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                float* at = sums[r] + column + v * kColumns;
                const __m256 product =
                    _mm256_mul_ps(_mm256_cvtepi32_ps(add_pairs(totals[r][v])), scale);
                const __m256 sum = _mm256_fmadd_ps(product, _mm256_set1_ps(rows[r]->scale),
                                                   _mm256_loadu_ps(at));
                _mm256_storeu_ps(at,
                                 _mm256_fmadd_ps(minimum, _mm256_set1_ps(rows[r]->sum), sum));
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
            for (int64_t k = 0; k < kGroup; ++k) total += code(group, k, column) * rows[r]->codes[k];
            sums[r][column] += float(total) * scale * rows[r]->scale;
            sums[r][column] += minimum * rows[r]->sum;
        }
    }
#endif

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

template <class Action>
void with_format(int64_t format, Action action) {
    if (format == kW8A8)
        action(static_cast<W8A8*>(nullptr));
    else
        action(static_cast<W4A8*>(nullptr));
}

// A tile of rows times a panel: kRows times kVectors vectors of sums are in registers at a time. Only
// the first tile finds the panel in memory.
template <class Format, int kRows>
void multiply_panel(const uint8_t* panel, const Activations* const* rows, int64_t groups,
                    bool is_first, float (*sums)[kPanel]) {
    constexpr int kVectors = VECTOR_FLOATS < 8 ? 1 : kRows <= 2 ? 4 : 2;
    const Activations* at[kRows];
    for (int r = 0; r < kRows; ++r) at[r] = rows[r];
    for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* group = panel + g * Format::kBytes;
        if (is_first) ask_ahead(group, Format::kBytes);
        for (int column = 0; column < kPanel; column += kVectors * kColumns)
            Format::template multiply<kRows, kVectors>(group, column, at, sums);
        for (int r = 0; r < kRows; ++r) ++at[r];
    }
}

constexpr int kMostRows = 4;

template <class Format>
void multiply_rows(int64_t count, const uint8_t* panel, const Activations* const* rows,
                   int64_t groups, bool is_first, float (*sums)[kPanel]) {
    switch (count) {
        case 1: return multiply_panel<Format, 1>(panel, rows, groups, is_first, sums);
        case 2: return multiply_panel<Format, 2>(panel, rows, groups, is_first, sums);
        case 3: return multiply_panel<Format, 3>(panel, rows, groups, is_first, sums);
        default: return multiply_panel<Format, kMostRows>(panel, rows, groups, is_first, sums);
    }
}

// One panel of a layer for all rows.
template <class Format>
void run_panel(const Linear& linear, const Rows& rows, int64_t index) {
    const int64_t groups = groups_of(linear.depth), first_column = index * kPanel;
    const int64_t width = std::min<int64_t>(kPanel, linear.columns - first_column);
    const uint8_t* panel = linear.panels + index * groups * Format::kBytes;
    const auto* packed = reinterpret_cast<const Activations*>(rows.packed);
    float bias[kPanel] = {};
    if (linear.bias) std::memcpy(bias, linear.bias + first_column, width * sizeof(float));
    for (int64_t first = 0; first < rows.count; first += kMostRows) {
        const int64_t count = std::min<int64_t>(kMostRows, rows.count - first);
        const Activations* at[kMostRows];
        alignas(64) float sums[kMostRows][kPanel];
        for (int64_t r = 0; r < count; ++r) {
            at[r] = packed + (first + r) * groups;
            std::memcpy(sums[r], bias, sizeof(bias));
        }
        multiply_rows<Format>(count, panel, at, groups, first == 0, sums);
        for (int64_t r = 0; r < count; ++r) {
            float* y = rows.y + (first + r) * linear.columns + first_column;
            // Added last, as a sum of two layers is: a bit that differs here may let the next
            // layer round a number the other way.
            for (int64_t c = 0; c < width; ++c) y[c] = rows.adds ? y[c] + sums[r][c] : sums[r][c];
        }
    }
}

void put16(uint8_t* at, uint16_t value) { std::memcpy(at, &value, sizeof(value)); }

}  // namespace

int64_t slipstream::integer_packed_bytes(int64_t rows, int64_t depth) {
    return rows * groups_of(depth) * int64_t(sizeof(Activations));
}

void slipstream::integer_pack_rows(const float* x, int64_t ldx, void* packed, int64_t first,
                                   int64_t height, int64_t depth) {
    auto* to = static_cast<Activations*>(packed) + first * groups_of(depth);
    for (int64_t r = 0; r < height; ++r)
        for (int64_t k = 0; k < depth; k += kGroup)
            round_group(x + r * ldx + k, std::min(kGroup, depth - k), *to++);
}

int64_t slipstream::integer_panel_bytes(int64_t format, int64_t depth) {
    return groups_of(depth) * (format == kW8A8 ? W8A8::kBytes : W4A8::kBytes);
}

void slipstream::run_integer_panels(const Linear& linear, const Rows& rows, int64_t first,
                                    int64_t last) {
    with_format(linear.format, [&](auto* kind) {
        for (int64_t index = first; index < last; ++index)
            run_panel<std::remove_pointer_t<decltype(kind)>>(linear, rows, index);
    });
}

void slipstream::integer_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                                void* workspace, int64_t rows, int64_t threads) {
    const int64_t count = (linear.columns + kPanel - 1) / kPanel;
    const int64_t team = rows * linear.columns * linear.depth < kMinParallelWork ? 1 : threads;
#pragma omp parallel num_threads(team) if (team > 1)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            integer_pack_rows(x + r * ldx, ldx, workspace, r, 1, linear.depth);
#pragma omp for schedule(static)
        for (int64_t share = 0; share < team; ++share)
            run_integer_panels(linear, {static_cast<const float*>(workspace), y, rows, false},
                               count * share / team, count * (share + 1) / team);
    }
}

void slipstream::integer_unpack_row(int64_t format, const uint8_t* panel, int64_t column,
                                    float* out, int64_t depth) {
    with_format(format, [&](auto* kind) {
        using Format = std::remove_pointer_t<decltype(kind)>;
        for (int64_t k = 0; k < depth; ++k)
            out[k] = Format::number(panel + k / kGroup * Format::kBytes, k % kGroup, column);
    });
}

extern "C" {

// codes [columns, depth], scales [columns, ceil(depth / 32)] fp16.
void pack_w8a8(const int8_t* codes, const uint16_t* scales, uint8_t* panels, int64_t columns,
               int64_t depth) {
    const int64_t groups = groups_of(depth);
    for_each_output(panels, groups * W8A8::kBytes, columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t g = 0; g < groups; ++g)
                            put16(panel + g * W8A8::kBytes + 2 * c, scales[column * groups + g]);
                        for (int64_t k = 0; k < depth; ++k)
                            panel[k / kGroup * W8A8::kBytes + W8A8::place(k % kGroup, c)] =
                                uint8_t(codes[column * depth + k]);
                    });
}

// codes [columns, depth] in 0 .. 15, scales and minima [columns, ceil(depth / 32)] fp16.
void pack_w4a8(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima,
               uint8_t* panels, int64_t columns, int64_t depth) {
    const int64_t groups = groups_of(depth);
    for_each_output(panels, groups * W4A8::kBytes, columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t g = 0; g < groups; ++g) {
                            uint8_t* group = panel + g * W4A8::kBytes;
                            put16(group + 2 * c, scales[column * groups + g]);
                            put16(group + 2 * (kPanel + c), minima[column * groups + g]);
                        }
                        for (int64_t k = 0; k < depth; ++k)
                            panel[k / kGroup * W4A8::kBytes + W4A8::place(k % kGroup, c)] |=
                                (codes[column * depth + k] & 15) << W4A8::shift(k % kGroup);
                    });
}
}
