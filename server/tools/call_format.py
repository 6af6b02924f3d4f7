"""What a parser has to know of the way in which a family of models writes calls. Data only."""

from dataclasses import dataclass
from typing import Protocol

from server.tools.blocks import Block
from server.tools.calls import Functions
from server.tools.json_calls import JsonBlock


class CallFormat(Protocol):
    """One family's way to write calls."""

    @property
    def name(self) -> str:
        """What the setting calls it."""

    @property
    def openings(self) -> tuple[str, ...]:
        """Markers that a call follows, anywhere in the text."""

    @property
    def closings(self) -> tuple[str, ...]:
        """Markers that may stand after a call and mean nothing else."""

    @property
    def bare(self) -> str:
        """Characters that begin a call without a marker, where the text begins or behind a call."""

    def block(self, functions: Functions) -> Block:
        """Return what reads the calls of these functions behind one opening."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a forced answer looks like around the calls themselves.

    Attributes:
        before: Stands before the first call.
        between: Stands between two calls.
        after: Stands after the last one.
        key: What a call names its arguments.
    """

    before: str = ""
    between: str = "\n"
    after: str = ""
    key: str = "arguments"


@dataclass(frozen=True, slots=True)
class JsonCallFormat:
    """A format whose calls are JSON objects, or lists of them.

    Attributes:
        brackets: What a block begins with.
        layout: What a forced answer looks like.
    """

    name: str
    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    bare: str = ""
    brackets: str = "{"
    layout: Layout = Layout()

    def block(self, functions: Functions) -> Block:
        """See `CallFormat.block`."""
        return JsonBlock(self.brackets, functions)
