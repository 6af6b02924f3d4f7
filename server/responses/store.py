"""The responses that clients may come back to: in memory, bounded in number and bytes.

Each belongs to the key that it was made with. When there is no more room, the oldest of those that
have ended goes first. Event loop only.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from server.request_errors import RequestError
from server.responses.items import Item
from server.responses.run import ResponseRun

# What a value of JSON takes in memory beside its text, and an item in the index.
VALUE_BYTES = 64
ITEM_BYTES = 512


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it came from.

    Attributes:
        response_id: Its id.
        owner: Whose it is.
        run: Makes it, or has made it.
        inputs: Items of the conversation before it.
    """

    response_id: str
    owner: str
    run: ResponseRun
    inputs: list[Item] = field(default_factory=list)

    def outputs(self) -> list[Item]:
        """Return its own items as input for another."""
        return [item.model_dump(exclude_unset=True) for item in self.run.whole().output]

    def num_bytes(self) -> int:
        """Return what it takes now, about."""
        whole = self.run.whole()
        num_items = len(self.inputs) + len(whole.output)
        values = _num_bytes(self.inputs) + _num_bytes(whole.model_dump(exclude_unset=True))
        return values + ITEM_BYTES * num_items + self.run.num_event_bytes


def _num_bytes(value: Any) -> int:
    """Return what a JSON value takes, about."""
    if isinstance(value, str):
        return VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return VALUE_BYTES + sum(map(_num_bytes, value.values()))
    return VALUE_BYTES + (sum(map(_num_bytes, value)) if isinstance(value, list) else 0)


class ResponseStore:
    """Keeps responses by id.

    Attributes:
        num_bytes: What all together take, about.
    """

    def __init__(self, *, max_responses: int, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_responses: Most to keep; those that run are kept beyond it. 0 keeps none.
            max_bytes: What all together may take.
        """
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: dict[str, StoredResponse] = {}
        self._weights: dict[str, int] = {}  # bytes of each, as of its start or its end
        self.num_bytes = 0
        # (owner, id of an item) -> the items of this id, by the response that they belong to.
        self._items: defaultdict[tuple[str, str], dict[str, Item]] = defaultdict(dict)

    @property
    def keeps_any(self) -> bool:
        """Whether responses are stored here at all."""
        return self._max_responses > 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._stored)

    def add(self, stored: StoredResponse) -> None:
        """Keep a response; others may have to go."""
        self._stored[stored.response_id] = stored
        self._index(stored, stored.inputs)
        self._weigh(stored)
        self._make_room()

    def note_end(self, stored: StoredResponse) -> None:
        """Take what a response has become at its end, if it is kept."""
        if stored.response_id in self._stored:
            self._index(stored, stored.outputs())
            self._weigh(stored)
            self._make_room()

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
        self._forget(stored)
        return stored

    def find_item(self, owner: str, item_id: str) -> Item | None:
        """Return a stored item by its id."""
        found = self._items.get((owner, item_id))
        return next(iter(found.values())) if found else None

    async def end(self, error: BaseException) -> None:
        """End every run with an error, and wait until it has taken it."""
        for stored in self._stored.values():
            stored.run.fail(error)
        runs = [stored.run.wait() for stored in self._stored.values()]
        await asyncio.gather(*runs, return_exceptions=True)

    def _make_room(self) -> None:
        """Forget what came first, of what has ended, until the rest is within bounds."""
        for stored in list(self._stored.values()):
            if len(self._stored) <= self._max_responses and self.num_bytes <= self._max_bytes:
                return
            if stored.run.has_ended:
                self._forget(stored)

    def _weigh(self, stored: StoredResponse) -> None:
        self.num_bytes -= self._weights.get(stored.response_id, 0)
        self._weights[stored.response_id] = stored.num_bytes()
        self.num_bytes += self._weights[stored.response_id]

    def _index(self, stored: StoredResponse, items: Iterable[Item]) -> None:
        for item in items:
            self._items[stored.owner, item["id"]].setdefault(stored.response_id, item)

    def _forget(self, stored: StoredResponse) -> None:
        del self._stored[stored.response_id]
        self.num_bytes -= self._weights.pop(stored.response_id)
        for item in (*stored.inputs, *stored.outputs()):
            found = self._items.get((stored.owner, item["id"]), {})
            found.pop(stored.response_id, None)
            if not found:
                self._items.pop((stored.owner, item["id"]), None)
