// All layers of a decoder in one call. With every part that a layer may have:
//
//   x += factor * norm(out(attend(turn(norm(qkv(norm(x)))))))
//   x += factor * norm(down(activation(gate) * up)), gate and up of norm(x)
//
// What else a step costs, in Python and in waking threads some two hundred times, is more than the
// products themselves once the weights are small. Here one team of threads goes through all layers
// and meets six times in each. A row is computed in an order of its own (see tile.h, rows.h and
// attention.cpp), whatever the batch and the team.

#include <memory>
#include <vector>

#include "any_linear.h"
#include "attention.h"
#include "kv_rows.h"
#include "mixture.h"
#include "rows.h"
#include "team.h"

using namespace slipstream;

namespace {

// Numbers of a gated product that one thread takes at a time; a multiple of every vector.
constexpr int64_t kGateChunk = 256;

// What follows is filled in from Python: eight bytes a field.

// Rotary positions of the step's tokens.
struct Rotation {
    const float* cosines;  // [rows, width]
    const float* sines;    // likewise
    int64_t width;         // how much of a head is turned
};

struct Layer {
    Norm before_attention;
    Linear qkv;                  // rows: query heads, key heads, value heads
    Norm query_norm, key_norm;   // of each head, or of all heads of a row together
    Linear out;
    Norm after_attention;
    Norm before_mlp;
    Linear gate_up;  // rows: gate, up
    Linear down;
    const Mixture* mixture;  // instead of these two, or null
    Norm after_mlp;
    CachedRows keys, values;
    int64_t activation;  // of the gate, see rows.h
    int64_t rotation;    // its number among the step's; -1: heads are not turned
    int64_t window;      // 0: none
    double scaling, softcap;
    double factor;  // on what is added to x
};

struct Step {
    const Layer* layers;
    float* x;  // [rows, hidden], the embedded tokens; becomes the last layer's output
    const Rotation* rotations;
    const int64_t* slots;  // [rows]
    const int32_t* block_table;
    const int64_t* query_starts;
    const int64_t* context_lengths;
    float* workspace;  // as many floats as decoder_workspace returns
    int64_t num_layers, rows, hidden, heads, kv_heads, head_dim;
    int64_t intermediate;  // of the widest MLP
    int64_t requests, table_width, page_size, kv_format, threads;
};

// Where the intermediate results of a step lie.
struct Buffers {
    float* packed;     // all rows, of the widest input
    float* own;        // [threads], one row that a thread packs for itself
    float* qkv;        // [rows, (heads + 2 kv_heads) * head_dim]
    float* queries;    // [rows, heads * head_dim]
    float* attended;   // likewise
    float* gate_up;    // [rows, 2 intermediate]
    float* activated;  // [rows, intermediate]
    float* branch;     // [rows, hidden], what is added to x where something is done to it before
    float* normed;     // [threads, rows of a tile, hidden]
    float* routed;     // [rows, hidden], what goes into a mixture
    float* mixture;    // its workspace
};

int64_t widest_input(const Step& s) {
    return std::max({s.hidden, s.heads * s.head_dim, s.intermediate});
}

// Of all layers that are mixtures; without experts if none is.
MixtureSizes mixture_sizes(const Step& s) {
    MixtureSizes sizes{s.rows, s.threads};
    for (int64_t i = 0; i < s.num_layers; ++i)
        if (s.layers[i].mixture) sizes.include(*s.layers[i].mixture);
    return sizes;
}

int64_t lay_out(const Step& s, float* base, Buffers& b) {
    const int64_t query_width = s.heads * s.head_dim;
    float* at = base;
    auto take = [&](int64_t count) {
        float* from = at;
        at += (count + 15) / 16 * 16;
        return from;
    };
    b.packed = take(packed_floats(s.rows, widest_input(s)));
    b.own = take(s.threads * packed_floats(1, widest_input(s)));
    b.qkv = take(s.rows * (s.heads + 2 * s.kv_heads) * s.head_dim);
    b.queries = take(s.rows * query_width);
    b.attended = take(s.rows * query_width);
    b.gate_up = take(s.rows * 2 * s.intermediate);
    b.activated = take(s.rows * s.intermediate);
    b.branch = take(s.rows * s.hidden);
    b.normed = take(s.threads * kMaxTileRows * s.hidden);
    const MixtureSizes sizes = mixture_sizes(s);
    MixtureBuffers parts;
    if (sizes.experts) {
        b.routed = take(s.rows * s.hidden);
        b.mixture = take(slipstream::lay_out(sizes, nullptr, parts));
    }
    return at - base;
}

class Run {
public:
    Run(const Step& step, const Buffers& buffers, const AttentionWork& work, float* partials,
        MixtureRun& mixtures, const Member& member)
        : s(step), b(buffers), work(work), partials(partials), mixtures(mixtures), me(member) {}

