// A layer whose rows are packed one by one (integer and wide ones), with a team of its own.
#pragma once

#include "tile.h"

namespace slipstream {
namespace {

typedef void (*PackRows)(const float*, int64_t, void*, int64_t, int64_t, int64_t);
typedef void (*RunPanels)(const Linear&, const Rows&, int64_t, int64_t);

// y = x W^T + b; `workspace` holds the packed rows.
inline void run_packed_rows(PackRows pack, RunPanels run, const float* x, int64_t ldx,
                            const Linear& linear, float* y, void* workspace, int64_t rows,
                            int64_t threads) {
    const int64_t count = (linear.columns + kPanel - 1) / kPanel;
    const int64_t team = rows * linear.columns * linear.depth < kMinParallelWork ? 1 : threads;
#pragma omp parallel num_threads(team) if (team > 1)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r) pack(x + r * ldx, ldx, workspace, r, 1, linear.depth);
#pragma omp for schedule(static)
        for (int64_t share = 0; share < team; ++share)
            run(linear, {static_cast<const float*>(workspace), y, rows, false},
                count * share / team, count * (share + 1) / team);
    }
}

}  // namespace
}  // namespace slipstream
