// y = x W^T + b for weights of 8 or 4 bits and fp32 activations, by dot products of bytes (VNNI).
//
// Making a float of each code takes more instructions than memory leaves time for. Here activations
// become whole numbers of 24 bits times a power of two for each 32 of them: no number moves by more than
// 2^-22 of the largest, about what fp32 sums lose. Such a number is three digits,
//
//   65536 a + 256 b + c     each -128 .. 127
//
// and each digit is multiplied with the codes as activations of 8 bits are (integer_linear.cpp, which
// tells how weights lie). A group's sums are exact, groups are added in fp32 from the first to the
// last: a row's result is bitwise the same alone and in any batch, whatever the threads.

#include "wide.h"

#include <limits>

#include "integer.h"
#include "integer_formats.h"
#include "packed_rows.h"

using namespace slipstream;

namespace {

int64_t byte_format(int64_t format) { return format == kInt8 ? kW8A8 : kW4A8; }

}  // namespace

int64_t slipstream::wide_panel_bytes(int64_t format, int64_t depth) {
    return integer_panel_bytes(byte_format(format), depth);
}

void slipstream::wide_unpack_row(int64_t format, const uint8_t* panel, int64_t column, float* out,
                                 int64_t depth) {
    integer_unpack_row(byte_format(format), panel, column, out, depth);
}

#if defined(__x86_64__) && VECTOR_FLOATS == 16

#define WITH_DOT __attribute__((target("avx512vnni,avx512bw,avx512vl")))

namespace {

constexpr int kDigits = 3;
constexpr int kVectors = kPanel / kLanes;
constexpr int64_t kMostRows = 4;
constexpr int64_t kGroup = kIntegerGroup;

// A group of a row.
struct WideGroup {
    float scale;
    float sum;                // of the numbers
    int32_t totals[kDigits];  // of the digits, the highest first
    int8_t digits[kDigits][kGroup];
};

// Tests look at both ways on processors that have both.
bool is_used = __builtin_cpu_supports("avx512vnni");

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

// The lowest digit of each number, which is taken off.
inline Integers take_digit(Integers& numbers) {
    const Integers digit = (numbers << 24) >> 24;
    numbers = (numbers - digit) >> 8;
    return digit;
}

inline void put_digits(Integers digits, int8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(digits)));
}

// The power of two of which numbers up to `highest` are at most 127.5 * 65536.
inline float unit_of(float highest) {
    const float above = highest * 1.004f;
    uint32_t bits;
    std::memcpy(&bits, &above, sizeof(bits));
    bits &= 0x7f800000;
    float power;
    std::memcpy(&power, &bits, sizeof(power));
    return power * (1.0f / (1 << 22));
}

void cut_group(const float* x, int64_t count, WideGroup& to) {
    float filled[kGroup] = {};
    if (count < kGroup) {
        std::memcpy(filled, x, count * sizeof(float));
        x = filled;
    }
    const Vector first = load(x), second = load(x + kLanes);
    const Vector sizes[] = {first < 0.0f ? -first : first, second < 0.0f ? -second : second};
    const float highest = max(sizes[0] > sizes[1] ? sizes[0] : sizes[1]);
    // No scale for these: the outputs must show it. Numbers so small that the inverse of their unit
    // has no finite value count as zeros.
    const bool is_finite = !_mm512_cmp_ps_mask(__m512(first), __m512(second), _CMP_UNORD_Q) &&
                           highest <= std::numeric_limits<float>::max() / 1.01f;
    if (!is_finite || highest <= 1e-30f) {
        to = WideGroup{};
        to.scale = to.sum = is_finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
        return;
    }
    to.scale = unit_of(highest);
    const float inverse = 1.0f / to.scale;
    Integers a = Integers(_mm512_cvtps_epi32(__m512(first * inverse)));
    Integers b = Integers(_mm512_cvtps_epi32(__m512(second * inverse)));
    to.sum = to.scale * float(_mm512_reduce_add_epi32(__m512i(a + b)));
    for (int d = kDigits - 1; d >= 0; --d) {
        const Integers low = take_digit(a), high = take_digit(b);
        put_digits(low, to.digits[d]);
        put_digits(high, to.digits[d] + kLanes);
        to.totals[d] = _mm512_reduce_add_epi32(__m512i(low + high));
    }
}

