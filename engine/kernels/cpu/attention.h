// Attention over the paged cache, for callers that have a team of threads of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_rows.h"
#include "linear.h"

namespace slipstream {

// Positions whose results are joined as a whole; spans begin at multiples of it.
constexpr int64_t kSpan = 512;

struct Attention {
    const float* query;
    CachedRows keys;    // of key_dim
    CachedRows values;  // of value_dim
    int64_t kv_format;
    float* out;
    const int32_t* block_table;
    int64_t table_width, page_size;
    int64_t heads, kv_heads, key_dim, value_dim;
    float scaling, softcap;  // softcap 0: none
    int64_t window;          // 0: none
    const float* sinks;      // [heads], or null without
    float* partials;         // [partial rows of the work, heads, value_dim + 2]
};

// Some neighbouring queries of one request, over some of the spans that its positions are cut into.
struct Item {
    int64_t request, first_row, num_rows, first_position;
    int64_t first_span, last_span;  // the last one is not included
    int64_t partial;  // the first of its rows among the partial results; -1: it has all spans
};

// Queries whose spans were computed one by one: `count` times `num_rows` partial rows.
struct Merge {
    int64_t first_row, num_rows, partial, count;
};

struct AttentionWork {
    std::vector<Item> items;
    std::vector<Merge> merges;
    int64_t partial_rows = 0;
    int64_t shares = 1;  // into which the key heads are cut

    int64_t num_units() const { return int64_t(items.size()) * shares; }
};

// What is to be done in a step, in pieces that keep all threads busy.
SLIPSTREAM_LOCAL AttentionWork attention_work(int64_t requests, const int64_t* query_starts,
                                              const int64_t* context_lengths, int64_t kv_heads,
                                              int64_t threads);

// All queries of an item, for its share of the heads.
SLIPSTREAM_LOCAL void attend_to(const Attention& a, const AttentionWork& work, int64_t unit);

// One query head of queries whose spans are all computed.
SLIPSTREAM_LOCAL void merge_spans(const Attention& a, const Merge& merge, int64_t head);

}  // namespace slipstream
