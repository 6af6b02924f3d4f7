"""Ids that are made for requests whose caller gave none: `req_N`, and `req_N__child#i`.

Callers' threads. Callers may use ids of the same form, before or after: a made id is one that is
used for nothing, and from the moment it is made nobody else can take it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.errors import DuplicateRequestError


def family_ids(request_id: str, count: int) -> list[str]:
    """Return the ids of the answers to one prompt, in the documented order: the request's last."""
    return [*(f"{request_id}__child#{index}" for index in range(count - 1)), request_id]


class RequestIds:
    """Makes ids, and keeps made and given ones apart."""

    def __init__(self, is_in_use: Callable[[str], bool]) -> None:
        """Start at req_0.

        Args:
            is_in_use: Whether an id stands for a request, or for outputs that were not taken yet or
                are waited for.
        """
        self._is_in_use = is_in_use
        self._next = 0
        self._reserved: set[str] = set()
        self._changing = threading.Lock()

    def reserve(self, counts: Sequence[int]) -> list[list[str]]:
        """Return the ids of families with consecutive numbers; they are kept until `release`.

        Args:
            counts: How many answers each family has.
        """
        with self._changing:
            number = self._next
            families: list[list[str]] = []
            while len(families) < len(counts):
                names = family_ids(f"req_{number}", counts[len(families)])
                number += 1
                families.append(names)
                if any(map(self._is_in_use, names)):
                    families.clear()  # and again, from the next number on
            self._next = number
            self._reserved.update(*families)
        return families

    def release(self, names: Sequence[str]) -> None:
        """Let ids go: their requests were handed over, or are not going to be."""
        with self._changing:
            self._reserved.difference_update(names)

    @contextmanager
    def given(self, names: Sequence[str]) -> Iterator[None]:
        """Keep ids that a caller has given from being made, for the length of a with block.

        Raises:
            DuplicateRequestError: One was made already, and its request is about to be handed over.
        """
        with self._changing:
            for name in names:
                if name in self._reserved:
                    raise DuplicateRequestError(name)
            yield
