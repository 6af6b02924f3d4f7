"""From prompts to vectors, through the engine like any other request.

A few prompts of one HTTP request are in the engine at a time, so that a long list neither fills the
queue nor crowds out those who write: each takes its turn in a place that the list keeps. Event loop
only.
"""

import array
import asyncio
import base64
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from engine import RequestFailedError
from server.completion_stream import CompletionStream
from server.engine_client import EngineClient

NUM_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """What vectors are asked for.

    Attributes:
        pooling: Which hidden states make them: "mean" or "last".
        dimensions: Leading numbers to keep; None keeps all.
    """

    pooling: str
    dimensions: int | None


class EmbeddingJob:
    """The vectors of one HTTP request."""

    def __init__(
        self,
        client: EngineClient,
        request_id: str,
        prompts: Sequence[list[int]],
        options: VectorOptions,
        num_at_once: int,
    ) -> None:
        """Prepare; nothing is submitted yet.

        Args:
            client: Submits to the engine.
            request_id: Unique; the engine's ids are made from it.
            prompts: Token ids of each prompt.
            options: What is asked for.
            num_at_once: Prompts that may be in the engine at a time.
        """
        self._client = client
        self._request_id = request_id
        self._prompts = prompts
        self._options = options
        self._num_at_once = num_at_once
        self._open: set[CompletionStream] = set()
        self._error: BaseException | None = None

    async def run(self) -> list[list[float]]:
        """Return a vector of length 1 for each prompt.

        Raises:
            EngineError: The engine refused or failed one; none is left running.
        """
        turns = asyncio.Semaphore(self._num_at_once)
        tasks = [
            asyncio.ensure_future(self._in_turn(turns, index))
            for index in range(len(self._prompts))
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def fail(self, error: BaseException) -> None:
        """End the job with an error."""
        self._error = error
        for stream in list(self._open):
            stream.fail(error)

    async def _in_turn(self, turns: asyncio.Semaphore, index: int) -> list[float]:
        async with turns:
            if self._error is not None:
                raise self._error
            return normalize(await self._pool(index), self._options.dimensions)

    async def _pool(self, index: int) -> list[float]:
        """Have one prompt computed."""
        arguments = {
            "max_new_tokens": 1,
            "temperature": 0.0,
            "pooling": self._options.pooling,
            "holds_place": False,  # the list has one for it
        }
        [stream] = self._client.submit(
            f"{self._request_id}-{index}", self._prompts[index], arguments
        )
        self._open.add(stream)
        pooled: list[float] | None = None
        try:
            async for delta in stream:
                pooled = delta.pooled
        finally:
            self._open.discard(stream)
            stream.close()
        if pooled is None:
            raise RequestFailedError("the engine returned no vector")
        return pooled


def normalize(vector: Sequence[float], dimensions: int | None) -> list[float]:
    """Return the leading numbers of a vector, at length 1.

    Raises:
        RequestFailedError: They have no direction: all are 0, or one is no number.
    """
    kept = vector[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in kept))
    if not (math.isfinite(length) and length > 0):
        raise RequestFailedError("the model's hidden states are no vector")
    return [value / length for value in kept]


def to_base64(vector: Sequence[float]) -> str:
    """Return a vector as little-endian float32 in base64."""
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")
