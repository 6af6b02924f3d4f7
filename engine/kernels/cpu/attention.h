// Attention over the paged cache, for callers that have a team of threads of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "linear.h"

namespace slipstream {

struct Attention {
    const float* query;
    const float* keys;
    const float* values;
    float* out;
    const int32_t* block_table;
    int64_t table_width, page_size;
    int64_t heads, kv_heads, key_dim, value_dim;
    float scaling, softcap;  // softcap 0: none
    int64_t window;          // 0: none
};

// Some neighbouring queries of one request.
struct Item {
    int64_t request, first_row, num_rows, first_position;
};

// The work of a step: with each key head, one unit per item.
SLIPSTREAM_LOCAL std::vector<Item> attention_items(int64_t requests, const int64_t* query_starts,
                                                   const int64_t* context_lengths);

// All queries of an item, for the heads that share one key head.
SLIPSTREAM_LOCAL void attend_to(const Attention& a, const Item& item, int64_t kv_head);

}  // namespace slipstream
