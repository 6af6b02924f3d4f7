"""Requests that wait for blocks, in the order in which they are to start.

Engine thread only; no blocks, no clock. Two heaps over the same entries, so that adding, removing
and looking at either end cost O(log n) however many wait. A removed entry stays in the heaps until
it comes up or until such entries are the majority; `_entries` says which ones count.

    rank = (not promoted, priority, arrival)       the smallest starts next; within it, by arrival

A preempted request keeps its arrival, so it comes back before everything that arrived after it.
"""

import heapq
import itertools
from collections.abc import Iterator

from engine.requests import RequestState

Rank = tuple[bool, int, int]
# The serial number keeps a request that comes back apart from its own removed entry.
_Entry = tuple[Rank, int, RequestState]

# Below this many entries a heap is not worth rebuilding.
MIN_REBUILT = 64


def rank(request: RequestState) -> Rank:
    """Return what requests are ordered by: the smallest goes first and gives way last."""
    return (not request.promoted, request.priority, request.arrival)


class WaitingQueue:
    """A queue by rank that also knows who has waited longest."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[str, _Entry] = {}
        self._by_rank: list[_Entry] = []
        self._by_arrival: list[tuple[int, int, _Entry]] = []
        self._serials = itertools.count()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._entries)

    def __contains__(self, request: RequestState) -> bool:
        """Return whether this very request waits."""
        entry = self._entries.get(request.request_id)
        return entry is not None and entry[2] is request

    def __iter__(self) -> Iterator[RequestState]:
        """Yield the requests in the order in which they are to start; O(n log n)."""
        return (entry[2] for entry in sorted(self._entries.values(), key=lambda entry: entry[:2]))

    def push(self, request: RequestState) -> None:
        """Add a request at the place that its rank gives it; its arrival is unlike any other's."""
        entry = (rank(request), next(self._serials), request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._by_rank, entry)
        heapq.heappush(self._by_arrival, (request.arrival, entry[1], entry))

    def remove(self, request: RequestState) -> None:
        """Take a request out, wherever it is."""
        del self._entries[request.request_id]
        if len(self._by_rank) > max(MIN_REBUILT, 2 * len(self._entries)):
            self._by_rank = list(self._entries.values())
            heapq.heapify(self._by_rank)
        if len(self._by_arrival) > max(MIN_REBUILT, 2 * len(self._entries)):
            self._by_arrival = [
                (entry[2].arrival, entry[1], entry) for entry in self._entries.values()
            ]
            heapq.heapify(self._by_arrival)

    def first(self) -> RequestState:
        """Return the request that is to start next."""
        while not self._counts(self._by_rank[0]):
            heapq.heappop(self._by_rank)
        return self._by_rank[0][2]

    def longest_waiting(self) -> RequestState:
        """Return the request that arrived before all others that wait."""
        while not self._counts(self._by_arrival[0][2]):
            heapq.heappop(self._by_arrival)
        return self._by_arrival[0][2][2]

    def promote(self, request: RequestState) -> None:
        """Let a waiting request go before all that are not promoted, from now to its end."""
        self.remove(request)
        request.promoted = True
        self.push(request)

    def _counts(self, entry: _Entry) -> bool:
        return self._entries.get(entry[2].request_id) is entry
