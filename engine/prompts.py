"""Checks a prompt before anything is made of it; on the caller's thread."""

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from engine.errors import InvalidRequestError


def check_prompt(input_ids: Sequence[SupportsIndex], vocab_size: int) -> list[int]:
    """Return a copy of a prompt as plain ints.

    Args:
        input_ids: Token ids: a list, a tuple, a 1-D array or a 1-D tensor on the CPU.
        vocab_size: Ids lie in [0, vocab_size).

    Raises:
        InvalidRequestError: It is empty, nested, holds something else than whole numbers, or an id
            outside the vocabulary.
    """
    try:
        ids = np.asarray(input_ids)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidRequestError(
            "input_ids must be one list of token ids", param="input_ids"
        ) from error
    if ids.ndim != 1 or len(ids) == 0:
        raise InvalidRequestError(
            f"input_ids must be one list of at least one token id, got shape {list(ids.shape)}",
            param="input_ids",
        )
    if ids.dtype.kind not in "iu":
        raise InvalidRequestError(
            f"input_ids must hold whole numbers, got {ids.dtype}", param="input_ids"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequestError(
            f"input_ids holds {wrong}; token ids of this model lie in [0, {vocab_size})",
            param="input_ids",
        )
    prompt: list[int] = ids.tolist()
    return prompt
