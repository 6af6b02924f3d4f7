// Between two meetings a team: packs rows for the router; computes its logits; lets each row choose;
// groups rows by expert (one thread); packs each group; multiplies them into gates and what these let
// pass; activates and packs again; multiplies; lets each row add up.

#include "mixture.h"

#include <algorithm>
#include <cmath>

#include "any_linear.h"
#include "rows.h"

using namespace slipstream;

namespace {

// Panels of one expert that a thread takes at a time; few rows are multiplied with two at once.
constexpr int64_t kPanelsPerUnit = 4;

int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }

// Floats from one packed row to the next.
int64_t packed_stride(int64_t depth) { return aligned(packed_floats(1, depth)); }

// Rows that `count` of them take when they are packed: the last tile may be filled up.
int64_t filled(int64_t count) {
    return count < kAmxTileRows ? count : (count + kAmxTileRows - 1) / kAmxTileRows * kAmxTileRows;
}

// y += weight * x. Not inlined: the same instructions wherever it is called.
__attribute__((noinline)) void add_weighted(float* y, const float* x, float weight,
                                            int64_t width) {
    for (int64_t i = 0; i < width; ++i) y[i] += weight * x[i];
}

}  // namespace

void MixtureSizes::include(const Mixture& m) {
    hidden = std::max(hidden, m.router.depth);
    for (int64_t i = 0; i < m.experts + m.shares; ++i) width = std::max(width, m.down[i].depth);
    results = std::max(results, m.results());
    experts = std::max(experts, m.experts + m.shares);
    logits = std::max(logits, m.router.columns);
}

int64_t slipstream::lay_out(const MixtureSizes& s, float* base, MixtureBuffers& b) {
    const int64_t results = s.rows * s.results;
    // No more experts have tiles to fill up than have a whole tile of rows.
    const int64_t packed = results + kAmxTileRows * std::min(s.experts, results / kAmxTileRows);
    float* at = base;
    auto take = [&](int64_t count) {
        float* from = at;
        at += aligned(count);
        return from;
    };
    b.packed = take(std::max(packed * packed_stride(std::max(s.hidden, s.width)),
                             packed_floats(s.rows, s.hidden)));
    b.logits = take(s.rows * s.logits);
    b.gate_up = take(results * 2 * s.width);
    b.activated = take(results * s.width);
    b.out = take(results * s.hidden);
    b.gathered = take(s.threads * kMaxTileRows * s.hidden);
    return at - base;
}

MixtureRun::MixtureRun(const MixtureSizes& sizes, float* workspace)
    : sizes(sizes),
      experts(sizes.rows * sizes.results),
      weights(experts.size()),
      result_of(experts.size()),
      row_of(experts.size()) {
    if (sizes.experts) lay_out(sizes, workspace, b);
}

void MixtureRun::mix(const Mixture& m, const float* x, float* y, const Member& me) {
    route(m, x, me);
    if (me.index == 0) group_rows(m);
    me.barrier.wait();
    pack_rows_of_experts(m, x, me);
    multiply(m.gate_up, b.gate_up, 2 * sizes.width, next_gate_up, me);
    pack_activated(m, me);
    multiply(m.down, b.out, sizes.hidden, next_down, me);
    add_up(m, y, me);
}

void MixtureRun::route(const Mixture& m, const float* x, const Member& me) {
    const int64_t rows = sizes.rows, full = tile_rows(m.router, rows);
    const int64_t count = (rows + full - 1) / full, panels = panels_of(m.router);
    for (int64_t t = me.begin(count); t < me.end(count); ++t)
        pack_tile(m.router, x + t * full * sizes.hidden, b.packed, t * full,
                  std::min(full, rows - t * full), rows);
    me.barrier.wait();
    run_any_panels(m.router, {b.packed, b.logits, rows, false}, me.begin(panels), me.end(panels));
    me.barrier.wait();
    for (int64_t row = me.begin(rows); row < me.end(rows); ++row) choose(m, row);
    me.barrier.wait();
}

// The most likely experts of a row, of equally likely ones the first, and what each counts.
void MixtureRun::choose(const Mixture& m, int64_t row) {
    const float* logits = b.logits + row * m.router.columns;
    int64_t* chosen = experts.data() + row * m.results();
    float* weight = weights.data() + row * m.results();
    for (int64_t k = 0; k < m.chosen; ++k) {
        int64_t best = -1;
        for (int64_t e = 0; e < m.experts; ++e) {
            const bool is_free = std::find(chosen, chosen + k, e) == chosen + k;
            if (is_free && (best < 0 || logits[e] > logits[best])) best = e;
        }
        chosen[k] = best;
    }
    const float highest = logits[chosen[0]];
    float total = 0.0f;
    for (int64_t k = 0; k < m.chosen; ++k) weight[k] = std::exp(logits[chosen[k]] - highest);
    if (m.normalises)
        for (int64_t k = 0; k < m.chosen; ++k) total += weight[k];
    else
        for (int64_t e = 0; e < m.experts; ++e) total += std::exp(logits[e] - highest);
    for (int64_t k = 0; k < m.chosen; ++k) weight[k] /= total;
    if (!m.shares) return;
    chosen[m.chosen] = m.experts;
    const bool has_gate = m.router.columns > m.experts;
    weight[m.chosen] = has_gate ? 1.0f / (1.0f + std::exp(-logits[m.experts])) : 1.0f;
}

