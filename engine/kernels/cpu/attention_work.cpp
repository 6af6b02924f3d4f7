// What a step's attention is cut into, so that all threads have something to do until its end.

#include <algorithm>

#include "attention.h"

using namespace slipstream;

namespace {

// Neighbouring queries that share a reading of their keys: more of a long prompt, of which there is
// enough for all threads.
constexpr int64_t kLongPrompt = 256;
int64_t queries_per_item(int64_t rows) { return rows < kLongPrompt ? 16 : 32; }

// Make an item of each span of a single query's item.
void cut_spans(AttentionWork& work) {
    std::vector<Item> items;
    for (const Item& item : work.items) {
        // Partial results take memory: a chunk of a prompt has items enough without them.
        if (item.last_span == 1 || item.num_rows > 1) {
            items.push_back(item);
            continue;
        }
        work.merges.push_back({item.first_row, item.num_rows, work.partial_rows, item.last_span});
        for (int64_t span = 0; span < item.last_span; ++span) {
            items.push_back(item);
            items.back().first_span = span;
            items.back().last_span = span + 1;
            items.back().partial = work.partial_rows;
            work.partial_rows += item.num_rows;
        }
    }
    work.items.swap(items);
}

}  // namespace

AttentionWork slipstream::attention_work(int64_t requests, const int64_t* query_starts,
                                         const int64_t* context_lengths, int64_t kv_heads,
                                         int64_t threads) {
    AttentionWork work;
    for (int64_t r = 0; r < requests; ++r) {
        const int64_t rows = query_starts[r + 1] - query_starts[r];
        const int64_t most = queries_per_item(rows);
        for (int64_t row = 0; row < rows; row += most) {
            const int64_t height = std::min(most, rows - row);
            const int64_t position = context_lengths[r] - rows + row;
            work.items.push_back({r, query_starts[r] + row, height, position, 0,
                                  (position + height - 1) / kSpan + 1, -1});
        }
    }
    const int64_t enough = threads == 1 ? 1 : 4 * threads;
    // Few long items would leave threads without work, or with the longest one alone.
    if (int64_t(work.items.size()) < enough) cut_spans(work);
    // What lies side by side in the cache is best read together.
    while (work.shares < kv_heads && int64_t(work.items.size()) * work.shares < enough)
        ++work.shares;
    return work;
}
