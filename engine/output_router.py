"""Brings outputs from the engine thread to whoever waits for them.

`deliver` runs on the engine thread, once per step; registration runs on callers' threads; the table
of handlers is behind a lock. For each event loop there is one wake-up per step, whatever the number
of its streams. This is the engine's only use of asyncio.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.requests import GenerationOutput
from engine.result_store import ResultStore

logger = logging.getLogger(__name__)

ResultHandler = Callable[[GenerationOutput], object]


@dataclass(frozen=True, slots=True)
class _Registration:
    """A handler and the event loop it runs on."""

    callback: ResultHandler
    loop: asyncio.AbstractEventLoop


class OutputRouter:
    """Sends each output to its request's handler, or else to the result store."""

    def __init__(self, store: ResultStore) -> None:
        """Start without handlers."""
        self.store = store
        self._handlers: dict[str, _Registration] = {}
        self._lock = threading.Lock()

    def register(self, request_id: str, callback: ResultHandler) -> None:
        """Send a request's outputs to a callback on the running event loop.

        Raises:
            RuntimeError: No event loop runs in this thread.
        """
        registration = _Registration(callback, asyncio.get_running_loop())
        with self._lock:
            self._handlers[request_id] = registration

    def unregister(self, request_id: str) -> None:
        """Forget a request's handler, if it has one."""
        with self._lock:
            self._handlers.pop(request_id, None)

    @property
    def num_handlers(self) -> int:
        """Requests that have a handler."""
        return len(self._handlers)

    def deliver(self, outputs: Iterable[GenerationOutput]) -> None:
        """Hand outputs over, in order; a handler goes with its request's terminal output."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[ResultHandler, GenerationOutput]]] = {}
        unhandled: list[GenerationOutput] = []
        with self._lock:
            for output in outputs:
                registration = self._handlers.get(output.request_id)
                if registration is None:
                    unhandled.append(output)
                    continue
                if output.is_finished():
                    del self._handlers[output.request_id]
                calls = by_loop.setdefault(registration.loop, [])
                calls.append((registration.callback, output))
        if unhandled:
            self.store.put(unhandled)
        for loop, calls in by_loop.items():
            try:
                loop.call_soon_threadsafe(_call_all, calls)
            except RuntimeError:
                # The loop was closed with streams open: nobody is left to tell.
                logger.warning("an event loop closed with %d outputs undelivered", len(calls))


def _call_all(calls: list[tuple[ResultHandler, GenerationOutput]]) -> None:
    """Run handlers on their event loop; one that raises does not keep the others from theirs."""
    for callback, output in calls:
        try:
            callback(output)
        except Exception:  # a caller's code: its error is its own
            logger.exception("the result handler of request %s raised", output.request_id)
