// Causal attention over a paged cache, softmax kept running (Milakov and Gimelshein 2018).
//
//   query [T, H, D]   keys [blocks, Hkv, page, D]   values [blocks, Hkv, page, Dv]
//
// The heads that share a key head, and some neighbouring queries, are taken together: for each piece
// of kPiece keys their scores are one small matrix product, and their weighted sums another.
//
// Pieces, and the spans of kSpan positions whose results are merged in the end (Dao et al. 2023,
// "Flash-Decoding"), begin at multiples of their length. A query's sums are formed in an order that
// depends on its position alone, not on how its prompt was cut into chunks, on its neighbours or on
// which threads took its spans.

#include "attention.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "cached_pieces.h"
#include "small_products.h"
#include "softmax.h"

using namespace slipstream;

namespace {

// Bring a query head's sums to the output. A sink is a score that has no value (Xiao et al. 2023).
__attribute__((noinline)) void finish(const Attention& a, Softmax state, const float* sums,
                                      int64_t row, int64_t head) {
    float factor = 1.0f;
    if (a.sinks) {
        const float highest = std::max(state.reference, a.sinks[head]);
        factor = std::exp(state.reference - highest);
        state.total = state.total * factor + std::exp(a.sinks[head] - highest);
    }
    factor /= state.total;
    float* out = a.out + (row * a.heads + head) * a.value_dim;
    for (int64_t i = 0; i < a.value_dim; ++i) out[i] = sums[i] * factor;
}

// Memory begins with a line of the cache: a vector that lies in two is read half as fast.
struct alignas(kLineBytes) Line {
    float floats[kLineBytes / sizeof(float)];
};

Line* lines(int64_t floats) {
    constexpr int64_t kEach = kLineBytes / sizeof(float);
    return new Line[(floats + kEach - 1) / kEach];
}

// scores[r][j] *= scales[j]
void multiply_columns(float* scores, int64_t rows, const float* scales) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < kPiece; j += kLanes)
            store(scores + r * kPiece + j, load(scores + r * kPiece + j) * load(scales + j));
}

// Neighbouring positions of a key head, of which [low, high) exist and are seen by some query.
struct Piece {
    int64_t begin, low, high;
    const uint8_t* keys;
    const uint8_t* values;
};

// The queries of an item, in the heads that share key heads [first_kv, last_kv): for each key head
// one row for each query and head.
class Run {
public:
    Run(const Attention& attention, const Item& item, int64_t first_kv, int64_t last_kv)
        : a(attention),
          item(item),
          first_kv(first_kv),
          last_kv(last_kv),
          group(attention.heads / attention.kv_heads),
          height(item.num_rows * group),
          rows(height * (last_kv - first_kv)),
          cache(attention, item.request),
          memory(lines(rows * (a.key_dim + 2 * a.value_dim) +
                       kPiece * (a.key_dim + a.value_dim + kTileRows + 2) +
                       kPiece * (cache.key_bytes + cache.value_bytes) / 4)),
          turned(memory[0].floats),
          wide(turned + kPiece * a.key_dim),
          scores(wide + kPiece * a.value_dim),
          key_scales(scores + kPiece * kTileRows),
          value_scales(key_scales + kPiece),
          queries(value_scales + kPiece),
          sums(queries + rows * a.key_dim),
          totals(sums + rows * a.value_dim),
          gathered(reinterpret_cast<uint8_t*>(totals + rows * a.value_dim)),
          states(rows),
          all(rows) {}

