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
    """

    row: int
    params: SamplingParams
    uniform: float
    bias_ids: npt.NDArray[np.int64]
    bias_values: npt.NDArray[np.float32]
    history: TokenHistory | None
    blocked_ids: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int64] | None = None

    @property
    def edits_logits(self) -> bool:
        """Whether the row differs from what the model computed before temperature."""
        return (
            self.history is not None
            or len(self.bias_ids) > 0
            or len(self.blocked_ids) > 0
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
    params = request.params
    return not (
        params.temperature != 0.0
        or params.logit_bias
        or params.has_penalties
        or params.processors is not None
        or must_continue(request)
    )


def plan_row(
    row: int, request: RequestState, uniform: float, histories: HistoryCache, vocab_size: int
) -> RowPlan:
    """Work out one row.

    Raises:
        ValueError: A token id lies outside the row, or a bias is not finite.
        TypeError: A token id or bias is no number.
    """
    params = request.params
    bias_ids, bias_values = _NO_IDS, _NO_VALUES
    if params.logit_bias:
        bias_ids = _as_ids(list(params.logit_bias), vocab_size)
        bias_values = np.array(list(params.logit_bias.values()), dtype=np.float32)
        if not np.isfinite(bias_values).all():
            raise ValueError("logit_bias has values that are not finite")
    blocked_ids = _NO_IDS
    if must_continue(request):
        blocked_ids = _as_ids([*params.eos_token_ids | params.stop_token_ids], vocab_size)
    history = histories.get(request, vocab_size) if params.has_penalties else None
    token_ids = None if params.processors is None else histories.sequence(request)
    return RowPlan(row, params, uniform, bias_ids, bias_values, history, blocked_ids, token_ids)


def _as_ids(token_ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return token ids as an array once they are known to lie inside a row."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise ValueError(f"token ids lie outside 0 to {vocab_size - 1}")
    return np.array(token_ids, dtype=np.int64)
