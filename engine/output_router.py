"""Brings outputs from the engine thread to whoever waits for them.

`deliver` runs on the engine thread, once per step; registration runs on callers' threads; the table
of handlers is behind a lock. For each event loop there is one wake-up per step, whatever the number
of its streams. A handler that cannot be reached costs its own request and no other.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import InvalidRequestError
from engine.faults import FaultPoint, FaultPoints
from engine.requests import GenerationOutput, RequestStatus
from engine.result_store import ResultStore

logger = logging.getLogger(__name__)

ResultHandler = Callable[[GenerationOutput], object]
_Calls = list[tuple[ResultHandler, GenerationOutput]]


@dataclass(frozen=True, slots=True)
class _Registration:
    """A handler and the event loop it runs on; without a loop, outputs are dropped."""

    callback: ResultHandler
    loop: asyncio.AbstractEventLoop | None


_NOBODY = _Registration(lambda _: None, None)


class OutputRouter:
    """Sends each output to its request's handler, or else to the result store."""

    def __init__(self, store: ResultStore, faults: FaultPoints | None = None) -> None:
        """Start without handlers.

        Args:
            store: Where outputs without a handler go.
            faults: What tests arm; None is nothing.
        """
        self.store = store
        self._faults = faults or FaultPoints()
        self._handlers: dict[str, _Registration] = {}
        self._readers: set[str] = set()  # ids whose outputs somebody takes from the store
        self._lock = threading.Lock()

    def register(self, request_id: str, callback: ResultHandler) -> None:
        """Send a request's outputs to a callback on the running event loop.

        It gets those that nobody has taken first. If the terminal one is among them, it gets these
        only and is not kept.

        Raises:
            RuntimeError: No event loop runs in this thread.
            InvalidRequestError: The outputs go to somebody already.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            earlier = self._take_over(request_id, _Registration(callback, loop))
            if earlier:
                # Under the lock, so that what `deliver` brings stands behind.
                loop.call_soon(_call_all, [(callback, output) for output in earlier])

    def take_over(self, request_id: str, callback: ResultHandler) -> list[GenerationOutput]:
        """Like `register`, but return the outputs that nobody has taken.

        Nothing falls between the ones that are returned and the ones the callback gets.

        Raises:
            RuntimeError: No event loop runs in this thread.
            InvalidRequestError: The outputs go to somebody already.
        """
        registration = _Registration(callback, asyncio.get_running_loop())
        with self._lock:
            return self._take_over(request_id, registration)

    @contextmanager
    def reading(self, request_id: str) -> Iterator[None]:
        """Keep others from taking a request's outputs out of the store, for the length of a block.

        Raises:
            InvalidRequestError: The outputs go to somebody already.
        """
        with self._lock:
            self._check_unclaimed(request_id)
            self._readers.add(request_id)
        try:
            yield
        finally:
            with self._lock:
                self._readers.discard(request_id)

    def __contains__(self, request_id: str) -> bool:
        """Return whether somebody waits for outputs of this id, or some wait to be taken."""
        return (
            request_id in self._handlers or request_id in self._readers or request_id in self.store
        )

    def _take_over(self, request_id: str, registration: _Registration) -> list[GenerationOutput]:
        self._check_unclaimed(request_id)
        earlier = self.store.take_all(request_id)
        if not (earlier and earlier[-1].is_finished()):
            self._handlers[request_id] = registration
        return earlier

    def _check_unclaimed(self, request_id: str) -> None:
        """Refuse a second taker: each would have a part of the outputs and think it the whole."""
        if request_id in self._handlers or request_id in self._readers:
            raise InvalidRequestError(
                f"the outputs of request {request_id!r} go to a handler or an iterator already",
                param="request_id",
            )

    def unregister(self, request_id: str) -> None:
        """Forget a request's handler, if it has one."""
        with self._lock:
            self._handlers.pop(request_id, None)

    def abandon(self, request_id: str) -> None:
        """Drop what is still to come for a handler that nobody listens to any more."""
        with self._lock:
            if request_id in self._handlers:
                self._handlers[request_id] = _NOBODY

    @property
    def num_handlers(self) -> int:
        """Requests that have a handler."""
        return len(self._handlers)

    def deliver(self, outputs: Sequence[GenerationOutput]) -> dict[str, Exception]:
        """Hand outputs over, in order; a handler goes with its request's terminal output.

        Returns:
            Request id -> why its output could not be handed over.
        """
        undelivered: dict[str, Exception] = {}
        if self._faults.armed:
            outputs = self._take_out_faults(outputs, undelivered)
        # By identity: a loop of the caller's own kind need not be hashable.
        by_loop: dict[int, tuple[asyncio.AbstractEventLoop, _Calls]] = {}
        unhandled: list[GenerationOutput] = []
        handlers = self._handlers
        with self._lock:
            for output in outputs:
                registration = handlers.get(output.request_id)
                if registration is None:
                    unhandled.append(output)
                    continue
                if output.is_last:
                    del handlers[output.request_id]
                loop = registration.loop
                if loop is not None:
                    _, calls = by_loop.setdefault(id(loop), (loop, []))
                    calls.append((registration.callback, output))
            if unhandled:
                # Under the lock, so that `take_over` finds each output here or there.
                self.store.put(unhandled)
        for loop, calls in by_loop.values():
            try:
                loop.call_soon_threadsafe(_call_all, calls)
            except Exception as error:  # noqa: BLE001 - a caller's loop: closed, or of its own kind
                undelivered.update(self._give_up(calls, error))
        return undelivered

    def _take_out_faults(
        self, outputs: Sequence[GenerationOutput], undelivered: dict[str, Exception]
    ) -> list[GenerationOutput]:
        """Return the outputs without those for which a fault is armed."""
        sound = []
        for output in outputs:
            if output.request_id in undelivered:
                continue  # what comes after a lost output would hide the loss
            try:
                # What tells of a failure is let through: the failure may be this one.
                if output.status is not RequestStatus.FAILED:
                    self._faults.check(FaultPoint.DELIVER, [output])
                sound.append(output)
            except Exception as error:  # noqa: BLE001 - the ring around one output
                undelivered[output.request_id] = error
        return sound

    def _give_up(self, calls: _Calls, error: Exception) -> dict[str, Exception]:
        """Note that an event loop takes nothing any more; return the requests that go on for it."""
        logger.warning("%d outputs are lost with their event loop: %s", len(calls), error)
        # A request may have several outputs in a step, its terminal one among them.
        ended = {output.request_id for _, output in calls if output.is_finished()}
        going_on = {output.request_id for _, output in calls} - ended
        for name in going_on:
            self.abandon(name)
        return dict.fromkeys(going_on, error)


def _call_all(calls: _Calls) -> None:
    """Run handlers on their event loop; one that raises does not keep the others from theirs."""
    for callback, output in calls:
        try:
            callback(output)
        except Exception:  # a caller's code: its error is its own
            logger.exception("the result handler of request %s raised", output.request_id)
