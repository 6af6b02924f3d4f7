"""Finding stop strings in what the last tokens say, prompt and answer alike.

Made on the caller's thread, used on the engine thread; holds a tokenizer of its own, so that what
the caller does with theirs is none of its business. Only the tail of the tokens is decoded, so a
token costs the same at any length. Must never hold on to a request.
"""

import copy
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from engine.errors import InvalidRequestError
from engine.sampling.checks import wrong_value
from engine.sampling.options import Options

# Tokens decoded beside those that a stop string may consist of. Some tokens have no text or, at
# the beginning of a text, another one.
SPARE_TOKENS = 4
# A character that is not complete yet.
REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """What is used of a tokenizer."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """Return the text of some tokens."""
        ...


_copies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_copies_lock = threading.Lock()


def own_copy(tokenizer: Any) -> Decoder:
    """Return a copy of a tokenizer that nobody else uses or changes; made once for each."""
    with _copies_lock:
        known: Decoder | None = _copies.get(tokenizer)
        if known is None:
            known = copy.deepcopy(tokenizer)
            _copies[tokenizer] = known
        return known


class StopStrings:
    """The strings that end one request's answer."""

    def __init__(self, strings: Sequence[str], tokenizer: Decoder) -> None:
        """Store the strings, none of them empty, and what turns tokens into text."""
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        # A token that says anything says at least a byte.
        self._window = SPARE_TOKENS + max(len(string.encode()) for string in strings)

    def find(self, prompt_ids: Sequence[int], generated: Sequence[int]) -> str | None:
        """Return the string that the newest token completes; None if there is none.

        Like `generate`, it may begin in the prompt and it may end within the newest token.

        Args:
            prompt_ids: The prompt.
            generated: The answer, the newest token last.
        """
        tail = list(generated[-self._window :])
        if len(tail) < self._window:
            tail = [*prompt_ids[-(self._window - len(tail)) :], *tail]
        text = self._decode(tail)
        if not any(string in text for string in self.strings):
            return None
        num_old = len(self._decode(tail[:-1]).rstrip(REPLACEMENT))
        found = [
            (place, order)
            for order, string in enumerate(self.strings)
            if (place := text.find(string, max(0, num_old - len(string) + 1))) >= 0
        ]
        return self.strings[min(found)[1]] if found else None

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


def make_stop_strings(read: Options) -> StopStrings | None:
    """Return what looks for a request's stop strings; None if it has none.

    Raises:
        InvalidRequestError: They are no strings, one is empty, or there is no tokenizer.
    """
    value = read.value("stop_strings")
    if value is None:
        return None
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(
        isinstance(string, str) and string for string in strings
    ):
        raise wrong_value("stop_strings", value, "a list of strings, none of them empty")
    if not strings:
        return None
    tokenizer = read.given("tokenizer")
    if tokenizer is None:
        raise InvalidRequestError(
            "stop_strings needs a tokenizer: set the model's attribute `tokenizer`, or hand one in "
            "as the keyword `tokenizer`",
            param="stop_strings",
        )
    if not callable(getattr(tokenizer, "decode", None)):
        raise wrong_value("tokenizer", tokenizer, "a tokenizer")
    return StopStrings(strings, own_copy(tokenizer))
