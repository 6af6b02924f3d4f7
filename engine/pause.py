"""Holding the loop between two steps, so that a caller may use the model.

Callers' threads and coroutines hold, the engine thread parks. Counted: several may hold at once and
one may hold repeatedly; the loop goes on when the last holder leaves. A hold belongs to the thread
or task that entered it, and to what is called from there.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

# The holds that the running thread or task is inside of; a task made inside of one inherits it.
_ENTERED: ContextVar[tuple[object, ...]] = ContextVar("entered_holds", default=())


class PauseGate:
    """A gate at the top of the loop that callers can keep shut."""

    def __init__(self, wake_loop: Callable[[], None]) -> None:
        """Start open.

        Args:
            wake_loop: Makes a sleeping loop come to the gate.
        """
        self._wake_loop = wake_loop
        self._changed = threading.Condition()
        self._holds: set[object] = set()
        self._waiting: set[asyncio.Future[None]] = set()
        self._parked = False
        self._ended = True
        self._cause: BaseException | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anyone holds the gate or waits for the loop to come to it."""
        return bool(self._holds)

    @property
    def is_parked(self) -> bool:
        """Whether the loop stands still at the gate."""
        return self._parked

    @property
    def held_from_here(self) -> bool:
        """Whether the calling thread or task is inside of a hold that has not been left."""
        return any(hold in self._holds for hold in _ENTERED.get())

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the loop parked for the length of a with block.

        Raises:
            RuntimeError: The loop does not run, or ended before it parked.
        """
        hold = self._enter()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._parked or self._ended)
                self._check_not_ended()
            yield
        finally:
            self._leave(hold)

    @asynccontextmanager
    async def hold_async(self) -> AsyncIterator[None]:
        """Like `hold`, without blocking the event loop while the engine ends its step.

        Raises:
            RuntimeError: See `hold`.
        """
        hold = self._enter()
        try:
            settled = asyncio.get_running_loop().create_future()
            with self._changed:
                if not (self._parked or self._ended):
                    self._waiting.add(settled)
                else:
                    settled.set_result(None)
            try:
                await settled
            finally:
                with self._changed:
                    self._waiting.discard(settled)
            with self._changed:
                self._check_not_ended()
            yield
        finally:
            self._leave(hold)

    def park(self) -> None:
        """Wait on the engine thread while anyone holds the gate."""
        with self._changed:
            if not self._holds:
                return
            self._parked = True
            self._tell_waiters()
            self._changed.wait_for(lambda: not self._holds)
            self._parked = False

    def set_ended(self, ended: bool, cause: BaseException | None = None) -> None:
        """Note that the loop has ended or begun; waiting holders are told, with what killed it."""
        with self._changed:
            self._ended = ended
            self._cause = cause
            self._tell_waiters()

    def _enter(self) -> object:
        hold = object()
        with self._changed:
            if self._ended:
                raise RuntimeError("the engine does not run, so it cannot be paused")
            self._holds.add(hold)
        _ENTERED.set((*_ENTERED.get(), hold))
        self._wake_loop()
        return hold

    def _leave(self, hold: object) -> None:
        _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered is not hold))
        with self._changed:
            self._holds.discard(hold)
            self._changed.notify_all()

    def _check_not_ended(self) -> None:
        if self._ended:
            raise RuntimeError("the engine ended while a pause waited for it") from self._cause

    def _tell_waiters(self) -> None:
        """Wake who waits for the loop to park or to end; under the condition."""
        self._changed.notify_all()
        for settled in self._waiting:
            event_loop = settled.get_loop()
            if not event_loop.is_closed():
                event_loop.call_soon_threadsafe(_settle, settled)
        self._waiting.clear()


def _settle(settled: "asyncio.Future[None]") -> None:
    if not settled.done():
        settled.set_result(None)
