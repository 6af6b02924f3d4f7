// Linear layers on the tile unit of newer x86 processors (AMX), for callers with their own team.
#pragma once

#include "linear.h"

namespace slipstream {

// Formats beside those of quantized_linear.cpp; see amx_linear.cpp.
constexpr int64_t kAmxBf16 = 16;
constexpr int64_t kAmxBf16x3 = 17;

inline bool is_amx(int64_t format) { return format == kAmxBf16 || format == kAmxBf16x3; }

// Rows of one tile, of so many rows in all.
inline int64_t amx_tile_rows(int64_t rows) { return rows < 16 ? rows : 16; }

// Bytes of so many packed rows.
SLIPSTREAM_LOCAL int64_t amx_packed_bytes(int64_t rows, int64_t depth);

// Pack rows [first, first + height) of a step's `rows`, one tile; x is the first of them.
SLIPSTREAM_LOCAL void amx_pack_tile(const float* x, int64_t ldx, void* packed, int64_t first,
                                    int64_t height, int64_t rows, int64_t depth);

SLIPSTREAM_LOCAL int64_t amx_panel_bytes(int64_t format, int64_t depth);

// y = x W^T + b with a team of its own; `workspace` holds amx_packed_bytes.
SLIPSTREAM_LOCAL void amx_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                                 void* workspace, int64_t rows, int64_t threads);

// The numbers that one output's weights mean: out [depth].
SLIPSTREAM_LOCAL void amx_unpack_row(int64_t format, const uint8_t* panel, int64_t column,
                                     float* out, int64_t depth);

// Panels [first, last) of a layer: one thread's share.
SLIPSTREAM_LOCAL void run_amx_panels(const Linear& linear, const Rows& rows, int64_t first,
                                     int64_t last);

}  // namespace slipstream