    void layer(const Layer& layer, std::atomic<int64_t>& next_item) {
        linear(layer.qkv, pack_normed(layer.qkv, layer.before_attention), b.qkv, false);
        norm_rows_of_heads(layer);
        place_heads(layer);
        attend(layer, next_item);
        add_to_x(layer.out, b.attended, layer.after_attention, layer.factor);
        if (layer.mixture) return mix(layer);
        linear(layer.gate_up, pack_normed(layer.gate_up, layer.before_mlp), b.gate_up, false);
        activate(layer);
        add_to_x(layer.down, b.activated, layer.after_mlp, layer.factor);
    }

private:
    // y (+)= x W^T + b for rows that are packed; everybody's part is done when it returns.
    void linear(const Linear& linear, const float* packed, float* y, bool adds) {
        const int64_t count = panels_of(linear);
        run_any_panels(linear, {packed, y, s.rows, adds}, me.begin(count), me.end(count));
        me.barrier.wait();
    }

    // x += factor * norm(W y + b)
    void add_to_x(const Linear& to, const float* y, const Norm& norm, double factor) {
        const float* packed = pack(to, y);
        if (!norm.weight && factor == 1.0) return linear(to, packed, s.x, true);
        linear(to, packed, b.branch, false);
        add_branch(norm, factor);
    }

    void mix(const Layer& layer) {
        const Norm& norm = layer.before_mlp;
        if (norm.weight) {
            for (int64_t row = me.begin(s.rows); row < me.end(s.rows); ++row)
                norm.apply(s.x + row * s.hidden, b.routed + row * s.hidden);
            me.barrier.wait();
        }
        mixtures.mix(*layer.mixture, norm.weight ? b.routed : s.x, b.branch, me);
        add_branch(layer.after_mlp, layer.factor);
    }

    // x += factor * norm(branch)
    void add_branch(const Norm& norm, double factor) {
        for (int64_t row = me.begin(s.rows); row < me.end(s.rows); ++row) {
            float* branch = b.branch + row * s.hidden;
            if (norm.weight) norm.apply(branch, branch);
            add_row(s.x + row * s.hidden, branch, float(factor), s.hidden);
        }
        me.barrier.wait();
    }

    // Rows as the layer's tiles read them. A single row is packed by every thread for itself: that
    // takes less time than to wait for another to do it.
    const float* pack(const Linear& to, const float* x) {
        if (s.rows == 1) return pack_one(to, x);
        for_own_tiles(to, [&](int64_t first, int64_t height) {
            pack_tile(to, x + first * to.depth, b.packed, first, height, s.rows);
        });
        return b.packed;
    }

    // The same for the residual stream's rows, normed.
    const float* pack_normed(const Linear& to, const Norm& norm) {
        if (!norm.weight) return pack(to, s.x);
        float* normed = b.normed + me.index * kMaxTileRows * s.hidden;
        if (s.rows == 1) {
            norm.apply(s.x, normed);
            return pack_one(to, normed);
        }
        for_own_tiles(to, [&](int64_t first, int64_t height) {
            for (int64_t r = 0; r < height; ++r)
                norm.apply(s.x + (first + r) * s.hidden, normed + r * s.hidden);
            pack_tile(to, normed, b.packed, first, height, s.rows);
        });
        return b.packed;
    }

    // Floats are read as they stand.
    const float* pack_one(const Linear& to, const float* x) {
        if (takes_floats(to)) return x;
        float* packed = b.own + me.index * packed_floats(1, widest_input(s));
        pack_tile(to, x, packed, 0, 1, 1);
        return packed;
    }

    // Call `action(first row, rows)` for each of this thread's tiles; then all are packed.
    template <class Action>
    void for_own_tiles(const Linear& to, Action action) {
        const int64_t full = tile_rows(to, s.rows);
        const int64_t count = (s.rows + full - 1) / full;
        for (int64_t t = me.begin(count); t < me.end(count); ++t)
            action(t * full, std::min(full, s.rows - t * full));
        me.barrier.wait();
    }

    bool norms_heads(const Norm& norm) const { return norm.weight && norm.width == s.head_dim; }
    bool norms_rows(const Norm& norm) const { return norm.weight && norm.width != s.head_dim; }