    void run() {
        for (int64_t row = 0; row < rows; ++row) {
            const float* from = a.query + (query(row) * a.heads + head(row)) * a.key_dim;
            for (int64_t i = 0; i < a.key_dim; ++i)
                queries[row * a.key_dim + i] = from[i] * a.scaling;
        }
        for (int64_t span = item.first_span; span < item.last_span; ++span) {
            std::fill(states.begin(), states.end(), Softmax());
            std::fill_n(sums, rows * a.value_dim, 0.0f);
            take_span(span * kSpan);
            for (int64_t row = 0; row < rows; ++row) {
                const float* own = sums + row * a.value_dim;
                if (item.partial < 0)
                    add_span(all[row], totals + row * a.value_dim, states[row], own, a.value_dim);
                else
                    keep(row, own);
            }
        }
        if (item.partial >= 0) return;
        for (int64_t row = 0; row < rows; ++row)
            finish(a, all[row], totals + row * a.value_dim, query(row), head(row));
    }

private:
    int64_t place_in_item(int64_t row) const { return row % height / group; }
    int64_t query(int64_t row) const { return item.first_row + place_in_item(row); }
    int64_t head(int64_t row) const { return first_kv * group + row / height * group + row % group; }
    int64_t position(int64_t row) const { return item.first_position + place_in_item(row); }
    int64_t first_seen(int64_t position) const {
        return a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
    }

    void take_span(int64_t begin) {
        const int64_t end = std::min(begin + kSpan, item.first_position + item.num_rows);
        const int64_t first = std::max(begin, first_seen(item.first_position));
        for (int64_t piece = first / kPiece * kPiece; piece < end; piece += kPiece) {
            const int64_t low = std::max<int64_t>(0, first - piece);
            const int64_t high = std::min(kPiece, end - piece);
            for (int64_t kv = first_kv; kv < last_kv; ++kv) take_piece(kv, piece, low, high);
        }
    }

    // Positions [low, high) of a piece exist, and some query sees them.
    void take_piece(int64_t kv, int64_t piece, int64_t low, int64_t high) {
        Piece p{piece,
                low,
                high,
                cache.keys(kv, piece, low, high, gathered),
                cache.values(kv, piece, low, high, gathered + kPiece * cache.key_bytes)};
        const std::optional<Place> next = after({kv, piece});
        const int64_t first = (kv - first_kv) * height, last = first + height;
        if (height <= kStraightRows && is_whole(a.key_dim)) {
            if (copies_keys(a.kv_format) && p.keys != gathered) {
                std::memcpy(gathered, p.keys, kPiece * cache.key_bytes);
                p.keys = gathered;
            }
            Ahead ahead = cache.ask_between({kv, piece}, next);
            with_format(a.kv_format, [&](auto format) {
                with_rows<kStraightRows>(height, [&](auto few) {
                    take_few<decltype(format), few.value>(first, p, ahead);
                });
            });
            return;
        }
        Ahead ahead = cache.ask_next(next);
        const uint8_t* numbers = to_floats(p, ahead);
        for (int64_t row = first; row < last; row += kTileRows)
            take_rows(row, std::min<int64_t>(kTileRows, last - row), p, numbers, ahead);
    }

    // What is taken after a piece.
    std::optional<Place> after(Place piece) const {
        if (++piece.kv == last_kv) piece = {first_kv, piece.position + kPiece};
        if (piece.position < item.first_position + item.num_rows) return piece;
        return {};
    }

    // All rows of a key head, straight from the cache.
    template <class Format, int kRows>
    void take_few(int64_t first, const Piece& p, Ahead& ahead) {
        score_keys<Format, kRows>(queries + first * a.key_dim, a.key_dim, p.keys, cache.key_bytes,
                                  scores, [&] { ahead.ask((kLanes + 7) / 8); });
        if (a.kv_format == kKvInt8) take_scales(p);
        weigh_rows(first, kRows, p.begin, ahead);
        const int64_t lines = piece_lines() / (3 * kPiece) + 1;
        add_values<Format, kRows>(first, p, p.values, cache.value_bytes, [&] { ahead.ask(lines); });
    }

