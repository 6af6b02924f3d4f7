"""The gate that bounds how many requests wait.

Shared by caller threads and the engine thread, behind one lock. A request counts from `acquire`
until it is first scheduled or ends; a preempted one was admitted before and does not count again.
One whose caller counts it asks for no place (`holds_place`).
"""

import threading
import time
from collections import deque

from engine.errors import EngineStoppingError, QueueFullError

# How many of the latest admissions the rate of the queue is estimated from.
RATE_WINDOW = 32
MAX_RETRY_SECONDS = 60.0


class AdmissionGate:
    """Counts waiting requests against `max_queue_size`."""

    def __init__(self, max_queue_size: int) -> None:
        """Open the gate.

        Args:
            max_queue_size: Requests that may wait; 0 is unlimited.
        """
        self._max_queue_size = max_queue_size
        self._num_waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._release_times: deque[float] = deque(maxlen=RATE_WINDOW)

    @property
    def num_waiting(self) -> int:
        """Requests that have not been scheduled yet."""
        return self._num_waiting

    @property
    def max_queue_size(self) -> int:
        """Requests that may wait; 0 is unlimited."""
        return self._max_queue_size

    def acquire(self, num_places: int = 1) -> None:
        """Take places at once, all or none.

        Raises:
            QueueFullError: There are not as many.
        """
        with self._changed:
            if not self._has_places(num_places):
                raise QueueFullError(
                    num_waiting=self._num_waiting,
                    retry_after_seconds=self._seconds_until_place(),
                )
            self._num_waiting += num_places

    def acquire_in_turn(self, num_places: int = 1) -> None:
        """Take places, waiting for them; for offline callers, never on an event loop.

        Args:
            num_places: How many, at most max_queue_size.

        Raises:
            EngineStoppingError: The engine stopped meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_places(num_places))
            if self._closed:
                raise EngineStoppingError("the engine stopped while the request waited for a place")
            self._num_waiting += num_places

    def release(self, num_requests: int = 1) -> None:
        """Give places back: the requests were scheduled or have ended."""
        if num_requests == 0:
            return
        with self._changed:
            self._num_waiting -= num_requests
            assert self._num_waiting >= 0, "more places were given back than taken"
            self._release_times.append(time.monotonic())
            self._changed.notify_all()

    def close(self) -> None:
        """Turn away everyone who waits for a place."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Let requests in again."""
        with self._changed:
            self._closed = False

    def _has_places(self, count: int) -> bool:
        return self._max_queue_size == 0 or self._num_waiting + count <= self._max_queue_size

    def _seconds_until_place(self) -> float:
        """Estimate from the latest releases how long until the next one, in seconds."""
        if len(self._release_times) < 2:
            return 1.0
        span = time.monotonic() - self._release_times[0]
        return min(MAX_RETRY_SECONDS, max(1.0, span / len(self._release_times)))
