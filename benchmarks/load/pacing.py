"""When requests are sent: as soon as a client is free, or at moments drawn beforehand."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from benchmarks.load.answer import Outcome

REQUESTS_PER_CLIENT = 4
OPEN_LOOP_REQUESTS = 64
# Sends a request that is due at a moment of `time.perf_counter`.
Send = Callable[[bytes, float], Awaitable[Outcome]]


class Pacing(Protocol):
    """Decides when requests are sent."""

    @property
    def label(self) -> str:
        """What the tables call it."""

    @property
    def usual_requests(self) -> int:
        """How many requests of it make a turn, if nobody says."""

    async def run(self, requests: Sequence[bytes], send: Send, seed: int) -> list[Outcome]:
        """Send all requests and return when all are over."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of clients, each of which sends its next request when the last one is over.

    Attributes:
        num_clients: How many there are.
    """

    num_clients: int

    @property
    def label(self) -> str:
        """Return the number of clients."""
        return f"{self.num_clients} client{'s' if self.num_clients > 1 else ''}"

    @property
    def usual_requests(self) -> int:
        """Return a few for each client."""
        return self.num_clients * REQUESTS_PER_CLIENT

    async def run(self, requests: Sequence[bytes], send: Send, seed: int) -> list[Outcome]:
        """Send all requests; the seed has nothing to decide."""
        remaining = iter(requests)

        async def client() -> list[Outcome]:
            return [await send(request, time.perf_counter()) for request in remaining]

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(client()) for _ in range(self.num_clients)]
        return [outcome for done in clients for outcome in done.result()]


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests come whether or not the server keeps up, at random moments.

    A request counts from the moment it was due, so that a generator which is late makes itself
    look slow and never the server fast.

    Attributes:
        rate: Requests per second, on average.
    """

    rate: float

    @property
    def label(self) -> str:
        """Return the rate."""
        return f"{self.rate:g}/s"

    @property
    def usual_requests(self) -> int:
        """Return a number that doesn't depend on the rate."""
        return OPEN_LOOP_REQUESTS

    async def run(self, requests: Sequence[bytes], send: Send, seed: int) -> list[Outcome]:
        """Send each request at its moment, whatever became of those before it."""
        start = time.perf_counter()
        sent: list[asyncio.Task[Outcome]] = []
        async with asyncio.TaskGroup() as group:
            for request, offset in zip(
                requests, arrivals(self.rate, len(requests), seed), strict=True
            ):
                due = start + offset
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                sent.append(group.create_task(_await(send(request, due))))
        return [task.result() for task in sent]


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Return the moments of a Poisson process, in seconds from its start; the first is 0.

    Args:
        rate: Arrivals per second, on average.
        count: How many to return.
        seed: Decides them.
    """
    rng = random.Random(seed)
    return list(accumulate((rng.expovariate(rate) for _ in range(count - 1)), initial=0.0))


async def _await(outcome: Awaitable[Outcome]) -> Outcome:
    return await outcome
