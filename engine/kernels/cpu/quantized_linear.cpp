// y = x W^T + b for weights stored in 16, 8 or 4 bits; activations and sums are fp32.
//
// A stored weight means one fp32 number: widened bf16, scale * code, or scale * code + minimum, each
// with one rounding at most. The numbers go through the same chain of multiply-adds as fp32 weights
// (tile.h), so a result is bitwise that of the fp32 layer on the unpacked weights.
//
//   bf16        [K][32] bf16
//   int8 rows   [32] fp32 scales, then [K][32] bytes, code + 128
//   int8        per 32 of K: [32] fp16 scales, then [32][32] bytes, code + 128
//   int4        per 32 of K: [32] fp16 scales, [32] fp16 minima, then [4][32] words of 8 codes, the
//               first in the lowest bits
//
// Where the processor has dot products of bytes, int8 and int4 are computed by wide_linear.cpp, with
// panels of their own.
//
// Incomplete groups are filled with zeros. Scales of fp16 are those of GGUF's blocks: Q8_0, Q4_0
// (minimum -8 * scale) and Q4_1 are kept without loss.

#include "amx.h"
#include "half.h"
#include "integer.h"
#include "linear.h"
#include "tile.h"
#include "wide.h"

using namespace slipstream;

namespace {

constexpr int64_t kGroupSize = 32;
constexpr int kCodesPerWord = 8;

typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint16_t UnalignedHalves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint32_t UnalignedWords
    __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Words widen(const uint8_t* from) {
#if VECTOR_FLOATS == 8
    // GCC 12 makes five instructions of the other way.
    return Words(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return __builtin_convertvector(
        Halves(*reinterpret_cast<const UnalignedHalves*>(from)), Words);
#endif
}

inline Vector as_floats(Words bits) {
    Vector value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// Bytes as the numbers kByteBase + byte.
#if VECTOR_FLOATS == 16
// A byte becomes bits 8 to 15 of a number between 2^15 and 2^16, whose last bit is 2^-8: one
// permutation in place of a widening and a conversion.
constexpr float kByteBase = 32768.0f;
inline Vector byte_numbers(const uint8_t* from) {
    const __m512i places = _mm512_set_epi32(0x00000f00, 0x00000e00, 0x00000d00, 0x00000c00,
                                            0x00000b00, 0x00000a00, 0x00000900, 0x00000800,
                                            0x00000700, 0x00000600, 0x00000500, 0x00000400,
                                            0x00000300, 0x00000200, 0x00000100, 0x00000000);
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m512i base = _mm512_set1_epi32(0x47000000);
    return Vector(_mm512_castsi512_ps(
        _mm512_mask_shuffle_epi8(base, 0x2222222222222222, bytes, places)));
}
#else
constexpr float kByteBase = 0.0f;
inline Vector byte_numbers(const uint8_t* from) {
#if VECTOR_FLOATS == 8
    const Integers wide =
        Integers(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    Integers wide;
    for (int i = 0; i < kLanes; ++i) wide[i] = from[i];
#endif
    return __builtin_convertvector(wide, Vector);
}
#endif
// What stands for code 0.
constexpr float kByteZero = kByteBase + 128.0f;
constexpr uint8_t kCodeZero = 128;

struct Bfloat16 {
    static constexpr int64_t kGroup = 0;
    static constexpr int kStep = 1;
    struct Codes {
        Words bits[kTileVectors];
    };
    const uint8_t* panel;

    Bfloat16(const uint8_t* data, int64_t, int column) : panel(data + column * 2) {}
    static constexpr int64_t panel_bytes(int64_t depth) { return depth * kPanel * 2; }
    void enter(int64_t) {}
    Codes load(int64_t k) const {
        const uint8_t* at = panel + k * kPanel * 2;
        Codes codes;
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) codes.bits[v] = widen(at + v * kLanes * 2) << 16;
        return codes;
    }
    Vector weight(const Codes& codes, int, int v) const { return as_floats(codes.bits[v]); }
};

// [rows][32] bytes are read two rows to a line.
struct EightBits {
    static constexpr int kStep = 2;
    struct Codes {
        Vector numbers[2][kTileVectors];
    };
    const uint8_t* codes;
    Vector scale[kTileVectors];

    Codes load_at(const uint8_t* at) const {
        Codes loaded;
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j)
#pragma GCC unroll 4
            for (int v = 0; v < kTileVectors; ++v)
                loaded.numbers[j][v] = byte_numbers(at + j * kPanel + v * kLanes);
        return loaded;
    }
};

struct Int8Rows : EightBits {
    static constexpr int64_t kGroup = 0;

    Int8Rows(const uint8_t* data, int64_t, int column) {
        codes = data + kPanel * 4 + column;
        const float* scales = reinterpret_cast<const float*>(data) + column;
        for (int v = 0; v < kTileVectors; ++v) scale[v] = slipstream::load(scales + v * kLanes);
    }
    static constexpr int64_t panel_bytes(int64_t depth) {
        return kPanel * 4 + (depth + 1) / 2 * 2 * kPanel;
    }
    void enter(int64_t) {}
    Codes load(int64_t k) const { return load_at(codes + k * kPanel); }
    Vector weight(const Codes& loaded, int j, int v) const {
        return (loaded.numbers[j][v] - kByteZero) * scale[v];
    }
};

struct Int8 : EightBits {
    static constexpr int64_t kGroup = kGroupSize;
    static constexpr int64_t kGroupBytes = kPanel * (2 + kGroupSize);
    const uint8_t* panel;
    int column;
    // What is added to a byte's number times the scale: both have few enough bits to be exact.
    Vector shift[kTileVectors];

    Int8(const uint8_t* data, int64_t, int first) : panel(data), column(first) {}
    static constexpr int64_t panel_bytes(int64_t depth) {
        return (depth + kGroupSize - 1) / kGroupSize * kGroupBytes;
    }
    void enter(int64_t k) {
        const uint8_t* group = panel + k / kGroupSize * kGroupBytes;
        for (int v = 0; v < kTileVectors; ++v) {
            scale[v] = halves_to_floats(group + (column + v * kLanes) * 2);
            shift[v] = scale[v] * -kByteZero;
        }
        codes = group + kPanel * 2 + column;
    }
    Codes load(int64_t k) const { return load_at(codes + k % kGroupSize * kPanel); }
    Vector weight(const Codes& loaded, int j, int v) const {
        return loaded.numbers[j][v] * scale[v] + shift[v];
    }
};

// The numbers of the low four bits of each word.
inline Vector low_codes(Words words) {
#if VECTOR_FLOATS == 16
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // The permutation looks at four bits alone, and saves a mask and a conversion.
    return Vector(_mm512_permutexvar_ps(__m512i(words), numbers));
#else
    return __builtin_convertvector(Integers(words & 15), Vector);
#endif
}

struct Int4 {
    static constexpr int64_t kGroup = kGroupSize;
    static constexpr int kStep = kCodesPerWord;
    static constexpr int64_t kGroupBytes = kPanel * (2 + 2 + kGroupSize / 2);
    struct Codes {
        Words words[kTileVectors];
    };
    const uint8_t* panel;
    const uint8_t* codes;
    int column;
    Vector scale[kTileVectors], minimum[kTileVectors];

    Int4(const uint8_t* data, int64_t, int first) : panel(data), column(first) {}
    static constexpr int64_t panel_bytes(int64_t depth) {
        return (depth + kGroupSize - 1) / kGroupSize * kGroupBytes;
    }
    void enter(int64_t k) {
        const uint8_t* group = panel + k / kGroupSize * kGroupBytes;
        for (int v = 0; v < kTileVectors; ++v) {
            scale[v] = halves_to_floats(group + (column + v * kLanes) * 2);
            minimum[v] = halves_to_floats(group + (kPanel + column + v * kLanes) * 2);
        }
        codes = group + kPanel * 4 + column * 4;
    }
    Codes load(int64_t k) const {
        const uint8_t* at = codes + k % kGroupSize / kCodesPerWord * kPanel * 4;
        Codes loaded;
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v)
            loaded.words[v] = *reinterpret_cast<const UnalignedWords*>(at + v * kLanes * 4);
        return loaded;
    }
    Vector weight(const Codes& loaded, int j, int v) const {
        return low_codes(loaded.words[v] >> (4 * j)) * scale[v] + minimum[v];
    }
};

// The formats by the numbers that linear.py gives them.
template <class Action>
void with_format(int64_t format, Action action) {
    switch (format) {
        case 0: return action(static_cast<Bfloat16*>(nullptr));
        case 1: return action(static_cast<Int8Rows*>(nullptr));
        case 2: return action(static_cast<Int8*>(nullptr));
        default: return action(static_cast<Int4*>(nullptr));
    }
}

void put16(uint8_t* at, uint16_t value) { std::memcpy(at, &value, sizeof(value)); }

}  // namespace

