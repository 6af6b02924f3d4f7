// Causal attention over a paged cache, softmax kept running (Milakov and Gimelshein 2018).
//
//   query [T, H, D]   keys [slots, Hkv, D]   values [slots, Hkv, Dv]   slot = block * page + offset
//
// The heads that share a key head, and a few neighbouring queries, are taken together, so that each
// key is read once for all of them. Keys are taken in pieces of kPiece positions that begin at
// multiples of it: a query's sums are formed in an order that depends on its position alone, not on
// how its prompt was cut into chunks, on its neighbours or on the threads.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention.h"
#include "vector.h"

using namespace slipstream;

namespace {

constexpr int64_t kPiece = 32;
constexpr int64_t kQueriesPerItem = 8;

float dot(const float* a, const float* b, int64_t width) {
    Vector acc{};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) acc += load(a + i) * load(b + i);
    float total = sum(acc);
    for (; i < width; ++i) total += a[i] * b[i];
    return total;
}

// sums += weights[j] * rows[j] over j, with the sums of a vector's width kept in a register.
void add_weighted(float* sums, const float* const* rows, const float* weights, int64_t count,
                  int64_t width) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        Vector acc = load(sums + i);
        for (int64_t j = 0; j < count; ++j) acc += load(rows[j] + i) * weights[j];
        store(sums + i, acc);
    }
    for (; i < width; ++i)
        for (int64_t j = 0; j < count; ++j) sums[i] += rows[j][i] * weights[j];
}

void scale(float* sums, float factor, int64_t width) {
    for (int64_t i = 0; i < width; ++i) sums[i] *= factor;
}

// One query head's running softmax.
struct Running {
    float highest = -std::numeric_limits<float>::infinity();
    float total = 0.0f;
};

// Weigh one piece of keys into a query head's sums. `begin` and `end` are positions it may see.
void take_piece(const Attention& a, const float* query, const float* const* keys,
                const float* const* values, int64_t count, Running& state, float* sums) {
    float weights[kPiece];
    float highest = state.highest;
    for (int64_t j = 0; j < count; ++j) {
        float score = dot(query, keys[j], a.key_dim) * a.scaling;
        if (a.softcap > 0.0f) score = a.softcap * std::tanh(score / a.softcap);
        weights[j] = score;
        highest = std::max(highest, score);
    }
    for (int64_t j = count; j < kPiece; ++j) weights[j] = -std::numeric_limits<float>::infinity();
    if (highest > state.highest) {
        const float keep = std::exp(state.highest - highest);
        state.total *= keep;
        scale(sums, keep, a.value_dim);
        state.highest = highest;
    }
    for (int64_t j = 0; j < kPiece; j += kLanes)
        store(weights + j, exp(load(weights + j) - highest));
    for (int64_t j = 0; j < count; ++j) state.total += weights[j];
    add_weighted(sums, values, weights, count, a.value_dim);
}

// All queries of an item, for the heads that share one key head.
void attend_item(const Attention& a, const Item& item, int64_t kv_head) {
    const int64_t group = a.heads / a.kv_heads;
    const int64_t last = item.first_position + item.num_rows - 1;
    const int64_t first_seen =
        a.window > 0 ? std::max<int64_t>(0, item.first_position - a.window + 1) : 0;
    const int32_t* table = a.block_table + item.request * a.table_width;
    std::vector<Running> states(item.num_rows * group);
    auto out_of = [&](int64_t row, int64_t g) {
        return a.out + ((item.first_row + row) * a.heads + kv_head * group + g) * a.value_dim;
    };
    for (int64_t row = 0; row < item.num_rows; ++row)
        std::fill_n(out_of(row, 0), group * a.value_dim, 0.0f);
    const float* keys[kPiece];
    const float* values[kPiece];
    for (int64_t piece = first_seen / kPiece * kPiece; piece <= last; piece += kPiece) {
        for (int64_t j = 0; j < kPiece && piece + j <= last; ++j) {
            const int64_t p = piece + j;
            const int64_t slot = int64_t(table[p / a.page_size]) * a.page_size + p % a.page_size;
            keys[j] = a.keys + (slot * a.kv_heads + kv_head) * a.key_dim;
            values[j] = a.values + (slot * a.kv_heads + kv_head) * a.value_dim;
        }
        for (int64_t row = 0; row < item.num_rows; ++row) {
            const int64_t position = item.first_position + row;
            const int64_t low = a.window > 0 ? std::max(piece, position - a.window + 1) : piece;
            const int64_t high = std::min(piece + kPiece, position + 1);
            if (low >= high) continue;
            for (int64_t g = 0; g < group; ++g) {
                const int64_t head = kv_head * group + g;
                const float* query =
                    a.query + ((item.first_row + row) * a.heads + head) * a.key_dim;
                take_piece(a, query, keys + (low - piece), values + (low - piece), high - low,
                           states[row * group + g], out_of(row, g));
            }
        }
    }
    for (int64_t row = 0; row < item.num_rows; ++row)
        for (int64_t g = 0; g < group; ++g)
            scale(out_of(row, g), 1.0f / states[row * group + g].total, a.value_dim);
}

}  // namespace

std::vector<Item> slipstream::attention_items(int64_t requests, const int64_t* query_starts,
                                              const int64_t* context_lengths) {
    std::vector<Item> items;
    for (int64_t r = 0; r < requests; ++r) {
        const int64_t rows = query_starts[r + 1] - query_starts[r];
        for (int64_t row = 0; row < rows; row += kQueriesPerItem)
            items.push_back({r, query_starts[r] + row, std::min(kQueriesPerItem, rows - row),
                             context_lengths[r] - rows + row});
    }
    return items;
}

void slipstream::attend_to(const Attention& a, const Item& item, int64_t kv_head) {
    attend_item(a, item, kv_head);
}

extern "C" {

// sizes: requests, table_width, page_size, heads, kv_heads, key_dim, value_dim, window, threads.
void paged_attention(const float* query, const float* keys, const float* values, float* out,
                     const int32_t* block_table, const int64_t* query_starts,
                     const int64_t* context_lengths, const int64_t* sizes, float scaling,
                     float softcap) {
    const int64_t requests = sizes[0], kv_heads = sizes[4], threads = sizes[8];
    const Attention a{query,    keys,     values,   out,      block_table, sizes[1], sizes[2],
                      sizes[3], kv_heads, sizes[5], sizes[6], scaling,     softcap,  sizes[7]};
    const std::vector<Item> items = attention_items(requests, query_starts, context_lengths);
    const int64_t work = int64_t(items.size()) * kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (work > 1)
    for (int64_t index = 0; index < work; ++index)
        attend_item(a, items[index / kv_heads], index % kv_heads);
}
}
