// A mixture of experts: gated MLPs of which each row goes to a few, as a router says.
//
// For callers with a team of threads of their own. A row's result depends on that row alone: it
// chooses its experts by itself, their products are computed in an order of their own (tile.h), and
// it adds them up from the most likely to the least.
#pragma once

#include <atomic>
#include <vector>

#include "linear.h"
#include "team.h"

namespace slipstream {

// Filled in from Python: eight bytes a field.
struct Mixture {
    Linear router;          // rows: experts, then the gate of the shared one if it has one
    const Linear* gate_up;  // of each expert, the shared one last; rows: gate, up
    const Linear* down;     // likewise
    int64_t experts;        // without the shared one
    int64_t chosen;         // how many a row goes to
    int64_t normalises;     // whether their weights add up to 1
    int64_t shares;         // whether every row goes to one expert more
    int64_t activation;     // of the gates, see rows.h

    int64_t results() const { return chosen + shares; }  // of each row
};

// What a step takes in memory; of several mixtures the largest.
struct SLIPSTREAM_LOCAL MixtureSizes {
    int64_t rows, threads;
    int64_t hidden = 0, width = 0, results = 0, experts = 0, logits = 0;

    void include(const Mixture& mixture);
};

struct MixtureBuffers {
    float* packed;     // of all rows in all their experts, or for the router
    float* logits;     // [rows, logits]
    float* gate_up;    // [results, 2 width], by expert
    float* activated;  // [results, width]
    float* out;        // [results, hidden]
    float* gathered;   // [threads, rows of a tile, hidden]
};

// Find places in a workspace; returns how many floats it must hold.
SLIPSTREAM_LOCAL int64_t lay_out(const MixtureSizes& sizes, float* base, MixtureBuffers& buffers);

// The rows of a step in mixtures, one after another.
class SLIPSTREAM_LOCAL MixtureRun {
public:
    MixtureRun(const MixtureSizes& sizes, float* workspace);

    // y = mixture(x), both [rows, hidden]. For all of a team, who have x before and y afterwards.
    void mix(const Mixture& mixture, const float* x, float* y, const Member& me);

private:
    // The rows that go to one expert: results [first, first + count).
    struct Group {
        int64_t expert, first, count;
        int64_t packed;  // the first of its packed rows
    };
    struct Tile {
        int64_t group, first, height;  // counted from the group's first row
    };

    void route(const Mixture& mixture, const float* x, const Member& me);
    void choose(const Mixture& mixture, int64_t row);
    void group_rows(const Mixture& mixture);
    void pack_rows_of_experts(const Mixture& mixture, const float* x, const Member& me);
    void pack_activated(const Mixture& mixture, const Member& me);
    void multiply(const Linear* linears, float* y, int64_t width, std::atomic<int64_t>& next,
                  const Member& me);
    void add_up(const Mixture& mixture, float* y, const Member& me);
    float* packed_rows(const Group& group, int64_t depth) const;

    const MixtureSizes sizes;
    MixtureBuffers b;
    std::vector<int64_t> experts;    // [rows, results]
    std::vector<float> weights;      // likewise
    std::vector<int64_t> result_of;  // likewise: which result it is
    std::vector<int64_t> row_of;     // [results]
    std::vector<Group> groups;
    std::vector<Tile> tiles;
    std::atomic<int64_t> next_gate_up{0}, next_down{0};
};

}  // namespace slipstream
