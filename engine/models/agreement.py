"""Whether a replacement gives what its module gives, on random inputs.

Runs when a model is taken over.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.models.replacement import Replacement
from engine.models.tolerance import tolerance_of

CHECK_TOKENS = 5
# Inputs of the size that is usual after a norm, and so large that whatever limits values shows.
CHECK_MAGNITUDES = (1.0, 100.0)
# Of a norm also what is so small that another epsilon shows.
NORM_MAGNITUDES = (1e-3, *CHECK_MAGNITUDES)


class _Outcome:
    """Whether the code of a with block raised."""

    failed = False


@contextmanager
def no_error() -> Iterator[_Outcome]:
    """Swallow what a module's forward raises on arguments it was not made for."""
    outcome = _Outcome()
    try:
        yield outcome
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        outcome.failed = True


def runs(compute: Callable[[], torch.Tensor]) -> bool:
    """Return whether a computation takes its arguments."""
    with no_error() as outcome:
        compute()
    return not outcome.failed


def agrees(
    candidate: Replacement,
    num_inputs: int,
    compute: Callable[[torch.Tensor], torch.Tensor],
    magnitudes: Sequence[float] = CHECK_MAGNITUDES,
) -> bool:
    """Return whether a computation on [T, num_inputs] is the same with the replacement."""
    sample = random_rows(CHECK_TOKENS, num_inputs)
    return all(_agrees_on(candidate, sample * magnitude, compute) for magnitude in magnitudes)


def _agrees_on(
    candidate: Replacement, sample: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    with no_error():
        own = compute(sample)
        if candidate.refresh() is None:
            return False
        try:
            candidate.put_in_place()
            ours = compute(sample)
        finally:
            candidate.take_away()
        if own.shape == ours.shape:
            scale = max(1.0, float(own.abs().max()))
            return bool((own - ours).abs().max() <= tolerance_of(candidate.module) * scale)
    return False


def random_rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return the same random numbers each time, drawn from no one's generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
