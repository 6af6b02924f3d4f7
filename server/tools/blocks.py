"""What follows the opening of a call, read one character at a time. Pure.

    HELD ─► CALL ─► DONE      FAILED may follow each of the first two

A block tells of a call as soon as its name and the beginning of its arguments have come, and passes
the rest of these on as it comes. One whose arguments have to be rewritten tells of whole calls.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from server.tools.calls import Call, Functions
from server.tools.json_reader import BLANKS, JsonMark, JsonReader


class BlockState(Enum):
    """What a character is to a block."""

    HELD = "it is part of a call, or of none"
    CALL = "it is part of a call that was told of"
    DONE = "so it is, and it is the last one"
    FAILED = "it is part of no call, nor is what is held"


class Step(NamedTuple):
    """What a character has done.

    Attributes:
        calls: Those that it begins, or that are whole with it.
        arguments: What it adds to the arguments of a call that began before.
    """

    state: BlockState
    calls: tuple[Call, ...] = ()
    arguments: str = ""


HELD = Step(BlockState.HELD)
CALL = Step(BlockState.CALL)
DONE = Step(BlockState.DONE)
FAILED = Step(BlockState.FAILED)


class Block(Protocol):
    """Sees a call's text after its opening marker."""

    def feed(self, text: str) -> Step:
        """Take one character, or the whole text of a special token."""

    def run(self, text: str, place: int) -> str:
        """Return the characters from a place on that are arguments, whatever follows them.

        They need not be fed; none is always right.
        """

    def finish(self) -> Step:
        """Say what becomes of what is held; no text comes any more."""


class ObjectBlock:
    """Blanks, then the arguments of a call whose name stood before them.

    The call is told of when the bracket and what must follow it have come: a quote, or the other
    bracket. Most of what only looks like JSON is told from it there.
    """

    def __init__(self, name: str, functions: Functions) -> None:
        """Start before the blanks.

        Args:
            name: What is called. If it is no function, the object is read to its end all the same,
                so that nothing in it is taken for a call.
            functions: What may be called.
        """
        self._name = name
        self._is_known = name in functions
        self._json = JsonReader("{")
        self._begun: list[str] | None = []  # the arguments until the call is told of

    def feed(self, text: str) -> Step:
        """See `Block.feed`."""
        mark = self._json.feed(text) if len(text) == 1 else JsonMark.WRONG
        is_whole = self._json.is_whole
        if mark is JsonMark.WRONG or (is_whole and not self._is_known):
            return FAILED
        if not self._is_known or not (is_whole or self._json.depth):
            return HELD
        state = BlockState.DONE if is_whole else BlockState.CALL
        if self._begun is None:
            return Step(state, arguments=text)
        self._begun.append(text)
        if mark is JsonMark.OPENS or text in BLANKS:
            return HELD
        begun, self._begun = "".join(self._begun), None
        return Step(state, (Call(self._name, begun),))

    def run(self, text: str, place: int) -> str:
        """See `Block.run`."""
        return self._json.run(text, place) if self._begun is None else ""

    def finish(self) -> Step:
        """See `Block.finish`."""
        return FAILED


class WholeBlock:
    """A text whose end is found before it is read."""

    def __init__(
        self, find_end: Callable[[str], BlockState], read: Callable[[str], list[Call] | None]
    ) -> None:
        """Start after the opening marker.

        Args:
            find_end: Takes the text piece by piece as `Block.feed` does; DONE ends it.
            read: Returns the calls in the whole text; None if they are none.
        """
        self._find_end = find_end
        self._read = read
        self._texts: list[str] = []

    def feed(self, text: str) -> Step:
        """See `Block.feed`."""
        self._texts.append(text)
        state = self._find_end(text)
        return self.finish() if state is BlockState.DONE else Step(state)

    def run(self, text: str, place: int) -> str:
        """See `Block.run`."""
        return ""

    def finish(self) -> Step:
        """See `Block.finish`."""
        calls = self._read("".join(self._texts))
        return FAILED if calls is None else Step(BlockState.DONE, tuple(calls))


class ClosingMarker:
    """Finds a marker that ends a text."""

    def __init__(self, marker: str) -> None:
        """Start before the text."""
        self._marker = marker
        self._tail = ""

    def feed(self, text: str) -> BlockState:
        """Take a piece; see `WholeBlock`."""
        self._tail = (self._tail + text)[-len(self._marker) :]
        return BlockState.DONE if self._tail == self._marker else BlockState.HELD