// Number the results by expert, and cut each expert's rows into tiles.
void MixtureRun::group_rows(const Mixture& m) {
    const int64_t results = sizes.rows * m.results();
    std::vector<int64_t> next(m.experts + m.shares, 0);
    for (int64_t i = 0; i < results; ++i) ++next[experts[i]];
    groups.clear();
    tiles.clear();
    int64_t first = 0, packed = 0;
    for (int64_t e = 0; e < int64_t(next.size()); ++e) {
        const int64_t count = next[e], full = tile_rows(m.gate_up[e], count);
        next[e] = first;
        if (count == 0) continue;
        for (int64_t row = 0; row < count; row += full)
            tiles.push_back({int64_t(groups.size()), row, std::min(full, count - row)});
        groups.push_back({e, first, count, packed});
        first += count;
        packed += filled(count);
    }
    for (int64_t i = 0; i < results; ++i) {
        result_of[i] = next[experts[i]]++;
        row_of[result_of[i]] = i / m.results();
    }
    next_gate_up.store(0, std::memory_order_relaxed);
    next_down.store(0, std::memory_order_relaxed);
}

float* MixtureRun::packed_rows(const Group& group, int64_t depth) const {
    return b.packed + group.packed * packed_stride(depth);
}

void MixtureRun::pack_rows_of_experts(const Mixture& m, const float* x, const Member& me) {
    const int64_t count = int64_t(tiles.size()), hidden = sizes.hidden;
    float* gathered = b.gathered + me.index * kMaxTileRows * hidden;
    for (int64_t t = me.begin(count); t < me.end(count); ++t) {
        const Tile& tile = tiles[t];
        const Group& group = groups[tile.group];
        for (int64_t r = 0; r < tile.height; ++r)
            std::memcpy(gathered + r * hidden,
                        x + row_of[group.first + tile.first + r] * hidden, hidden * sizeof(float));
        pack_tile(m.gate_up[group.expert], gathered, packed_rows(group, hidden), tile.first,
                  tile.height, group.count);
    }
    me.barrier.wait();
}

void MixtureRun::pack_activated(const Mixture& m, const Member& me) {
    const int64_t count = int64_t(tiles.size());
    for (int64_t t = me.begin(count); t < me.end(count); ++t) {
        const Tile& tile = tiles[t];
        const Group& group = groups[tile.group];
        const Linear& down = m.down[group.expert];
        const int64_t width = down.depth;
        const float* gates = b.gate_up + group.first * 2 * sizes.width + tile.first * 2 * width;
        float* rows = b.activated + group.first * sizes.width + tile.first * width;
        for (int64_t r = 0; r < tile.height; ++r) {
            const float* gate = gates + r * 2 * width;
            gate_row(m.activation, gate, gate + width, rows + r * width, width);
        }
        pack_tile(down, rows, packed_rows(group, width), tile.first, tile.height, group.count);
    }
    me.barrier.wait();
}

// Each group by its expert's layer, into results that are `width` apart at most. Groups differ in
// length, so whoever is free takes the next panels.
void MixtureRun::multiply(const Linear* linears, float* y, int64_t width,
                          std::atomic<int64_t>& next, const Member& me) {
    int64_t most = 0;
    for (const Group& group : groups) most = std::max(most, panels_of(linears[group.expert]));
    const int64_t parts = (most + kPanelsPerUnit - 1) / kPanelsPerUnit;
    const int64_t units = int64_t(groups.size()) * parts;
    for (int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;) {
        const Group& group = groups[unit / parts];
        const Linear& linear = linears[group.expert];
        const int64_t first = unit % parts * kPanelsPerUnit;
        const int64_t last = std::min(first + kPanelsPerUnit, panels_of(linear));
        if (first >= last) continue;
        const Rows rows{packed_rows(group, linear.depth), y + group.first * width, group.count,
                        false};
        run_any_panels(linear, rows, first, last);
    }
    me.barrier.wait();
}

void MixtureRun::add_up(const Mixture& m, float* y, const Member& me) {
    const int64_t hidden = sizes.hidden;
    for (int64_t row = me.begin(sizes.rows); row < me.end(sizes.rows); ++row) {
        std::fill_n(y + row * hidden, hidden, 0.0f);
        for (int64_t k = 0; k < m.results(); ++k) {
            const int64_t i = row * m.results() + k;
            add_weighted(y + row * hidden, b.out + result_of[i] * hidden, weights[i], hidden);
        }
    }
    me.barrier.wait();
}

extern "C" {

// How many floats the workspace of `mix` must hold.
int64_t mixture_workspace(const Mixture* mixture, int64_t rows, int64_t threads) {
    MixtureSizes sizes{rows, threads};
    MixtureBuffers buffers;
    sizes.include(*mixture);
    return lay_out(sizes, nullptr, buffers);
}

// y = mixture(x), both [rows, hidden], with a team of its own.
void mix(const Mixture* mixture, const float* x, float* y, int64_t rows, float* workspace,
         int64_t threads) {
    MixtureSizes sizes{rows, threads};
    sizes.include(*mixture);
    MixtureRun run(sizes, workspace);
    with_team(threads, [&](const Member& me) { run.mix(*mixture, x, y, me); });
}
}
