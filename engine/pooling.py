"""One vector for a whole prompt, from the last hidden states of its tokens.

A prompt is computed in pieces, so its vector is gathered over steps: `PooledStates` is a request's
own, `PooledRows` what one step adds. Engine thread only. Sums are fp64, so that where a prompt was
cut shows in no digit of the result, which is fp32.
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray


class Pooling(Enum):
    """Which hidden states make the vector: the mean of all, or that of the last token."""

    MEAN = "mean"
    LAST = "last"


@dataclass(slots=True)
class PooledStates:
    """What a request has gathered.

    Attributes:
        kind: Which hidden states count.
        num_tokens: Prompt tokens that have been seen.
        total: [H] fp64, the sum over those that count; None before the first.
    """

    kind: Pooling
    num_tokens: int = 0
    total: NDArray[np.float64] | None = None

    def add(self, rows: "PooledRows") -> None:
        """Take what a step has computed."""
        assert rows.total is not None, "the forward did not look at the hidden states"
        self.num_tokens = rows.last_position
        if self.total is None or self.kind is Pooling.LAST:
            self.total = rows.total
        else:
            self.total = self.total + rows.total

    def forget(self) -> None:
        """Begin again."""
        self.num_tokens, self.total = 0, None

    def vector(self) -> list[float] | None:
        """Return the [H] vector as far as it is known, in fp32; None if nothing is."""
        if self.total is None:
            return None
        count = self.num_tokens if self.kind is Pooling.MEAN else 1
        vector: list[float] = (self.total / count).astype(np.float32).tolist()
        return vector


@dataclass(slots=True)
class PooledRows:
    """The rows of one step that belong to one prompt.

    Attributes:
        request_id: Whose prompt it is.
        kind: Which hidden states count.
        start: The first row of the step's T tokens.
        stop: The row after the last.
        last_position: Prompt tokens that have been seen after this step.
        total: [H] fp64, filled in by the forward.
    """

    request_id: str
    kind: Pooling
    start: int
    stop: int
    last_position: int
    total: NDArray[np.float64] | None = field(default=None)

    def read(self, hidden: torch.Tensor) -> None:
        """Take the rows from the last hidden states, [T, H] of any float dtype."""
        start = self.start if self.kind is Pooling.MEAN else self.stop - 1
        rows = hidden[start : self.stop].detach().to(torch.float64)
        self.total = rows.sum(dim=0).cpu().numpy()
