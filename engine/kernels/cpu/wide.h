// Linear layers of 8 and 4 bits with fp32 activations, by a processor's dot products of bytes.
#pragma once

#include "linear.h"

namespace slipstream {

// Numbers of quantized_linear.cpp.
constexpr int64_t kInt8 = 2;
constexpr int64_t kInt4 = 3;

// Whether a layer of this format is computed here; its panels are those of kW8A8 or kW4A8 then.
SLIPSTREAM_LOCAL bool is_wide(int64_t format);

SLIPSTREAM_LOCAL int64_t wide_panel_bytes(int64_t format, int64_t depth);

// Bytes of so many packed rows.
SLIPSTREAM_LOCAL int64_t wide_packed_bytes(int64_t rows, int64_t depth);

// Cut rows into digits: `height` rows from x on, of which the first is row `first` of `packed`.
SLIPSTREAM_LOCAL void wide_pack_rows(const float* x, int64_t ldx, void* packed, int64_t first,
                                     int64_t height, int64_t depth);

// y = x W^T + b with a team of its own; `workspace` holds wide_packed_bytes.
SLIPSTREAM_LOCAL void wide_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                                  void* workspace, int64_t rows, int64_t threads);

// The numbers that one output's weights mean: out [depth].
SLIPSTREAM_LOCAL void wide_unpack_row(int64_t format, const uint8_t* panel, int64_t column,
                                      float* out, int64_t depth);

// Panels [first, last) of a layer: one thread's share.
SLIPSTREAM_LOCAL void run_wide_panels(const Linear& linear, const Rows& rows, int64_t first,
                                      int64_t last);

}  // namespace slipstream
