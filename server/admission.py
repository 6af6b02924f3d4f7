"""Who may wait: decided before a prompt is tokenised, and fairly between keys.

The engine counts requests until their first step. Those that are still being prepared (rendered,
tokenised, their grammar compiled) are counted here, so that a request that is taken is never
refused afterwards, and a burst does not pay for work and get a refusal for it:

    places being prepared + places waiting in the engine + places asked for <= max_queue_size

A list whose requests of the engine take turns keeps the places that it was given until it leaves,
and its requests take none in the engine, so that it counts the same from its arrival to its end.

With several clients' keys, half of the queue is for whoever comes first, and the other half is
divided into equal reserves which nobody else may take: a key that floods the server fills its own
part. Keys of administrators have no reserve. Event loop only.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable

from api_schemas import CompletionRequest, SamplingFields
from engine import QueueFullError
from server.engine_client import Manager
from server.request_errors import RequestError
from server.request_record import RequestRecord, Ticket

# How many of the latest starts the rate of the queue is estimated from.
RATE_WINDOW = 64
MAX_RETRY_SECONDS = 60.0


class Admission:
    """Gives places in the queue to HTTP requests."""

    def __init__(self, manager: Manager, max_queue_size: int, clients: Iterable[str]) -> None:
        """Open the queue.

        Args:
            manager: The engine's front door.
            max_queue_size: Places; 0 is unlimited.
            clients: Names of the keys that share it.
        """
        self._manager = manager
        self._max_queue_size = max_queue_size
        self._clients = frozenset(clients)
        num_clients = len(self._clients)
        self._reserve = max_queue_size // (2 * num_clients) if num_clients > 1 else 0
        self._num_preparing = 0
        self._active: set[RequestRecord] = set()
        self._ends: deque[float] = deque(maxlen=RATE_WINDOW)

    @property
    def num_preparing(self) -> int:
        """Places of requests that were admitted and have not reached the engine, and of lists."""
        return self._num_preparing

    def admit(self, record: RequestRecord, num_places: int, *, in_turns: bool = False) -> int:
        """Give a request its places, all or none.

        Args:
            record: Keeps them until it leaves.
            num_places: One for each answer it asks for.
            in_turns: Its requests of the engine follow one another, so that fewer places will do,
                if there never are as many, and it comes back to them until it leaves.

        Returns:
            How many places it has.

        Raises:
            RequestError: There will never be as many.
            QueueFullError: There are not as many now.
        """
        if self._max_queue_size:
            others = self._clients - {record.key_name}
            most = self._max_queue_size - self._reserve * len(others)
            if in_turns:
                # A long list goes on for long, and is to leave room for others.
                num_places = min(num_places, max(1, most // 2))
            elif num_places > most:
                raise RequestError(
                    f"The request asks for {num_places} answers, more than the {most} places of "
                    "the queue that one may take.",
                    param="n",
                )
            waiting = self._num_preparing + self._manager.statistics().num_queued
            free = self._max_queue_size - waiting - self._reserved_for(others)
            if num_places > free:
                raise QueueFullError(
                    num_waiting=waiting, retry_after_seconds=self._seconds_until(num_places)
                )
        record.ticket = Ticket(num_places, self._use, is_kept=in_turns)
        self._num_preparing += num_places
        self._active.add(record)
        return num_places

    def leave(self, record: RequestRecord) -> None:
        """Note that a request is over; what it has not used of its places is free again."""
        if record.ticket is not None:
            record.ticket.release()
            self._active.discard(record)
            self._ends.extend([time.monotonic()] * len(record.answers))

    def _use(self, num_places: int) -> None:
        self._num_preparing -= num_places

    def _reserved_for(self, names: Iterable[str]) -> int:
        """Return how many places are kept for those of these keys that wait in less than theirs."""
        if self._reserve == 0:
            return 0
        waiting: Counter[str] = Counter()
        for record in self._active:
            waiting[record.key_name] += record.num_waiting
        return sum(max(0, self._reserve - waiting[name]) for name in names)

    def _seconds_until(self, num_places: int) -> float:
        """Estimate from the latest ends how long until so many places are free, in seconds."""
        if len(self._ends) < 2:
            return 1.0
        span = max(time.monotonic() - self._ends[0], 1e-3)
        return min(MAX_RETRY_SECONDS, max(1.0, num_places * span / len(self._ends)))


def num_answers(body: SamplingFields) -> int:
    """Return how many answers a request asks for; each is a request of the engine."""
    num_prompts = len(body.prompt) if isinstance(body, CompletionRequest) else 1
    return body.num_answers * num_prompts
