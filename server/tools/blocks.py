"""How far the text of a call reaches, found one character at a time. Pure."""

from enum import Enum
from typing import Protocol

MAX_BLOCK_CHARACTERS = 1_000_000
_PAIRS = {"{": "}", "[": "]", "(": ")"}


class BlockState(Enum):
    """Where a block stands after a character."""

    MORE = "it goes on"
    DONE = "it ends with this character"
    FAILED = "it is no call"


class Block(Protocol):
    """Sees a call's text after its opening marker."""

    def feed(self, text: str) -> BlockState:
        """Take one character, or the whole text of a special token."""


class Extent:
    """Finds the end of a value that begins with a bracket; brackets in texts don't count."""

    def __init__(self, quotes: str = '"') -> None:
        """Start before the first bracket.

        Args:
            quotes: What texts stand between.
        """
        self._quotes = quotes
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, character: str) -> BlockState:
        """Take one character."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
            return BlockState.MORE
        if character in self._quotes:
            self._quote = character
        elif character in _PAIRS:
            self._open.append(_PAIRS[character])
        elif character in "}])":
            if not self._open or self._open.pop() != character:
                return BlockState.FAILED
            return BlockState.MORE if self._open else BlockState.DONE
        return BlockState.MORE


class ValueBlock:
    """Blanks, then one bracketed value."""

    def __init__(self, brackets: str, quotes: str = '"') -> None:
        """Start before the blanks.

        Args:
            brackets: What the value may begin with.
            quotes: What texts in it stand between.
        """
        self._brackets = brackets
        self._extent = Extent(quotes)
        self._has_begun = False

    def feed(self, text: str) -> BlockState:
        """See `Block.feed`."""
        if len(text) != 1:
            return BlockState.FAILED
        if not self._has_begun:
            if text.isspace():
                return BlockState.MORE
            if text not in self._brackets:
                return BlockState.FAILED
            self._has_begun = True
        return self._extent.feed(text)


class ClosedBlock:
    """Everything up to a closing marker."""

    def __init__(self, closing: str) -> None:
        """Start after the opening marker."""
        self._closing = closing
        self._tail = ""

    def feed(self, text: str) -> BlockState:
        """See `Block.feed`."""
        self._tail = (self._tail + text)[-len(self._closing) :]
        return BlockState.DONE if self._tail == self._closing else BlockState.MORE
