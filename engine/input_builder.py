"""Turns a scheduled batch into the tensors of one forward.

Engine thread only. A decoding row costs a few Python operations, a prefilling row a few numpy ones;
what grows with the length of a request's past is the copy of its block table, from array to array.
A batch that goes on from the one before it only moves that one's arrays on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import BatchInputs, ScheduledBatch, ScheduledRequest
from engine.pooling import PooledRows


@dataclass(slots=True)
class _Layout:
    """A batch as arrays; T tokens of R requests.

    Attributes:
        scheduled: The requests and their shares.
        tokens: [T] int64, their new tokens, one request's after another's.
        positions: [T] int64, where each stands in its request.
        slots: [T] int64, where each one's key and value go.
        block_table: [R, B] int32.
        query_starts: R + 1 offsets into T.
        sample_indices: [N + P + D] int64.
        tensors: The arrays but query_starts as tensors, once they are made.
    """

    scheduled: list[ScheduledRequest]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    block_table: NDArray[np.int32]
    query_starts: list[int]
    sample_indices: NDArray[np.int64]
    tensors: tuple[torch.Tensor, ...] | None = None


class InputBuilder:
    """Builds `BatchInputs`."""

    def __init__(self, page_size: int, device: torch.device, table_width: int = 0) -> None:
        """Remember where the tensors go.

        Args:
            page_size: Positions in a block.
            device: The model's device.
            table_width: Least width of the block table of a batch in which every request computes
                one token, so that such batches have one shape.
        """
        self._page_size = page_size
        self._device = device
        self._table_width = table_width
        self._last: _Layout | None = None

    def build(self, batch: ScheduledBatch) -> BatchInputs:
        """Lay the requests' new tokens one after another.

        The tensors of a batch that continues another take the other's place in memory.
        """
        last = self._last
        if batch.continues and last is not None and last.scheduled is batch.scheduled:
            self._move_on(last)
            return self._inputs(last, (last.positions + 1).tolist())
        last = self._last = self._lay_out(batch)
        lengths = [item.first_position + item.num_rows for item in batch.scheduled]
        return self._inputs(last, lengths, _pooled_rows(batch, last.query_starts))

    def _inputs(
        self, layout: _Layout, context_lengths: list[int], pooled: tuple[PooledRows, ...] = ()
    ) -> BatchInputs:
        tensors = layout.tensors
        if tensors is None:
            tensors = (
                self._on_device(layout.tokens)[None],
                self._on_device(layout.positions)[None],
                self._on_device(layout.slots),
                torch.from_numpy(layout.block_table),
                self._on_device(layout.sample_indices),
            )
            # On a CPU they are the arrays themselves, and move on with them.
            layout.tensors = tensors if self._device.type == "cpu" else None
        input_ids, position_ids, slots, block_table, sample_indices = tensors
        return BatchInputs(
            input_ids,
            position_ids,
            slots,
            block_table,
            layout.query_starts,
            context_lengths,
            sample_indices,
            pooled,
        )

    def _move_on(self, last: _Layout) -> None:
        """Move each row on by one position."""
        last.tokens[:] = [item.request.generated_tokens[-1] for item in last.scheduled]
        last.positions += 1
        last.slots += 1
        for row in np.flatnonzero(last.positions % self._page_size == 0).tolist():
            block_ids = last.scheduled[row].request.block_ids
            page = len(block_ids) - 1
            if page >= last.block_table.shape[1]:
                last.block_table = np.pad(last.block_table, ((0, 0), (0, 1)))
                last.tensors = None
            last.block_table[row, page] = block_ids[page]
            last.slots[row] = block_ids[page] * self._page_size

    def _lay_out(self, batch: ScheduledBatch) -> _Layout:
        num_tokens = batch.num_tokens + batch.num_drafted
        tokens = np.empty(num_tokens, dtype=np.int64)
        positions = np.empty(num_tokens, dtype=np.int64)
        slots = np.empty(num_tokens, dtype=np.int64)
        block_table = np.zeros((len(batch.scheduled), self._width_for(batch)), dtype=np.int32)
        query_starts = [0]
        sample_indices = []
        for row, item in enumerate(batch.scheduled):
            request = item.request
            block_ids = request.block_ids
            block_table[row, : len(block_ids)] = request.block_row()
            start = query_starts[-1]
            stop = start + item.num_rows
            first = item.first_position
            if item.num_rows == 1:
                tokens[start] = request.token_at(first)
                positions[start] = first
                page, offset = divmod(first, self._page_size)
                slots[start] = block_ids[page] * self._page_size + offset
            else:
                guessed = start + item.num_new_tokens
                tokens[start:guessed] = request.tokens_between(first, item.num_context_tokens)
                tokens[guessed:stop] = item.draft
                span = np.arange(first, first + item.num_rows)
                positions[start:stop] = span
                pages, offsets = np.divmod(span, self._page_size)
                slots[start:stop] = block_table[row, pages] * self._page_size + offsets
            query_starts.append(stop)
            if item.samples:
                sample_indices.append(start + item.num_new_tokens - 1)
        sample_indices += _prompt_indices(batch, query_starts)
        if batch.num_drafted:
            sample_indices += _draft_indices(batch, query_starts)
        indices = np.array(sample_indices, dtype=np.int64)
        return _Layout(
            batch.scheduled, tokens, positions, slots, block_table, query_starts, indices
        )

    def _width_for(self, batch: ScheduledBatch) -> int:
        widest = max(len(item.request.block_ids) for item in batch.scheduled)
        only_rows = batch.num_tokens + batch.num_drafted == len(batch.scheduled)
        return max(widest, self._table_width) if only_rows else widest

    def _on_device(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _prompt_indices(batch: ScheduledBatch, query_starts: Sequence[int]) -> list[int]:
    """Return the rows of the tokens whose logits tell of a prompt that is to be reported on."""
    return [
        start + position - item.first_position
        for item, start in zip(batch.scheduled, query_starts, strict=False)
        if item.request.prompt_logprobs is not None
        for position in item.prompt_rows
    ]


def _draft_indices(batch: ScheduledBatch, query_starts: Sequence[int]) -> list[int]:
    """Return the rows of the tokens that were guessed."""
    return [
        row
        for item, stop in zip(batch.scheduled, query_starts[1:], strict=True)
        for row in range(stop - len(item.draft), stop)
    ]


def _pooled_rows(batch: ScheduledBatch, query_starts: Sequence[int]) -> tuple[PooledRows, ...]:
    """Return the rows of prompts that are to become vectors."""
    wanted = (
        item.pooled_rows(start)
        for item, start in zip(batch.scheduled, query_starts, strict=False)
        if item.request.pooling is not None
    )
    return tuple(rows for rows in wanted if rows is not None)
