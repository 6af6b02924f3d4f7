"""The parts that an answer is made of, in the order in which they come.

A `MessageParser` cuts the text of one answer into them. What it returns does not depend on how the
text was cut into pieces before: parsers go character by character, or look for markers only. What
is no part of a call that was told of stays text, to the letter. Event loop only.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of the reasoning that comes before the content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call.

    Attributes:
        index: Its number in the answer.
        name: The function.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Part = TextPart | ReasoningPart | CallStart | CallArguments


class MessageParser(Protocol):
    """Cuts the text of one answer into parts."""

    def text(self, text: str) -> list[Part]:
        """Take text that the client would see; return what is certain."""

    def special(self, text: str) -> list[Part]:
        """Take the text of a special token, which the client would not see."""

    def finish(self) -> list[Part]:
        """Return what was held back; no text comes any more."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing that may follow is part of the answer."""


class PlainParser:
    """Takes all text as content."""

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        return [TextPart(text)] if text else []

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        return []

    def finish(self) -> list[Part]:
        """See `MessageParser.finish`."""
        return []

    @property
    def is_complete(self) -> bool:
        """See `MessageParser.is_complete`."""
        return False


def join_parts(parts: list[Part]) -> list[Part]:
    """Join neighbours of a kind."""
    joined: list[Part] = []
    for (kind, index), group in groupby(parts, _kind):
        pieces = list(group)
        if kind is CallStart or len(pieces) == 1:
            joined += pieces
            continue
        text = "".join(piece.text for piece in pieces if not isinstance(piece, CallStart))
        joined.append(CallArguments(index, text) if kind is CallArguments else kind(text))
    return joined


def _kind(part: Part) -> tuple[Any, int]:
    """Return what neighbours that can be joined have in common."""
    return type(part), part.index if isinstance(part, CallStart | CallArguments) else 0
