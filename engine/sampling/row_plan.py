"""What one row of logits needs in this step, worked out on the host.

A plan is made per request and holds everything that depends on it alone, so that whatever is
wrong with one request shows here, before rows meet in a tensor. Engine thread. Must never look
at logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.requests import RequestState
from engine.sampling.grammar_masks import Mask
from engine.sampling.history import HistoryCache, TokenHistory
from engine.sampling.parameters import SamplingParams


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How one row becomes a token.

    Attributes:
        row: Its place in the batch's logits.
        params: The request's parameters.
        uniform: The request's random number at this position, in [0, 1).
        bias_ids: [B] int64, tokens with a bias.
        bias_values: [B] float32.
        history: Tokens seen so far, or None without penalties.
        blocked_ids: [M] int64, tokens that may not be drawn yet.
        token_ids: [L] int64, all tokens so far, or None without processors.
        forbidden: [V] bool, tokens that the grammar forbids, or None without one.
    """

    row: int
    params: SamplingParams
    uniform: float
    bias_ids: npt.NDArray[np.int64]
    bias_values: npt.NDArray[np.float32]
    history: TokenHistory | None
    blocked_ids: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int64] | None = None
    forbidden: npt.NDArray[np.bool_] | None = None

    @property
    def edits_logits(self) -> bool:
        """Whether the row differs from what the model computed before temperature."""
        return (
            self.history is not None
            or len(self.bias_ids) > 0
            or len(self.blocked_ids) > 0
            or self.forbidden is not None
            or (self.params.processors is not None and self.params.processors.edits)
        )

    @property
    def has_shaping_processors(self) -> bool:
        """Whether the row's distribution is cut by more than the sampler's own steps."""
        return self.params.processors is not None and self.params.processors.shapes


_NO_IDS = np.empty(0, dtype=np.int64)
_NO_VALUES = np.empty(0, dtype=np.float32)


def must_continue(request: RequestState) -> bool:
    """Return whether the answer is too short to end with the next token."""
    return len(request.generated_tokens) < request.params.min_new_tokens


def is_plain_greedy(request: RequestState) -> bool:
    """Return whether the next token is the argmax of the row as the model computed it."""
    return request.params.is_plain and not must_continue(request)


@dataclass(frozen=True, slots=True)
class RowInputs:
    """What a plan needs besides its request.

    Attributes:
        uniform: The request's random number at this position.
        histories: What requests have seen.
        vocab_size: Width of the row.
        mask: What the request's grammar says, or None without one.
    """

    uniform: float
    histories: HistoryCache
    vocab_size: int
    mask: Mask | None = None


def plan_row(row: int, request: RequestState, inputs: RowInputs) -> RowPlan:
    """Work out one row.

    Raises:
        ValueError: A token id lies outside the row, or a bias is not finite.
        TypeError: A token id or bias is no number.
    """
    params, vocab_size, mask = request.params, inputs.vocab_size, inputs.mask
    bias_ids, bias_values = _NO_IDS, _NO_VALUES
    if params.logit_bias:
        bias_ids = _as_ids(list(params.logit_bias), vocab_size)
        bias_values = np.array(list(params.logit_bias.values()), dtype=np.float32)
        if not np.isfinite(bias_values).all():
            raise ValueError("logit_bias has values that are not finite")
    blocked_ids = _NO_IDS
    # Where a grammar has come to its end there is nothing to continue with.
    if must_continue(request) and not (mask is not None and mask.must_end):
        blocked_ids = _as_ids([*params.ending_token_ids], vocab_size)
    histories = inputs.histories
    return RowPlan(
        row=row,
        params=params,
        uniform=inputs.uniform,
        bias_ids=bias_ids,
        bias_values=bias_values,
        history=histories.get(request, vocab_size) if params.has_penalties else None,
        blocked_ids=blocked_ids,
        token_ids=None if params.processors is None else histories.sequence(request),
        forbidden=None if mask is None else mask.blocked,
    )


def _as_ids(token_ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return token ids as an array once they are known to lie inside a row."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise ValueError(f"token ids lie outside 0 to {vocab_size - 1}")
    return np.array(token_ids, dtype=np.int64)
