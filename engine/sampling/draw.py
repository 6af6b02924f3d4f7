"""Picking one token per row, by maximum or by chance.

Pure functions on the engine thread; each row's pick depends on that row and its number alone.
Must never return a token of probability 0.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch


def most_likely(scores: torch.Tensor) -> torch.Tensor:
    """Return [n] int64, the index of each [n, V] row's maximum, the lowest one of equals.

    A row with a NaN yields the index of a NaN.
    """
    if scores.device.type == "cpu":  # numpy's is vectorised: 7 times faster at [32, 49152]
        return torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


def most_likely_ids(scores: torch.Tensor) -> list[int] | None:
    """Return the index of each [n, V] row's maximum; None if one of them is not finite."""
    if scores.device.type == "cpu":
        rows = scores.numpy()
        places = rows.argmax(axis=-1)
        ids: list[int] = places.tolist()
        return ids if np.isfinite(rows[np.arange(len(rows)), places]).all() else None
    best = most_likely(scores)
    peaks = scores.gather(1, best[:, None])[:, 0]
    # fp64 holds every token id exactly, so that one transfer carries both.
    indices, values = torch.stack((best.to(torch.float64), peaks.to(torch.float64))).tolist()
    return [int(index) for index in indices] if all(map(math.isfinite, values)) else None


def maxima(scores: torch.Tensor) -> torch.Tensor:
    """Return [n], the maximum of each [n, V] row; NaN if the row has one."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().max(axis=-1))
    return scores.amax(dim=-1)


def draw(scores: torch.Tensor, numbers: Sequence[float], fallback: torch.Tensor) -> torch.Tensor:
    """Return [n] int64, a token of each [n, V] fp32 row by inversion of its distribution.

    Args:
        scores: [n, V] fp32 logits of the distribution; -inf has probability 0.
        numbers: n numbers in [0, 1).
        fallback: [n] int64, tokens to take should rounding point at one of probability 0.
    """
    probabilities = scores.softmax(dim=-1)
    cumulative = probabilities.to(torch.float64).cumsum(dim=-1)  # [n, V]
    number = torch.tensor(numbers, dtype=torch.float64, device=scores.device)[:, None]
    # In fp64, number < 1 keeps the product below the total, and "right" steps over tokens that
    # add nothing. A parallel scan may break either in its last bit, hence the fallback.
    found = torch.searchsorted(cumulative, number * cumulative[:, -1:], right=True)
    found = found.clamp_(max=scores.shape[-1] - 1)  # [n, 1]
    possible = probabilities.gather(1, found) > 0
    return torch.where(possible, found, fallback[:, None])[:, 0]
