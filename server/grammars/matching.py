"""A compiled grammar as the engine uses it: `engine.Grammar` and `engine.Matcher`.

`matcher` copies the compiled state, which takes microseconds. Runs on the engine's mask thread,
which leaves the interpreter to others while the library works.
"""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import Matcher

MAX_ERROR_CHARACTERS = 200


class GrammarError(ValueError):
    """The library gave up; the text is its own first line."""


def check_matcher(matcher: Any) -> None:
    """Raise if a matcher is in the state it never leaves.

    Raises:
        GrammarError: It is.
    """
    if matcher.is_error():
        raise GrammarError(describe_library_error(matcher.get_error()))


def describe_library_error(text: str) -> str:
    """Return what is of use to a client: no dump of the library's state."""
    return (
        re.split("<state>|<non-verbose/>", text, maxsplit=1)[0].strip()[:MAX_ERROR_CHARACTERS]
        or "it is too complex"
    )


class AnswerMatcher:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any, num_tokens: int) -> None:
        """Start at the beginning.

        Args:
            matcher: An `LLMatcher` of this answer's own.
            num_tokens: Tokens of the model; the library has one more, which ends a text.
        """
        self._matcher = matcher
        self._num_tokens = num_tokens

    def accept(self, token_id: int) -> None:
        """Go on by one token."""
        if not self._matcher.consume_token(token_id):
            check_matcher(self._matcher)
            raise GrammarError("a token was drawn that the grammar does not allow")

    def allow(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Mark the tokens that may come next in [V] bool; V may exceed the vocabulary."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        check_matcher(self._matcher)
        count = min(self._num_tokens, len(allowed))
        allowed[:count] = np.unpackbits(mask, count=count, bitorder="little")

    def is_complete(self) -> bool:
        """Return whether the answer may end here."""
        return bool(self._matcher.is_accepting())


class CompiledGrammar:
    """A grammar that any number of answers follow."""

    def __init__(self, matcher: Any, num_tokens: int) -> None:
        """Keep a matcher that is never moved, to be copied.

        Args:
            matcher: An `LLMatcher` that has compiled without an error.
            num_tokens: Tokens of the model.
        """
        self._matcher = matcher
        self._num_tokens = num_tokens

    def matcher(self) -> Matcher:
        """Return the state of an answer without tokens."""
        return AnswerMatcher(self._matcher.deep_copy(), self._num_tokens)