WITH_DOT inline __attribute__((always_inline)) __m512i four_digits(const WideGroup& x, int digit,
                                                                    int word) {
    int32_t four;
    std::memcpy(&four, x.digits[digit] + 4 * word, 4);
    return _mm512_set1_epi32(four);
}

// Sums of products, for each digit of each row.
template <int kRows>
using Totals = __m512i[kRows][kDigits][kVectors];

template <int kRows>
WITH_DOT inline __attribute__((always_inline)) void add_word(Totals<kRows>& totals,
                                                             const __m512i* weights,
                                                             const WideGroup* const* rows,
                                                             int word) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int d = 0; d < kDigits; ++d) {
            const __m512i x = four_digits(*rows[r], d, word);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v)
                totals[r][d][v] = _mm512_dpbusd_epi32(totals[r][d][v], weights[v], x);
        }
}

template <class Format, int kRows>
WITH_DOT inline __attribute__((always_inline)) void add_group(Totals<kRows>& totals,
                                                              const uint8_t* group,
                                                              const WideGroup* const* rows) {
    constexpr bool kHalves = std::is_same<Format, W4A8>::value;
    const uint8_t* codes = group + Format::place(0, 0);
    const __m512i low_bits = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(-128);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int d = 0; d < kDigits; ++d)
            // Weights must have no sign: those that have one are moved up by 128.
            totals[r][d][0] = totals[r][d][1] =
                _mm512_set1_epi32(kHalves ? 0 : -128 * rows[r]->totals[d]);
#pragma GCC unroll 8
    for (int word = 0; word < kIntegerWords; word += kHalves ? 2 : 1) {
        __m512i low[kVectors], high[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            const int line = kHalves ? word / 2 : word;
            const __m512i both = _mm512_loadu_si512(codes + (line * kPanel + v * kLanes) * 4);
            low[v] = kHalves ? _mm512_and_si512(both, low_bits) : _mm512_xor_si512(both, sign);
            high[v] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_bits);
        }
        add_word<kRows>(totals, low, rows, word);
        if (kHalves) add_word<kRows>(totals, high, rows, word + 1);
    }
}

// A tile of rows times a panel. `asks`: the panel is read once, and past the second cache.
template <class Format, int kRows>
WITH_DOT void multiply_panel(const uint8_t* panel, const WideGroup* const* first, int64_t groups,
                             bool asks, float (*sums)[kPanel]) {
    const WideGroup* rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r] = first[r];
    for (int64_t g = 0; g < groups; ++g, panel += Format::kBytes) {
        if (asks)
            for (int64_t i = 0; i < Format::kBytes; i += kLineBytes)
                __builtin_prefetch(panel + kAheadBytes + i, 0, 0);
        Totals<kRows> totals;
        add_group<Format, kRows>(totals, panel, rows);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
                const __m512i* digit = &totals[r][0][v];
                const __m512 low = _mm512_cvtepi32_ps(_mm512_add_epi32(
                    _mm512_slli_epi32(digit[kVectors], 8), digit[2 * kVectors]));
                const Vector number = Vector(_mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(digit[0]), _mm512_set1_ps(65536.0f), low));
                const uint8_t* scales = panel + 2 * v * kLanes;
                float* at = sums[r] + v * kLanes;
                Vector sum = load(at) + number * halves_to_floats(scales) * rows[r]->scale;
                if (std::is_same<Format, W4A8>::value)
                    sum += halves_to_floats(scales + 2 * kPanel) * rows[r]->sum;
                store(at, sum);
            }
        for (int r = 0; r < kRows; ++r) ++rows[r];
    }
}

