"""Checks of single request options: type and range, with an error that names the option.

Pure functions on the caller's thread; each returns the value in its plain Python form or raises
InvalidRequestError. bool is not taken for a number, numpy numbers are, NaN never is.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from engine.errors import InvalidRequestError

# A bias must stay finite when it is added to an fp32 logit.
MAX_ABS_BIAS = 1e30


def as_bool(name: str, value: object) -> bool:
    """Return value if it is a bool.

    Raises:
        InvalidRequestError: It is not.
    """
    if not isinstance(value, bool):
        raise wrong_value(name, value, "true or false")
    return value


def as_int(name: str, value: object, low: int | None, high: int | None) -> int:
    """Return value as an int in [low, high]; None leaves an end open.

    Raises:
        InvalidRequestError: It is no integer or lies outside.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_value(name, value, "an integer")
    number = int(value)
    if (low is not None and number < low) or (high is not None and number > high):
        raise wrong_value(name, value, _range_text("an integer", low, high))
    return number


def as_float(name: str, value: object, low: float, high: float) -> float:
    """Return value as a finite float in [low, high].

    Raises:
        InvalidRequestError: It is no number, is not finite, or lies outside.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_value(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of floats
        number = math.inf
    if not low <= number <= high:  # NaN lies in no range
        raise wrong_value(name, value, _range_text("a finite number", low, high))
    return number


def as_token_ids(name: str, value: object, vocab_size: int) -> frozenset[int]:
    """Return value, an iterable of token ids, as a set.

    Raises:
        InvalidRequestError: It is no list of integers in [0, vocab_size).
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_value(name, value, "a list of token ids")
    return frozenset(as_int(name, item, 0, vocab_size - 1) for item in value)


def as_bias(name: str, value: object, vocab_size: int) -> dict[int, float]:
    """Return value as a mapping from token id to bias.

    Raises:
        InvalidRequestError: It is no mapping of ids in [0, vocab_size) to finite numbers.
    """
    if not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping from token id to bias")
    return {
        as_int(name, token, 0, vocab_size - 1): as_float(name, bias, -MAX_ABS_BIAS, MAX_ABS_BIAS)
        for token, bias in value.items()
    }


def as_token_sequences(name: str, value: object, vocab_size: int) -> list[list[int]]:
    """Return value, a list of lists of token ids, none of them empty.

    Raises:
        InvalidRequestError: It is something else, or an id lies outside [0, vocab_size).
    """
    if not isinstance(value, list | tuple):
        raise wrong_value(name, value, "a list of lists of token ids")
    return [list(_as_sequence(name, sequence, vocab_size)) for sequence in value]


def as_sequence_bias(name: str, value: object, vocab_size: int) -> dict[tuple[int, ...], float]:
    """Return value as a mapping from token sequence to bias; -inf forbids a sequence.

    Args:
        name: The option.
        value: A mapping from tuples of ids to numbers, or a list of [ids, number].
        vocab_size: Ids lie in [0, vocab_size).

    Raises:
        InvalidRequestError: It is neither, or holds something else.
    """
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple):
        raise wrong_value(name, value, "a mapping from token sequences to biases")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise wrong_value(name, pair, "a list of [token ids, bias]")
    return {
        _as_sequence(name, ids, vocab_size): as_float(name, bias, -math.inf, MAX_ABS_BIAS)
        for ids, bias in pairs
    }


def _as_sequence(name: str, value: object, vocab_size: int) -> tuple[int, ...]:
    """Return a sequence of at least one token id."""
    if not isinstance(value, list | tuple) or not value:
        raise wrong_value(name, value, "made of lists of at least one token id")
    return tuple(as_int(name, item, 0, vocab_size - 1) for item in value)


def _range_text(kind: str, low: float | None, high: float | None) -> str:
    """Describe a range for an error message."""
    if low is None or high is None:
        return kind if low is None and high is None else f"{kind} of at least {low}"
    return f"{kind} from {low} to {high}"


def wrong_value(name: str, value: object, expected: str) -> InvalidRequestError:
    """Build the error; a long value is cut so that the message stays readable."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return InvalidRequestError(f"{name} must be {expected}, got {shown}", param=name)
