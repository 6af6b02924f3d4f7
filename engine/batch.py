"""The values that flow through one step, in the order in which they appear.

scheduler -> ScheduledBatch -> input_builder -> BatchInputs -> runner -> logits -> sampler ->
SampledTokens -> scheduler. All of them live for one step and belong to the engine thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.pooling import PooledRows, Pooling
from engine.requests import RequestState, TokenLogprobs


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The first `num_slots` slots of one block, to be copied into another."""

    source: int
    destination: int
    num_slots: int


@dataclass(slots=True)
class ScheduledRequest:
    """One request's share of a step, from where the request stands until the step is taken in.

    Attributes:
        request: The request.
        num_new_tokens: Tokens computed in this step, at least 1.
        samples: Whether these are the last missing ones, so that a token is drawn.
        draft: Guesses of the tokens after these, computed with them, see `speculation`.
    """

    request: RequestState
    num_new_tokens: int
    samples: bool
    draft: Sequence[int] = ()

    @property
    def first_position(self) -> int:
        """Position of the first token computed in this step."""
        return self.request.num_computed

    @property
    def num_rows(self) -> int:
        """Rows of the step that are this request's, guesses included."""
        return self.num_new_tokens + len(self.draft)

    @property
    def num_context_tokens(self) -> int:
        """Positions in the cache once this step has run; what was only guessed is none."""
        return self.first_position + self.num_new_tokens

    @property
    def prompt_rows(self) -> range:
        """Positions of this step whose logits tell of prompt tokens; for most requests empty."""
        request = self.request
        if not request.needs_prompt_logits:
            return range(0)
        known = len(request.prompt_logprobs or ())  # the logits at p tell of the token at p + 1
        stop = min(self.num_context_tokens, len(request.prompt_ids) - 1)
        return range(max(self.first_position, known - 1), stop)

    def pooled_rows(self, row: int) -> PooledRows | None:
        """Return the prompt tokens of this step whose hidden states are wanted, if any are.

        Args:
            row: Where the share begins among the T tokens of the step.
        """
        pooling, num_prompt = self.request.pooling, len(self.request.prompt_ids)
        if pooling is None:
            return None
        # What was computed before a preemption has been counted.
        first = max(self.first_position, pooling.num_tokens)
        last = min(self.num_context_tokens, num_prompt)
        if first >= last or (pooling.kind is Pooling.LAST and last < num_prompt):
            return None
        start, stop = row + first - self.first_position, row + last - self.first_position
        return PooledRows(self.request.request_id, pooling.kind, start, stop, last)


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What one forward computes.

    Attributes:
        scheduled: The requests and their shares, in batch order.
        num_tokens: Sum of their new tokens.
        num_started: Requests that had never been scheduled before and held a place in the queue.
        block_copies: What to copy inside the cache, in this order, before the forward.
        num_drafted: Tokens that are computed besides, because they were guessed.
        continues: Whether `scheduled` is the very list of the step before, each request one token
            further on. Whoever has laid out that step can go on from it.
    """

    scheduled: list[ScheduledRequest]
    num_tokens: int
    num_started: int = 0
    block_copies: list[BlockCopy] = field(default_factory=list)
    num_drafted: int = 0
    continues: bool = False

    @property
    def is_decode(self) -> bool:
        """Whether every request computes its one missing token."""
        return self.num_tokens == len(self.scheduled) and all(
            item.samples for item in self.scheduled
        )

    def without_drafts(self) -> "ScheduledBatch":
        """Return the batch without guesses; what precedes the forward has been done."""
        scheduled = [replace(item, draft=()) for item in self.scheduled]
        return ScheduledBatch(scheduled, self.num_tokens)

    def halves(self) -> "tuple[ScheduledBatch, ScheduledBatch]":
        """Split a batch without drafts in two; what precedes the forward has been done."""
        middle = len(self.scheduled) // 2
        first, second = self.scheduled[:middle], self.scheduled[middle:]
        return (
            ScheduledBatch(first, sum(item.num_new_tokens for item in first)),
            ScheduledBatch(second, sum(item.num_new_tokens for item in second)),
        )

    @property
    def requests(self) -> list[RequestState]:
        """All requests of the batch, in its order."""
        return [item.request for item in self.scheduled]

    @property
    def sampling(self) -> list[RequestState]:
        """The requests that get a token in this step, in batch order."""
        return [item.request for item in self.scheduled if item.samples]


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The tensors of one forward; T tokens of R requests, N of which sample, D of T guessed.

    Attributes:
        input_ids: [1, T] int64.
        position_ids: [1, T] int64.
        slots: [T] int64, where each token's key and value go.
        block_table: [R, B] int32, rows padded with 0.
        query_starts: R + 1 offsets into T, where each request's tokens begin.
        context_lengths: R lengths, each including this step's tokens.
        sample_indices: [N + P + D] int64, rows of T whose logits are wanted: first those of the
            requests that sample, then those that tell of prompt tokens, then those of guesses.
        pooled: Rows of T whose hidden states are wanted; the forward fills them in.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor
    query_starts: list[int]
    context_lengths: list[int]
    sample_indices: torch.Tensor
    pooled: tuple[PooledRows, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What the sampler drew for the N sampling requests of a step, in their order.

    Attributes:
        token_ids: N token ids; the value in a failed row has no meaning.
        logprobs: N log-probabilities of these under the distribution they were drawn from (after
            all processors), or [] unless return_logprobs is configured.
        token_logprobs: N entries, None where the request did not ask for top_logprobs; or [] if
            none did.
        errors: Row -> what went wrong in that row; the other rows are sound.
        prompt_logprobs: Request id -> entries for its next prompt tokens, where asked for.
        is_plain: Whether there is nothing but the token ids, one for each request.
        pooled: What the forward said of prompts that are to become vectors.
        drafted: [D, V] logits of the guessed tokens, nothing drawn from them; None without any.
    """

    token_ids: list[int]
    logprobs: list[float]
    token_logprobs: list[TokenLogprobs | None]
    errors: dict[int, Exception]
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    is_plain: bool = False
    pooled: dict[str, PooledRows] = field(default_factory=dict)
    drafted: torch.Tensor | None = None
