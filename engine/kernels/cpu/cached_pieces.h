// Where a request's pieces lie in the paged cache, and how the next one is asked for.
#pragma once

#include <optional>

#include "attention.h"
#include "pieces.h"
#include "tile.h"

namespace slipstream {
namespace {

// Asks for what is read next, a little at each call, so that reading goes on while numbers are
// multiplied. Asking for much at once holds up the loads behind it, or is not heard; asking into the
// first cache drives out what is in use.
class Ahead {
public:
    Ahead() = default;
    Ahead(const uint8_t* first, int64_t first_bytes, const uint8_t* second, int64_t second_bytes)
        : at(first), end(first + first_bytes), then(second), then_end(second + second_bytes) {}

    void ask(int64_t lines) {
        if (at >= end) {
            if (!then) return;
            at = then, end = then_end, then = nullptr;
        }
        for (; lines > 0; --lines, at += kLineBytes) __builtin_prefetch(at, 0, 2);
    }

private:
    const uint8_t* at = nullptr;
    const uint8_t* end = nullptr;
    const uint8_t* then = nullptr;
    const uint8_t* then_end = nullptr;
};

// A piece of a key head.
struct Place {
    int64_t kv, position;
};

// A request's keys and values. A piece that lies in one block is read where it is; pages that are no
// multiple of a piece have others, which are copied together.
class CachedPieces {
public:
    CachedPieces(const Attention& attention, int64_t request)
        : a(attention),
          key_bytes(kv_row_bytes(a.kv_format, a.key_dim)),
          value_bytes(kv_row_bytes(a.kv_format, a.value_dim)),
          are_whole(a.page_size % kPiece == 0),
          table(a.block_table + request * a.table_width) {}

    // The keys of the piece that begins at a position: kPiece rows. Those outside of [low, high) may
    // be anything. `spare` holds as many bytes.
    const uint8_t* keys(int64_t kv, int64_t piece, int64_t low, int64_t high,
                        uint8_t* spare) const {
        return are_whole ? at(a.keys, key_bytes, kv, piece)
                         : gather(a.keys, key_bytes, kv, piece, low, high, spare);
    }
    // Likewise.
    const uint8_t* values(int64_t kv, int64_t piece, int64_t low, int64_t high,
                          uint8_t* spare) const {
        return are_whole ? at(a.values, value_bytes, kv, piece)
                         : gather(a.values, value_bytes, kv, piece, low, high, spare);
    }

    // The keys and values of the next piece, if there is one.
    Ahead ask_next(std::optional<Place> next) const {
        if (!are_whole || !next) return {};
        return {at(a.keys, key_bytes, next->kv, next->position), kPiece * key_bytes,
                at(a.values, value_bytes, next->kv, next->position), kPiece * value_bytes};
    }

    // The values of a piece, and the keys of the next, if there is one.
    Ahead ask_between(Place piece, std::optional<Place> next) const {
        if (!are_whole) return {};
        const uint8_t* values = at(a.values, value_bytes, piece.kv, piece.position);
        const uint8_t* keys = next ? at(a.keys, key_bytes, next->kv, next->position) : nullptr;
        return {values, kPiece * value_bytes, keys, kPiece * key_bytes};
    }

private:
    const Attention& a;

public:
    const int64_t key_bytes, value_bytes;  // of a row
    const bool are_whole;

private:
    const uint8_t* at(const CachedRows& cached, int64_t row_bytes, int64_t kv,
                      int64_t position) const {
        return cached.at(table[position / a.page_size], kv, position % a.page_size, row_bytes);
    }

    const uint8_t* gather(const CachedRows& cached, int64_t row_bytes, int64_t kv, int64_t piece,
                          int64_t low, int64_t high, uint8_t* to) const {
        for (int64_t j = low; j < high; ++j)
            std::memcpy(to + j * row_bytes, at(cached, row_bytes, kv, piece + j), row_bytes);
        return to;
    }

    const int32_t* const table;
};

}  // namespace
}  // namespace slipstream
