"""Outputs that no handler takes, kept until somebody asks for them.

Shared by the engine thread and callers, behind one condition. Taking the next output of any request
and taking the next one of a given request are both O(1), and neither changes the order of what is
left.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from engine.requests import GenerationOutput

# Below this many places a queue of passed-over places is not worth compacting.
MIN_PLACES_TO_COMPACT = 1024


class ResultStore:
    """A queue of outputs that can also be read by request."""

    def __init__(self) -> None:
        """Start empty."""
        # Each output with its place in the order of arrival.
        self._by_request: dict[str, deque[tuple[int, GenerationOutput]]] = {}
        self._order: deque[tuple[int, str]] = deque()
        self._num_stored = 0
        self._next_place = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return how many outputs wait to be taken."""
        return self._num_stored

    def __contains__(self, request_id: str) -> bool:
        """Return whether outputs of a request wait to be taken."""
        return request_id in self._by_request

    def put(self, outputs: list[GenerationOutput]) -> None:
        """Append outputs and wake whoever waits."""
        with self._changed:
            for output in outputs:
                stored = self._by_request.setdefault(output.request_id, deque())
                stored.append((self._next_place, output))
                self._order.append((self._next_place, output.request_id))
                self._next_place += 1
            self._num_stored += len(outputs)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiters look again at whether more may come."""
        with self._changed:
            self._changed.notify_all()

    def get(
        self,
        request_id: str | None = None,
        timeout: float | None = None,
        may_come: Callable[[], bool] = lambda: True,
    ) -> GenerationOutput | None:
        """Take the oldest output, of one request or of any.

        Args:
            request_id: Whose output; None takes anyone's.
            timeout: How long to wait, in seconds; None waits as long as one may come.
            may_come: Whether waiting has a point; asked again at each `wake`.

        Returns:
            The output, or None if there is none in time or none can come.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                # Asked before looking: what came in between is found, not missed.
                is_worth_waiting = may_come()
                output = self._pop(request_id)
                if output is not None or not is_worth_waiting:
                    return output
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)

    def take_all(self, request_id: str) -> list[GenerationOutput]:
        """Take all outputs of one request, oldest first; never waits."""
        with self._changed:
            stored = self._by_request.pop(request_id, None) or ()
            self._num_stored -= len(stored)
            return [output for _, output in stored]

    def discard(self, request_id: str) -> None:
        """Drop the outputs of one request."""
        self.take_all(request_id)

    def _pop(self, request_id: str | None) -> GenerationOutput | None:
        if request_id is not None:
            return self._pop_of(request_id)
        while self._order:
            place, owner = self._order.popleft()
            stored = self._by_request.get(owner)
            # Places whose output was taken by request id are passed over.
            if stored is not None and stored[0][0] == place:
                return self._pop_of(owner)
        return None

    def _pop_of(self, request_id: str) -> GenerationOutput | None:
        stored = self._by_request.get(request_id)
        if stored is None:
            return None
        output = stored.popleft()[1]
        self._num_stored -= 1
        if not stored:
            del self._by_request[request_id]
        self._compact()
        return output

    def _compact(self) -> None:
        """Forget passed-over places before they outnumber the stored outputs."""
        if len(self._order) < max(MIN_PLACES_TO_COMPACT, 2 * self._num_stored):
            return
        stored = (
            (place, owner) for owner, outputs in self._by_request.items() for place, _ in outputs
        )
        self._order = deque(sorted(stored))
