// Where a request's pieces lie in the paged cache, and how the next one is asked for.
#pragma once

#include "attention.h"
#include "pieces.h"
#include "tile.h"

namespace slipstream {
namespace {

// Asks for what is read next, a little at each call, so that reading goes on while numbers are
// multiplied. Asking for much at once holds up the loads behind it, and asking into the first cache
// drives out what is in use.
class Ahead {
public:
    Ahead() = default;
    // Keys, then values.
    Ahead(const float* keys, int64_t num_keys, const float* values, int64_t num_values)
        : at(keys), end(keys + num_keys), then(values), then_end(values + num_values) {}

    void ask(int64_t lines) {
        for (; lines > 0 && at < end; --lines, at += kLineBytes / sizeof(float))
            __builtin_prefetch(at, 0, 2);
        if (at < end || !then) return;
        at = then, end = then_end, then = nullptr;
    }

private:
    const float* at = nullptr;
    const float* end = nullptr;
    const float* then = nullptr;
    const float* then_end = nullptr;
};

// A request's keys and values. A piece that lies in one block is read where it is; pages that are no
// multiple of a piece have others, which are copied together.
class CachedPieces {
public:
    CachedPieces(const Attention& attention, int64_t request)
        : a(attention),
          table(a.block_table + request * a.table_width),
          are_whole(a.page_size % kPiece == 0) {}

    // The keys of the piece that begins at a position: [kPiece, D]. Those outside of [low, high) may
    // be anything. `spare` holds as many floats.
    const float* keys(int64_t kv, int64_t piece, int64_t low, int64_t high, float* spare) const {
        return are_whole ? at(a.keys, a.key_dim, kv, piece)
                         : gather(a.keys, a.key_dim, kv, piece, low, high, spare);
    }
    // Likewise: [kPiece, Dv].
    const float* values(int64_t kv, int64_t piece, int64_t low, int64_t high, float* spare) const {
        return are_whole ? at(a.values, a.value_dim, kv, piece)
                         : gather(a.values, a.value_dim, kv, piece, low, high, spare);
    }

    Ahead ask(int64_t kv, int64_t piece) const {
        if (!are_whole) return {};
        return {at(a.keys, a.key_dim, kv, piece), kPiece * a.key_dim,
                at(a.values, a.value_dim, kv, piece), kPiece * a.value_dim};
    }

private:
    const float* at(const float* rows, int64_t width, int64_t kv, int64_t position) const {
        const int64_t block = table[position / a.page_size];
        return rows +
               ((block * a.kv_heads + kv) * a.page_size + position % a.page_size) * width;
    }

    const float* gather(const float* rows, int64_t width, int64_t kv, int64_t piece, int64_t low,
                        int64_t high, float* to) const {
        for (int64_t j = low; j < high; ++j)
            std::memcpy(to + j * width, at(rows, width, kv, piece + j), width * sizeof(float));
        return to;
    }

    const Attention& a;
    const int32_t* table;
    const bool are_whole;
};

}  // namespace
}  // namespace slipstream
