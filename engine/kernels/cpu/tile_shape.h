// How large the tiles are that packed layers are multiplied in, and the panels and slices they are of.
#pragma once

#include "vector.h"

namespace slipstream {
namespace {

constexpr int kPanel = 32;

// Columns and rows of a register tile. Accumulators plus one row of weights must fit the register
// file: 12 x 2 of 32 for AVX-512, 6 x 2 of 16 for AVX2, 6 x 4 of 32 for NEON's four lanes.
constexpr int kTileVectors = kLanes >= 8 ? 2 : 4;
constexpr int kTileColumns = kTileVectors * kLanes;
constexpr int kTileRows = kLanes == 16 ? 12 : 6;

// With many rows a slice of a panel is used once per tile of rows: 192 x 32 floats are 24 KiB and
// stay in a first-level cache of 32. A multiple of every format's group.
constexpr int64_t kSlice = 192;

}  // namespace
}  // namespace slipstream
