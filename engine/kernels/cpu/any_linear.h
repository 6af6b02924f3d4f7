// Linear layers of any format, for teams that pack rows and multiply in steps of their own.
#pragma once

#include "amx.h"
#include "integer.h"
#include "linear.h"
#include "tile.h"
#include "wide.h"

namespace slipstream {
namespace {

constexpr int64_t kAmxTileRows = 16;
constexpr int64_t kMaxTileRows = std::max<int64_t>(kTileRows, kAmxTileRows);

// Rows of one of a layer's tiles, of so many rows in all.
inline int64_t tile_rows(const Linear& to, int64_t rows) {
    return is_amx(to.format) ? amx_tile_rows(rows) : tile_height(rows);
}

// Floats that packed rows take, whatever the format.
inline int64_t packed_floats(int64_t rows, int64_t depth) {
    const int64_t bytes = std::max({amx_packed_bytes(rows, depth), integer_packed_bytes(rows, depth),
                                    wide_packed_bytes(rows, depth)});
    return std::max(rows * depth, (bytes + 3) / 4);
}

// Pack rows [first, first + height) of `rows`, one tile; x is the first of them.
inline void pack_tile(const Linear& to, const float* x, float* packed, int64_t first,
                      int64_t height, int64_t rows) {
    if (is_amx(to.format))
        amx_pack_tile(x, to.depth, packed, first, height, rows, to.depth);
    else if (is_integer(to.format))
        integer_pack_rows(x, to.depth, packed, first, height, to.depth);
    else if (is_wide(to.format))
        wide_pack_rows(x, to.depth, packed, first, height, to.depth);
    else
        pack_rows(x, to.depth, packed, first, height, rows, to.depth);
}

// Panels [first, last) of a layer.
inline void run_any_panels(const Linear& linear, const Rows& rows, int64_t first, int64_t last) {
    if (is_amx(linear.format))
        run_amx_panels(linear, rows, first, last);
    else if (is_integer(linear.format))
        run_integer_panels(linear, rows, first, last);
    else if (is_wide(linear.format))
        run_wide_panels(linear, rows, first, last);
    else if (linear.format == kFloat32)
        run_float_panels(linear, rows, first, last);
    else
        run_quantized_panels(linear, rows, first, last);
}

// Whether one row is read as it stands.
inline bool takes_floats(const Linear& to) {
    return !is_amx(to.format) && !is_integer(to.format) && !is_wide(to.format);
}

inline int64_t panels_of(const Linear& linear) { return (linear.columns + kPanel - 1) / kPanel; }

}  // namespace
}  // namespace slipstream
