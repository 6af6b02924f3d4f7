"""Attention in plain torch, one request at a time: the oracle, and the fallback.

Engine thread only. Works on any device and dtype. Each request's queries meet only that request's
keys, so there is no mask across requests, and a request's numbers do not depend on its neighbours.
Keys whose blocks lie next to each other are read in place, others are gathered.

    queries of one request            its cached positions
    [first_query, first_query + q)    |lo ......... past ... context|      q = context - past
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

from engine.attention.interface import AttentionOptions
from engine.batch import BatchInputs
from engine.cache.row_formats import decode_rows, head_width


@dataclass(slots=True)
class _Span:
    """One request's part of a step.

    Attributes:
        first_query: Row of its first query.
        num_queries: Its queries in this step.
        num_context: Its cached positions, this step's included.
        first_block: Its first block if its blocks are neighbours, else None.
        blocks: [num_blocks] int64, its blocks otherwise.
        page_size: Positions in a block.
        masks: Masks by sliding window, built when first needed.
    """

    first_query: int
    num_queries: int
    num_context: int
    first_block: int | None
    blocks: torch.Tensor
    page_size: int
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def first_visible(self, window: int | None) -> int:
        """Return the first position that any of the queries sees."""
        if window is None:
            return 0
        return max(0, self.num_context - self.num_queries - window + 1)

    def visible(self, cached: torch.Tensor, window: int | None) -> torch.Tensor:
        """Return [L, Hkv, W], the rows of `cached` that the queries may see."""
        low = self.first_visible(window)
        first, last = low // self.page_size, -(-self.num_context // self.page_size)
        if self.first_block is not None:
            pages = cached[self.first_block + first : self.first_block + last]
        else:
            pages = cached.index_select(0, self.blocks[first:])
        begin = first * self.page_size
        return pages.flatten(0, 1)[low - begin : self.num_context - begin]

    def mask(self, window: int | None, device: torch.device) -> torch.Tensor:
        """Return [q, L] bool, True where a query sees a key; kept for the step's other layers."""
        mask = self.masks.get(window)
        if mask is None:
            past = self.num_context - self.num_queries
            queries = torch.arange(past, self.num_context, device=device)[:, None]
            keys = torch.arange(self.first_visible(window), self.num_context, device=device)[None]
            mask = keys <= queries
            if window is not None:
                mask &= keys > queries - window
            self.masks[window] = mask
        return mask


class TorchReferenceBackend:
    """`AttentionBackend` in plain torch."""

    def __init__(self, page_size: int) -> None:
        """Remember the page size, in positions."""
        self._page_size = page_size
        self._spans: list[_Span] = []

    def plan(self, inputs: BatchInputs) -> None:
        """Find each request's rows and where its keys lie."""
        device = inputs.slots.device
        self._spans = []
        starts, size = inputs.query_starts, self._page_size
        table = inputs.block_table.numpy()
        for row, num_context in enumerate(inputs.context_lengths):
            blocks = table[row, : -(-num_context // size)].astype(np.int64)
            is_run = not (np.diff(blocks) != 1).any()
            first_block = int(blocks[0]) if is_run else None
            num_queries = starts[row + 1] - starts[row]
            self._spans.append(
                _Span(
                    starts[row],
                    num_queries,
                    num_context,
                    first_block,
                    torch.empty(0) if is_run else torch.from_numpy(blocks).to(device),
                    size,
                )
            )

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        num_heads, num_kv_heads = query.shape[1], keys.shape[2]
        output = query.new_empty(query.shape[0], num_heads, head_width(values))
        for span in self._spans:
            rows = slice(span.first_query, span.first_query + span.num_queries)
            # [Hkv, G, q, D]: heads that share keys stand together, so keys are never repeated.
            grouped = (
                query[rows]
                .view(span.num_queries, num_kv_heads, -1, query.shape[2])
                .permute(1, 2, 0, 3)
            )
            span_keys, span_values = (
                decode_rows(span.visible(cached, options.sliding_window), query.dtype)
                for cached in (keys, values)
            )
            result = _attend_span(
                grouped, span_keys.permute(1, 0, 2), span_values.permute(1, 0, 2), span, options
            )
            output[rows] = result.permute(2, 0, 1, 3).flatten(1, 2)
        return output


def _attend_span(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: _Span,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend for one request: query [Hkv, G, q, D], keys [Hkv, L, D] -> [Hkv, G, q, Dv]."""
    window = options.sliding_window
    if options.softcap is not None or options.sinks is not None:
        mask = None if span.num_queries == 1 else span.mask(window, query.device)
        return _attend_explicit(query, keys, values, mask, options)
    if span.num_queries == 1:
        # One query sees every key left to it, so its group stands in for the query dimension.
        packed = query.transpose(1, 2)  # [Hkv, 1, G, D]
        return F.scaled_dot_product_attention(
            packed, keys[:, None], values[:, None], scale=options.scaling
        ).transpose(1, 2)
    num_groups = query.shape[1]
    keys = keys[:, None].expand(-1, num_groups, -1, -1)
    values = values[:, None].expand(-1, num_groups, -1, -1)
    starts_here = span.num_queries == span.num_context
    is_causal = starts_here and (window is None or span.num_context <= window)
    return F.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=None if is_causal else span.mask(window, query.device),
        is_causal=is_causal,
        scale=options.scaling,
    )


def _attend_explicit(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend with soft-capped scores and sinks, which the fused function does not know."""
    scores = query @ keys[:, None].transpose(-1, -2) * options.scaling  # [Hkv, G, q, L]
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if options.sinks is not None:
        sinks = options.sinks.view(*query.shape[:2], 1, 1).expand(-1, -1, query.shape[2], 1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = torch.softmax(scores.float(), dim=-1).to(query.dtype)
    if options.sinks is not None:
        weights = weights[..., :-1]
    return weights @ values[:, None]