template <class Format>
void multiply_rows(int64_t count, const uint8_t* panel, const WideGroup* const* rows,
                   int64_t groups, bool asks, float (*sums)[kPanel]) {
    switch (count) {
        case 1: return multiply_panel<Format, 1>(panel, rows, groups, asks, sums);
        case 2: return multiply_panel<Format, 2>(panel, rows, groups, asks, sums);
        case 3: return multiply_panel<Format, 3>(panel, rows, groups, asks, sums);
        default: return multiply_panel<Format, kMostRows>(panel, rows, groups, asks, sums);
    }
}

// One panel of a layer for all rows.
void run_panel(const Linear& linear, const Rows& rows, int64_t index) {
    const int64_t groups = groups_of(linear.depth), first_column = index * kPanel;
    const int64_t width = std::min<int64_t>(kPanel, linear.columns - first_column);
    const uint8_t* panel = linear.panels + index * wide_panel_bytes(linear.format, linear.depth);
    const auto multiply = linear.format == kInt8 ? multiply_rows<W8A8> : multiply_rows<W4A8>;
    const auto* packed = reinterpret_cast<const WideGroup*>(rows.packed);
    float bias[kPanel] = {};
    if (linear.bias) std::memcpy(bias, linear.bias + first_column, width * sizeof(float));
    for (int64_t first = 0; first < rows.count; first += kMostRows) {
        const int64_t count = std::min(kMostRows, rows.count - first);
        const WideGroup* at[kMostRows];
        alignas(64) float sums[kMostRows][kPanel];
        for (int64_t r = 0; r < count; ++r) {
            at[r] = packed + (first + r) * groups;
            std::memcpy(sums[r], bias, sizeof(bias));
        }
        multiply(count, panel, at, groups, rows.count <= kMostRows, sums);
        for (int64_t r = 0; r < count; ++r) {
            float* y = rows.y + (first + r) * linear.columns + first_column;
            for (int64_t c = 0; c < width; ++c) y[c] = rows.adds ? y[c] + sums[r][c] : sums[r][c];
        }
    }
}

}  // namespace

bool slipstream::is_wide(int64_t format) {
    return is_used && (format == kInt8 || format == kInt4);
}

int64_t slipstream::wide_packed_bytes(int64_t rows, int64_t depth) {
    return rows * groups_of(depth) * int64_t(sizeof(WideGroup));
}

void slipstream::wide_pack_rows(const float* x, int64_t ldx, void* packed, int64_t first,
                                int64_t height, int64_t depth) {
    auto* to = static_cast<WideGroup*>(packed) + first * groups_of(depth);
    for (int64_t r = 0; r < height; ++r)
        for (int64_t k = 0; k < depth; k += kGroup)
            cut_group(x + r * ldx + k, std::min(kGroup, depth - k), *to++);
}

void slipstream::run_wide_panels(const Linear& linear, const Rows& rows, int64_t first,
                                 int64_t last) {
    for (int64_t index = first; index < last; ++index) run_panel(linear, rows, index);
}

void slipstream::wide_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                             void* workspace, int64_t rows, int64_t threads) {
    run_packed_rows(wide_pack_rows, run_wide_panels, x, ldx, linear, y, workspace, rows, threads);
}

// Use them (1), do not (0), or leave it as it is (-1); return what was used.
extern "C" int64_t use_wide_products(int64_t wanted) {
    const bool used = is_used;
    if (wanted >= 0) is_used = wanted && __builtin_cpu_supports("avx512vnni");
    return used;
}

#else

bool slipstream::is_wide(int64_t) { return false; }
int64_t slipstream::wide_packed_bytes(int64_t, int64_t) { return 0; }
void slipstream::wide_pack_rows(const float*, int64_t, void*, int64_t, int64_t, int64_t) {}
void slipstream::run_wide_panels(const Linear&, const Rows&, int64_t, int64_t) {}
void slipstream::wide_linear(const float*, int64_t, const Linear&, float*, void*, int64_t,
                             int64_t) {}
extern "C" int64_t use_wide_products(int64_t) { return 0; }

#endif