    // Norms over all query heads, or all key heads, of a row together.
    void norm_rows_of_heads(const Layer& layer) {
        if (!norms_rows(layer.query_norm) && !norms_rows(layer.key_norm)) return;
        const int64_t row_width = (s.heads + 2 * s.kv_heads) * s.head_dim;
        for (int64_t unit = me.begin(2 * s.rows); unit < me.end(2 * s.rows); ++unit) {
            float* queries = b.qkv + unit / 2 * row_width;
            float* keys = queries + s.heads * s.head_dim;
            const Norm& norm = unit % 2 ? layer.key_norm : layer.query_norm;
            float* heads = unit % 2 ? keys : queries;
            if (norms_rows(norm)) norm.apply(heads, heads);
        }
        me.barrier.wait();
    }

    // Norm and turn queries and keys, and bring keys and values to their slots.
    void place_heads(const Layer& layer) {
        const int64_t all = s.heads + 2 * s.kv_heads, width = s.head_dim;
        const Rotation none{nullptr, nullptr, 0};
        const Rotation& turn = layer.rotation < 0 ? none : s.rotations[layer.rotation];
        for (int64_t unit = me.begin(s.rows * all); unit < me.end(s.rows * all); ++unit) {
            const int64_t row = unit / all, head = unit % all;
            float* from = b.qkv + unit * width;
            const bool is_query = head < s.heads, is_value = head >= s.heads + s.kv_heads;
            if (!is_value) {
                const Norm& norm = is_query ? layer.query_norm : layer.key_norm;
                if (norms_heads(norm)) norm.apply(from, from);
                float* to = is_query ? b.queries + (row * s.heads + head) * width : from;
                rotate_head(from, turn.cosines + row * turn.width, turn.sines + row * turn.width,
                            to, turn.width, width);
            }
            if (!is_query)
                store_at_slot(s.kv_format, from, is_value ? layer.values : layer.keys,
                              s.slots[row], (head - s.heads) % s.kv_heads, s.page_size, width);
        }
        me.barrier.wait();
    }

    // Requests differ in length, so whoever is free takes the next piece.
    void attend(const Layer& layer, std::atomic<int64_t>& next_item) {
        const Attention a{b.queries,     layer.keys,    layer.values,  s.kv_format,
                          b.attended,    s.block_table, s.table_width, s.page_size,
                          s.heads,       s.kv_heads,    s.head_dim,    s.head_dim,
                          float(layer.scaling), float(layer.softcap), layer.window, nullptr,
                          partials};
        const int64_t units = work.num_units();
        for (int64_t unit; (unit = next_item.fetch_add(1, std::memory_order_relaxed)) < units;)
            attend_to(a, work, unit);
        me.barrier.wait();
        if (work.merges.empty()) return;
        const int64_t merges = int64_t(work.merges.size()) * s.heads;
        for (int64_t unit = me.begin(merges); unit < me.end(merges); ++unit)
            merge_spans(a, work.merges[unit / s.heads], unit % s.heads);
        me.barrier.wait();
    }

    void activate(const Layer& layer) {
        const int64_t width = layer.down.depth, chunks = (width + kGateChunk - 1) / kGateChunk;
        for (int64_t unit = me.begin(s.rows * chunks); unit < me.end(s.rows * chunks); ++unit) {
            const int64_t row = unit / chunks, first = unit % chunks * kGateChunk;
            const float* gate = b.gate_up + row * 2 * width + first;
            gate_row(layer.activation, gate, gate + width, b.activated + row * width + first,
                     std::min(kGateChunk, width - first));
        }
        me.barrier.wait();
    }

    const Step& s;
    const Buffers& b;
    const AttentionWork& work;
    float* const partials;  // [partial rows, heads, head_dim + 2]
    MixtureRun& mixtures;
    const Member& me;
};

}  // namespace

extern "C" {

// How many floats a step's workspace must hold.
int64_t decoder_workspace(const Step* step) {
    Buffers buffers;
    return lay_out(*step, nullptr, buffers);
}

void run_decoder(const Step* step) {
    const Step& s = *step;
    Buffers buffers{};
    lay_out(s, s.workspace, buffers);
    const AttentionWork work =
        attention_work(s.requests, s.query_starts, s.context_lengths, s.kv_heads, s.threads);
    // What it takes is known here only: what queries are cut into depends on the whole step.
    const std::unique_ptr<float[]> partials(
        new float[work.partial_rows * s.heads * (s.head_dim + 2)]);
    std::vector<std::atomic<int64_t>> next_items(s.num_layers);
    for (auto& next : next_items) next.store(0, std::memory_order_relaxed);
    MixtureRun mixtures(mixture_sizes(s), buffers.mixture);
    with_team(s.threads, [&](const Member& me) {
        Run run(s, buffers, work, partials.get(), mixtures, me);
        for (int64_t i = 0; i < s.num_layers; ++i) run.layer(s.layers[i], next_items[i]);
    });
}
}