void slipstream::run_quantized_panels(const Linear& linear, const Rows& rows, int64_t first,
                                      int64_t last) {
    const Problem problem{rows.packed, linear.panels,  linear.bias,  rows.y,
                          rows.count,  linear.columns, linear.depth, rows.adds};
    with_format(linear.format, [&](auto* kind) {
        run_panels<std::remove_pointer_t<decltype(kind)>>(problem, first, last);
    });
}

extern "C" {

// Of integer_linear.cpp.
void pack_w8a8(const int8_t* codes, const uint16_t* scales, uint8_t* panels, int64_t columns,
               int64_t depth);
void pack_w4a8(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima,
               uint8_t* panels, int64_t columns, int64_t depth);

int64_t quantized_panel_bytes(int64_t format, int64_t depth) {
    if (is_amx(format)) return amx_panel_bytes(format, depth);
    if (is_integer(format)) return integer_panel_bytes(format, depth);
    if (is_wide(format)) return wide_panel_bytes(format, depth);
    int64_t bytes = 0;
    with_format(format, [&](auto* kind) {
        bytes = std::remove_pointer_t<decltype(kind)>::panel_bytes(depth);
    });
    return bytes;
}

// Each packer fills ceil(columns / 32) panels of quantized_panel_bytes.

// weight [columns, depth] bf16.
void pack_bf16(const uint16_t* weight, uint8_t* panels, int64_t columns, int64_t depth) {
    for_each_output(panels, Bfloat16::panel_bytes(depth), columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t k = 0; k < depth; ++k)
                            put16(panel + (k * kPanel + c) * 2, weight[column * depth + k]);
                    });
}

