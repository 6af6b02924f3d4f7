"""How it is written down what becomes of a field: honoured, refused or ignored. Data only."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Handling(Enum):
    """What the server does with a field."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class FieldSupport:
    """One field of a request.

    Attributes:
        name: Its name on the wire.
        handling: What the server does with it.
        note: What is particular about it, for the reader of the documentation.
        neutral: Values of a refused field that ask for nothing and pass.
        hint: What a client that is refused can do instead; begins with a blank.
    """

    name: str
    handling: Handling
    note: str = ""
    neutral: tuple[Any, ...] = ()
    hint: str = ""


def supported(**notes: str) -> Iterable[FieldSupport]:
    """Return rows of fields that are honoured: name = what is particular about it."""
    return (FieldSupport(name, Handling.SUPPORTED, note) for name, note in notes.items())


def ignored(note: str, *names: str) -> Iterable[FieldSupport]:
    """Return rows of fields that have no effect, for the same reason."""
    return (FieldSupport(name, Handling.IGNORED, note) for name in names)


def refused(name: str, *neutral: Any, note: str = "", hint: str = "") -> FieldSupport:
    """Return the row of a field that passes with its neutral values only."""
    return FieldSupport(name, Handling.REFUSED, note, neutral, hint)
