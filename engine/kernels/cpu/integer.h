// Linear layers with activations of 8 bits, for callers that have a team of threads of their own.
#pragma once

#include "linear.h"

namespace slipstream {

// Formats beside those of quantized_linear.cpp; see integer_linear.cpp.
constexpr int64_t kW8A8 = 32;
constexpr int64_t kW4A8 = 33;

inline bool is_integer(int64_t format) { return format == kW8A8 || format == kW4A8; }

// Bytes of so many packed rows.
SLIPSTREAM_LOCAL int64_t integer_packed_bytes(int64_t rows, int64_t depth);

// Round rows to 8 bits: `height` rows from x on, of which the first is row `first` of `packed`.
SLIPSTREAM_LOCAL void integer_pack_rows(const float* x, int64_t ldx, void* packed, int64_t first,
                                        int64_t height, int64_t depth);

SLIPSTREAM_LOCAL int64_t integer_panel_bytes(int64_t format, int64_t depth);

// y = x W^T + b with a team of its own; `workspace` holds integer_packed_bytes.
SLIPSTREAM_LOCAL void integer_linear(const float* x, int64_t ldx, const Linear& linear, float* y,
                                     void* workspace, int64_t rows, int64_t threads);

// The numbers that one output's weights mean: out [depth].
SLIPSTREAM_LOCAL void integer_unpack_row(int64_t format, const uint8_t* panel, int64_t column,
                                         float* out, int64_t depth);

// Panels [first, last) of a layer: one thread's share.
SLIPSTREAM_LOCAL void run_integer_panels(const Linear& linear, const Rows& rows, int64_t first,
                                         int64_t last);

}  // namespace slipstream
