"""Random steps over block tables, and the answer written down as it stands in the formula."""

import random
from dataclasses import dataclass, replace

import torch

from engine.attention.interface import AttentionBackend, AttentionOptions
from engine.batch import BatchInputs
from engine.cache.row_formats import decode_rows, encode_rows


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an attention layer.

    Attributes:
        num_heads: Query heads H.
        num_kv_heads: Key and value heads Hkv.
        key_dim: Width of a query and a key.
        value_dim: Width of a value.
    """

    num_heads: int = 4
    num_kv_heads: int = 2
    key_dim: int = 8
    value_dim: int = 8


@dataclass(frozen=True, slots=True)
class Step:
    """What one layer is given in one step.

    Attributes:
        inputs: The packed batch; only what attention reads is filled.
        query: [T, H, D].
        keys: [num_blocks, page_size, Hkv, W] rows; what no request holds would show.
        values: [num_blocks, page_size, Hkv, Wv].
        page_size: Positions in a block.
    """

    inputs: BatchInputs
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    page_size: int

    def attend(self, backend: AttentionBackend, options: AttentionOptions) -> torch.Tensor:
        """Run a backend: [T, H, Dv]."""
        backend.plan(self.inputs)
        return backend.attend(self.query, self.keys, self.values, options)

    def stored_as(self, dtype: torch.dtype) -> "Step":
        """Return the same step over a cache that keeps its rows in another format."""
        return replace(
            self, keys=encode_rows(self.keys, dtype), values=encode_rows(self.values, dtype)
        )

    def heads_first(self) -> "Step":
        """Return the same step with blocks in whose memory heads come before positions."""
        return replace(self, keys=_heads_first(self.keys), values=_heads_first(self.values))

    def to(self, device: str, dtype: torch.dtype) -> "Step":
        """Return the same step elsewhere; block tables stay on the host."""
        return replace(
            self,
            inputs=replace(self.inputs, slots=self.inputs.slots.to(device)),
            query=self.query.to(device, dtype),
            keys=self.keys.to(device, dtype),
            values=self.values.to(device, dtype),
        )


def make_step(
    requests: list[tuple[int, int]],
    shape: Shape,
    page_size: int,
    *,
    scattered: bool,
    seed: int = 0,
) -> Step:
    """Return a step with random contents.

    Args:
        requests: (past, new) positions of each request.
        shape: The layer.
        page_size: Positions in a block.
        scattered: Shuffle the blocks; else each request's blocks are neighbours.
        seed: Of the contents and the shuffling.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = [past + new for past, new in requests]
    counts = [-(-length // page_size) for length in lengths]
    blocks = list(range(1, 1 + sum(counts)))
    if scattered:
        random.Random(seed).shuffle(blocks)
    table = torch.zeros(len(requests), max(counts), dtype=torch.int32)
    starts, slots, taken = [0], [], 0
    for row, ((past, new), count) in enumerate(zip(requests, counts, strict=True)):
        own = blocks[taken : taken + count]
        taken += count
        table[row, :count] = torch.tensor(own, dtype=torch.int32)
        starts.append(starts[-1] + new)
        slots += [own[p // page_size] * page_size + p % page_size for p in range(past, past + new)]
    pages = (sum(counts) + 2, page_size, shape.num_kv_heads)
    none = torch.empty(0, dtype=torch.int64)
    return Step(
        BatchInputs(none, none, torch.tensor(slots), table, starts, lengths, none),
        torch.randn(starts[-1], shape.num_heads, shape.key_dim, generator=generator),
        torch.randn(*pages, shape.key_dim, generator=generator),
        torch.randn(*pages, shape.value_dim, generator=generator),
        page_size,
    )


def _heads_first(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.transpose(1, 2).contiguous().transpose(1, 2)


def naive_attention(step: Step, options: AttentionOptions) -> torch.Tensor:
    """Attend token by token, head by head, key by key, in double precision: [T, H, Dv].

    Over what the rows of the cache mean.
    """
    num_heads, num_kv_heads = step.query.shape[1], step.keys.shape[2]
    keys, values = (
        decode_rows(cached.flatten(0, 1), torch.float64) for cached in (step.keys, step.values)
    )
    result = torch.empty(len(step.query), num_heads, values.shape[-1], dtype=torch.float64)
    starts = step.inputs.query_starts
    for row, length in enumerate(step.inputs.context_lengths):
        table = step.inputs.block_table[row].tolist()
        size = step.page_size
        slots = [table[p // size] * size + p % size for p in range(length)]
        past = length - (starts[row + 1] - starts[row])
        for token in range(starts[row], starts[row + 1]):
            position = past + token - starts[row]
            first = 0
            if options.sliding_window is not None:
                first = max(0, position - options.sliding_window + 1)
            seen = slots[first : position + 1]
            for head in range(num_heads):
                kv_head = head * num_kv_heads // num_heads
                weights = _weights(
                    step.query[token, head].double(),
                    keys[seen, kv_head],
                    head,
                    options,
                )
                result[token, head] = weights @ values[seen, kv_head]
    return result


def _weights(
    query: torch.Tensor, keys: torch.Tensor, head: int, options: AttentionOptions
) -> torch.Tensor:
    scores = keys @ query * options.scaling
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    exponentials = scores.exp()
    total = exponentials.sum()
    if options.sinks is not None:
        total = total + options.sinks[head].double().exp()
    return exponentials / total
