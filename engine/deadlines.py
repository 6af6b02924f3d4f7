"""Which requests have run out of time, at the cost of one comparison in a step.

Engine thread only. Holds names and times, never requests: one that ended long before its deadline
must not be kept until then.
"""

import heapq
from collections.abc import Mapping

from engine.errors import EngineError
from engine.requests import RequestState

# Entries of ended requests are swept out when they outnumber the others by this many.
SPARE_ENTRIES = 256


class Deadlines:
    """The deadlines of the requests that have one, the nearest first."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[float, str]] = []

    def add(self, request: RequestState) -> None:
        """Watch a request, if it has a deadline."""
        for deadline in request.deadlines:
            heapq.heappush(self._heap, (deadline, request.request_id))

    def is_due(self, now: float) -> bool:
        """Return whether the nearest deadline has passed (`time.perf_counter`)."""
        return bool(self._heap) and self._heap[0][0] <= now

    def pop_expired(
        self, now: float, live: Mapping[str, RequestState]
    ) -> list[tuple[RequestState, EngineError]]:
        """Return the requests that are to be given up, with the reason.

        Args:
            now: The time (`time.perf_counter`).
            live: The requests that have not ended, by id.
        """
        expired: dict[str, tuple[RequestState, EngineError]] = {}
        while self.is_due(now):
            request = live.get(heapq.heappop(self._heap)[1])
            # An id may be used again, and one that has started may wait no longer.
            if request is not None and (reason := request.expiry(now)) is not None:
                expired[request.request_id] = (request, reason)
        return list(expired.values())

    def sweep(self, live: Mapping[str, RequestState]) -> None:
        """Forget the requests that have ended, once there are many of them."""
        if len(self._heap) > 2 * len(live) + SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        """Return how many entries are held."""
        return len(self._heap)
