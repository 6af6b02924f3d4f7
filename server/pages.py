"""Lists in pages, as clients of these APIs ask for them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from server.request_errors import RequestError


class Named(Protocol):
    """Something with an id."""

    @property
    def id(self) -> str:
        """Unique in its list."""


Entry = TypeVar("Entry", bound=Named)


@dataclass(frozen=True, slots=True)
class Page(Generic[Entry]):
    """A part of a list.

    Attributes:
        entries: The entries.
        has_more: Whether others follow.
    """

    entries: list[Entry]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        """The first entry's id, if there is one."""
        return self.entries[0].id if self.entries else None

    @property
    def last_id(self) -> str | None:
        """The last entry's id, if there is one; what follows is asked for by it."""
        return self.entries[-1].id if self.entries else None


def take_page(entries: Sequence[Entry], *, after: str | None, limit: int) -> Page[Entry]:
    """Return the entries that follow one.

    Raises:
        RequestError: There is no entry of the id `after`.
    """
    first = 0
    if after is not None:
        found = [index for index, entry in enumerate(entries) if entry.id == after]
        if not found:
            raise RequestError("after is not in this list.", param="after")
        first = found[0] + 1
    return Page(list(entries[first : first + limit]), len(entries) > first + limit)