    // Lay the keys of a piece side by side and return its values, all as floats; those of int8 are
    // codes, whose scales go to the scores and the weights.
    const uint8_t* to_floats(const Piece& p, Ahead& ahead) {
        with_format(a.kv_format, [&](auto format) {
            turn<decltype(format)>(p.keys, cache.key_bytes, a.key_dim, turned,
                                   [&] { ahead.ask(kLanes / 4); });
        });
        if (a.kv_format == kKvFloat32) return p.values;
        with_format(a.kv_format, [&](auto format) {
            widen<decltype(format)>(p.values, cache.value_bytes, a.value_dim, p.low, p.high, wide);
        });
        if (a.kv_format == kKvInt8) take_scales(p);
        return reinterpret_cast<const uint8_t*>(wide);
    }

    void take_scales(const Piece& p) {
        find_scales(p.keys, cache.key_bytes, a.key_dim, p.low, p.high, key_scales);
        find_scales(p.values, cache.value_bytes, a.value_dim, p.low, p.high, value_scales);
    }

    // One tile of rows over a piece whose keys are turned. Asking at each step of its products would
    // cost a seventh of their time, and what turning and weighing ask for is enough.
    void take_rows(int64_t first, int64_t num_rows, const Piece& p, const uint8_t* values,
                   Ahead& ahead) {
        if (position(first + num_rows - 1) < p.begin) return;
        std::fill_n(scores, num_rows * kPiece, 0.0f);
        with_rows<kTileRows>(num_rows, [&](auto tile) {
            multiply_rows<Float32Rows, tile.value>(
                queries + first * a.key_dim, a.key_dim, a.key_dim,
                reinterpret_cast<const uint8_t*>(turned), kPiece * sizeof(float), scores, kPiece,
                kPiece, [] {});
        });
        weigh_rows(first, num_rows, p.begin, ahead);
        with_rows<kTileRows>(num_rows, [&](auto tile) {
            add_values<Float32Rows, tile.value>(first, p, values, a.value_dim * sizeof(float),
                                                [] {});
        });
    }

    // Lines of the cache that a piece's keys and values take.
    int64_t piece_lines() const {
        return kPiece * (cache.key_bytes + cache.value_bytes) / kLineBytes;
    }

    // Make scores weights. Much is computed meanwhile and little read, so much can be asked for.
    void weigh_rows(int64_t first, int64_t num_rows, int64_t piece, Ahead& ahead) {
        if (a.kv_format == kKvInt8) multiply_columns(scores, num_rows, key_scales);
        const int64_t row_lines = piece_lines() / 16;
        for (int64_t r = 0; r < num_rows; ++r) {
            ahead.ask(row_lines);
            const int64_t row = first + r, at = position(row);
            const int64_t low = std::max<int64_t>(0, first_seen(at) - piece);
            const int64_t high = std::min(kPiece, at - piece + 1);
            if (low < high)
                weigh(scores + r * kPiece, low, high, a.softcap, states[row],
                      sums + row * a.value_dim, a.value_dim);
            else
                std::fill_n(scores + r * kPiece, kPiece, 0.0f);
        }
        if (a.kv_format == kKvInt8) multiply_columns(scores, num_rows, value_scales);
    }

    // Add the values of a piece, weighted.
    template <class Format, int kRows, class Ask>
    void add_values(int64_t first, const Piece& p, const uint8_t* values, int64_t row_bytes,
                    Ask ask) {
        multiply_rows<Format, kRows>(scores + p.low, kPiece, p.high - p.low,
                                     values + p.low * row_bytes, row_bytes,
                                     sums + first * a.value_dim, a.value_dim, a.value_dim, ask);
    }

    // Write a row's part of a span where `merge_spans` finds it.
    void keep(int64_t row, const float* own) {
        float* to = a.partials + ((item.partial + place_in_item(row)) * a.heads + head(row)) *
                                     (a.value_dim + 2);
        to[0] = states[row].reference;
        to[1] = states[row].total;
        std::memcpy(to + 2, own, a.value_dim * sizeof(float));
    }

