"""Threads for work that must not hold the event loop, with a time after which it is given up.

A chat template is a program of whoever made the model, and may loop for ever. Work that is given up
has an exception raised inside of it, at its next Python instruction, so that its thread is free for
others; one long call into C ends first.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

# How long a thread waits for an exception that was raised for it as its work ended.
DELIVERY_SECONDS = 1.0


class GivenUpError(BaseException):
    """Raised inside of work that is given up; no `except Exception` stops it."""


class LimitedPool:
    """A fixed number of threads."""

    def __init__(self, num_threads: int, name: str) -> None:
        """Make no thread yet."""
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    async def run(
        self, seconds: float | None, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Call a function on a thread; if its caller is cancelled, the function is given up.

        Args:
            seconds: How long it may take, the wait for a thread included; None is for ever.
            function: What to call.
            *arguments: Its arguments.

        Raises:
            TimeoutError: It took longer; it is given up.
        """
        job = _Job(function, arguments)
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()
        work = self._pool.submit(job.run)
        work.add_done_callback(partial(_tell, loop, outcome))
        timer = None if seconds is None else loop.call_later(seconds, _expire, outcome)
        try:
            return await outcome
        except (TimeoutError, asyncio.CancelledError):
            job.give_up()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """End the threads as they become free; what waits for one is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Job:
    """One call, which may be given up from another thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._changing = threading.Lock()
        self._thread: int | None = None
        self._given_up = False
        self._delivered = False

    def run(self) -> Any:
        """Do the work; on the pool's thread, which nothing may leave but an ordinary exception."""
        try:
            return self._work()
        except GivenUpError:
            raise TimeoutError("the work was given up") from None

    def give_up(self) -> None:
        """Raise an exception inside of the work, or keep it from beginning."""
        with self._changing:
            self._given_up = True
            if self._thread is not None:
                thread, error = ctypes.c_ulong(self._thread), ctypes.py_object(GivenUpError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)

    def _work(self) -> Any:
        with self._changing:
            if self._given_up:
                raise GivenUpError
            self._thread = threading.get_ident()
        try:
            return self._function(*self._arguments)
        except GivenUpError:
            self._delivered = True
            raise
        finally:
            if self._leaves_exception():
                _await_delivery()

    def _leaves_exception(self) -> bool:
        """Let nobody raise anything here any more; return whether something is on its way."""
        with self._changing:
            self._thread = None
            return self._given_up and not self._delivered


def _await_delivery() -> None:
    """Take an exception that is on its way here, before it meets the thread's next work."""
    deadline = time.monotonic() + DELIVERY_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.001)


def _tell(
    loop: asyncio.AbstractEventLoop, outcome: "asyncio.Future[Result]", work: "Future[Result]"
) -> None:
    """Have the event loop take the outcome of work, in one turn; on the thread that did it.

    A turn of a busy loop takes milliseconds, and asyncio's own chain of futures takes four.
    """
    # Refused by a loop that was closed because nobody waits any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, outcome, work)


def _settle(outcome: "asyncio.Future[Result]", work: "Future[Result]") -> None:
    """Give the outcome of work to who waits for it, if it still is waited for."""
    if outcome.done():
        return
    if work.cancelled():
        outcome.cancel()
    elif (error := work.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(work.result())


def _expire(outcome: "asyncio.Future[Any]") -> None:
    if not outcome.done():
        outcome.set_exception(TimeoutError())
