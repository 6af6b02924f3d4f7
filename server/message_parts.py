"""The parts that an answer is made of, in the order in which they come.

A `MessageParser` cuts the text of one answer into them. What it returns does not depend on how the
text was cut into pieces before: parsers go character by character, or look for markers only. What
turns out to be no call stays text, to the letter. Event loop only.
"""

from dataclasses import dataclass
from typing import Protocol


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


def join_parts(parts: list[Part]) -> list[Part]:
    """Join neighbours of a kind."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            joined[-1] = TextPart(last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            joined[-1] = ReasoningPart(last.text + part.text)
        elif (
            isinstance(part, CallArguments)
            and isinstance(last, CallArguments)
            and part.index == last.index
        ):
            joined[-1] = CallArguments(part.index, last.text + part.text)
        else:
            joined.append(part)
    return joined