    const Attention& a;
    const Item& item;
    const int64_t first_kv, last_kv, group;
    const int64_t height;  // rows of one key head
    const int64_t rows;
    const CachedPieces cache;
    const std::unique_ptr<Line[]> memory;
    float* const turned;        // [D, kPiece]
    float* const wide;          // [kPiece, Dv]
    float* const scores;        // [kTileRows, kPiece]
    float* const key_scales;    // [kPiece]
    float* const value_scales;  // [kPiece]
    float* const queries;       // [rows, D], scaled
    float* const sums;          // [rows, Dv], of a span
    float* const totals;        // [rows, Dv], of all spans
    uint8_t* const gathered;    // keys and values of a piece that lies in several blocks
    std::vector<Softmax> states, all;
};

}  // namespace

void slipstream::attend_to(const Attention& a, const AttentionWork& work, int64_t unit) {
    const Item& item = work.items[unit / work.shares];
    const int64_t share = unit % work.shares;
    Run(a, item, a.kv_heads * share / work.shares, a.kv_heads * (share + 1) / work.shares).run();
}

void slipstream::merge_spans(const Attention& a, const Merge& merge, int64_t head) {
    const int64_t width = a.value_dim;
    const std::unique_ptr<float[]> sums(new float[width]);
    for (int64_t row = 0; row < merge.num_rows; ++row) {
        Softmax all;
        for (int64_t span = 0; span < merge.count; ++span) {
            const int64_t partial = merge.partial + span * merge.num_rows + row;
            const float* from = a.partials + (partial * a.heads + head) * (width + 2);
            add_span(all, sums.get(), {from[0], from[1]}, from + 2, width);
        }
        finish(a, all, sums.get(), merge.first_row + row, head);
    }
}

extern "C" {

// sizes: requests, table_width, page_size, heads, kv_heads, key_dim, value_dim, window, threads,
// kv_format, then the bytes from block to block and from head to head of keys, and of values.
void paged_attention(const float* query, uint8_t* keys, uint8_t* values, float* out,
                     const int32_t* block_table, const int64_t* query_starts,
                     const int64_t* context_lengths, const float* sinks, const int64_t* sizes,
                     float scaling, float softcap) {
    const int64_t requests = sizes[0], heads = sizes[3], kv_heads = sizes[4], threads = sizes[8];
    const AttentionWork work =
        attention_work(requests, query_starts, context_lengths, kv_heads, threads);
    const std::unique_ptr<float[]> partials(
        new float[work.partial_rows * heads * (sizes[6] + 2)]);
    const Attention a{query, {keys, sizes[10], sizes[11]}, {values, sizes[12], sizes[13]},
                      sizes[9], out, block_table, sizes[1], sizes[2], heads, kv_heads,
                      sizes[5], sizes[6], scaling, softcap, sizes[7], sinks, partials.get()};
    const int64_t units = work.num_units();
    const int64_t merges = int64_t(work.merges.size()) * heads;
#pragma omp parallel num_threads(threads) if (units > 1)
    {
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < units; ++unit)
            attend_to(a, work, unit);
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < merges; ++unit)
            merge_spans(a, work.merges[unit / heads], unit % heads);
    }
}

// Bring rows to their slots: x is [tokens, kv_heads, width], with strides in floats. sizes: tokens,
// kv_heads, width, page_size, token stride, head stride, kv_format, bytes from block to block, from
// head to head.
void store_kv_rows(const float* x, uint8_t* cached, const int64_t* slots, const int64_t* sizes) {
    const int64_t kv_heads = sizes[1], width = sizes[2], page_size = sizes[3];
    const CachedRows rows{cached, sizes[7], sizes[8]};
    for (int64_t t = 0; t < sizes[0]; ++t)
        for (int64_t kv = 0; kv < kv_heads; ++kv)
            store_at_slot(sizes[6], x + t * sizes[4] + kv * sizes[5], rows, slots[t], kv,
                          page_size, width);
}
}
