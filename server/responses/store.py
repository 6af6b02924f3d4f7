"""The responses that clients may come back to: in memory, bounded in number and bytes.

Each belongs to the key that it was made with. When there is no more room, the one that
ended longest ago goes first. Event loop only.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from server.request_errors import RequestError
from server.responses.items import Item
from server.responses.run import ResponseRun

# What a stored item takes beside its text.
ITEM_BYTES = 512


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it came from.

    Attributes:
        response_id: Its id.
        owner: Whose it is.
        run: Makes it, or has made it.
        inputs: Items of the conversation before it.
        keeps_events: Whether its events can be read again.
    """

    response_id: str
    owner: str
    run: ResponseRun
    inputs: list[Item] = field(default_factory=list)
    keeps_events: bool = False

    def outputs(self) -> list[Item]:
        """Return its own items as input for another."""
        return [item.model_dump(exclude_unset=True) for item in self.run.whole().output]

    def num_bytes(self) -> int:
        """Return what it takes, about."""
        texts = sum(map(_num_characters, self.inputs))
        return texts + ITEM_BYTES * (len(self.inputs) + 2) + self.run.num_bytes


def _num_characters(value: Any) -> int:
    """Count the characters of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_num_characters, value.values()))
    return sum(map(_num_characters, value)) if isinstance(value, list) else 0


class ResponseStore:
    """Keeps responses by id."""

    def __init__(self, *, max_responses: int, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_responses: Most to keep; those that run are kept beyond it. 0 keeps none.
            max_bytes: What all together may take.
        """
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: dict[str, StoredResponse] = {}

    @property
    def keeps_any(self) -> bool:
        """Whether responses are stored here at all."""
        return self._max_responses > 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._stored)

    def add(self, stored: StoredResponse) -> None:
        """Keep a response."""
        self._stored[stored.response_id] = stored

    def get(self, owner: str, response_id: str, *, param: str = "response_id") -> StoredResponse:
        """Return a response.

        Raises:
            RequestError: It is not here, or no more, or somebody else's.
        """
        stored = self._stored.get(response_id)
        if stored is None or stored.owner != owner:
            message = f"The response {response_id[:128]!r} is not stored here."
            raise RequestError(message, param=param, code="response_not_found", status=404)
        return stored

    def delete(self, owner: str, response_id: str) -> StoredResponse:
        """Forget a response and return it; raises what `get` raises."""
        stored = self.get(owner, response_id)
        del self._stored[response_id]
        return stored

    def find_item(self, owner: str, item_id: str) -> Item | None:
        """Return a stored item by its id."""
        for stored in self._stored.values():
            if stored.owner != owner:
                continue
            for item in self._items(stored):
                if item.get("id") == item_id:
                    return item
        return None

    def make_room(self) -> None:
        """Forget what ended longest ago until the rest is within bounds."""
        num_bytes = sum(stored.num_bytes() for stored in self._stored.values())
        for stored in list(self._stored.values()):
            if len(self._stored) <= self._max_responses and num_bytes <= self._max_bytes:
                return
            if stored.run.has_ended:
                num_bytes -= stored.num_bytes()
                del self._stored[stored.response_id]

    async def end(self, error: BaseException) -> None:
        """End every run with an error, and wait until it has taken it."""
        for stored in self._stored.values():
            stored.run.fail(error)
        runs = [stored.run.wait() for stored in self._stored.values()]
        await asyncio.gather(*runs, return_exceptions=True)

    @staticmethod
    def _items(stored: StoredResponse) -> Iterator[Item]:
        yield from stored.inputs
        if stored.run.has_ended:
            yield from stored.outputs()