// codes [columns, depth], scales [columns] fp32.
void pack_int8_rows(const int8_t* codes, const float* scales, uint8_t* panels, int64_t columns,
                    int64_t depth) {
    for_each_output(panels, Int8Rows::panel_bytes(depth), columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        std::memcpy(panel + c * 4, scales + column, 4);
                        for (int64_t k = 0; k < depth; ++k)
                            panel[kPanel * 4 + k * kPanel + c] =
                                codes[column * depth + k] ^ kCodeZero;
                    });
}

// codes [columns, depth], scales [columns, ceil(depth / 32)] fp16.
void pack_int8(const int8_t* codes, const uint16_t* scales, uint8_t* panels, int64_t columns,
               int64_t depth) {
    if (is_wide(kInt8)) return pack_w8a8(codes, scales, panels, columns, depth);
    const int64_t groups = (depth + kGroupSize - 1) / kGroupSize;
    for_each_output(panels, Int8::panel_bytes(depth), columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t g = 0; g < groups; ++g)
                            put16(panel + g * Int8::kGroupBytes + c * 2,
                                  scales[column * groups + g]);
                        for (int64_t k = 0; k < depth; ++k)
                            panel[k / kGroupSize * Int8::kGroupBytes + kPanel * 2 +
                                  k % kGroupSize * kPanel + c] =
                                codes[column * depth + k] ^ kCodeZero;
                    });
}

// codes [columns, depth] in 0 .. 15, scales and minima [columns, ceil(depth / 32)] fp16.
void pack_int4(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima,
               uint8_t* panels, int64_t columns, int64_t depth) {
    if (is_wide(kInt4)) return pack_w4a8(codes, scales, minima, panels, columns, depth);
    const int64_t groups = (depth + kGroupSize - 1) / kGroupSize;
    for_each_output(panels, Int4::panel_bytes(depth), columns,
                    [&](uint8_t* panel, int64_t c, int64_t column) {
                        for (int64_t g = 0; g < groups; ++g) {
                            uint8_t* group = panel + g * Int4::kGroupBytes;
                            put16(group + c * 2, scales[column * groups + g]);
                            put16(group + (kPanel + c) * 2, minima[column * groups + g]);
                            uint32_t words[kGroupSize / kCodesPerWord] = {};
                            for (int64_t k = 0; k < std::min(kGroupSize, depth - g * kGroupSize);
                                 ++k)
                                words[k / kCodesPerWord] |=
                                    uint32_t(codes[column * depth + g * kGroupSize + k] & 15)
                                    << (k % kCodesPerWord * 4);
                            for (int64_t word = 0; word < kGroupSize / kCodesPerWord; ++word)
                                std::memcpy(group + kPanel * 4 + (word * kPanel + c) * 4,
                                            words + word, 4);
                        }
                    });
}

// Floats that the workspace of `quantized_linear` must hold.
int64_t quantized_workspace(int64_t format, int64_t rows, int64_t depth) {
    if (is_amx(format)) return (amx_packed_bytes(rows, depth) + 3) / 4;
    if (is_integer(format)) return (integer_packed_bytes(rows, depth) + 3) / 4;
    if (is_wide(format)) return (wide_packed_bytes(rows, depth) + 3) / 4;
    return rows * depth;
}

// sizes: format, rows, columns, depth, threads.
void quantized_linear(const float* x, int64_t ldx, const uint8_t* panels, const float* bias,
                      float* y, float* workspace, const int64_t* sizes) {
    const Linear linear{sizes[0], panels, bias, sizes[2], sizes[3]};
    if (is_amx(sizes[0])) return amx_linear(x, ldx, linear, y, workspace, sizes[1], sizes[4]);
    if (is_integer(sizes[0]))
        return integer_linear(x, ldx, linear, y, workspace, sizes[1], sizes[4]);
    if (is_wide(sizes[0])) return wide_linear(x, ldx, linear, y, workspace, sizes[1], sizes[4]);
    const Problem problem{x, panels, bias, y, sizes[1], sizes[2], sizes[3]};
    with_format(sizes[0], [&](auto* kind) {
        run_linear<std::remove_pointer_t<decltype(kind)>>(x, ldx, problem, workspace, sizes[4]);
    });
}

// The weights of chosen outputs as floats: out [count, depth].
void unpack_rows(int64_t format, const uint8_t* panels, int64_t depth, const int64_t* rows,
                 float* out, int64_t count, int64_t threads) {
    if (is_amx(format) || is_integer(format) || is_wide(format)) {
        const auto unpack = is_amx(format)    ? amx_unpack_row
                            : is_wide(format) ? wide_unpack_row
                                              : integer_unpack_row;
        const int64_t bytes = quantized_panel_bytes(format, depth);
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 8)
        for (int64_t i = 0; i < count; ++i)
            unpack(format, panels + rows[i] / kPanel * bytes, rows[i] % kPanel, out + i * depth,
                   depth);
        return;
    }
    with_format(format, [&](auto* kind) {
        using Format = std::remove_pointer_t<decltype(kind)>;
        const int64_t bytes = Format::panel_bytes(depth);
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 8)
        for (int64_t i = 0; i < count; ++i) {
            const int64_t lane = rows[i] % kPanel;
            alignas(64) float unpacked[kSlice * kPanel];
            for (int64_t begin = 0; begin < depth; begin += kSlice) {
                const int64_t end = std::min(depth, begin + kSlice);
                unpack_slice<Format>(panels + rows[i] / kPanel * bytes, depth, begin, end,
                                     unpacked);
                for (int64_t k = begin; k < end; ++k)
                    out[i * depth + k] = unpacked[(k - begin) * kPanel + lane];
            }
        }
    });
}
}
