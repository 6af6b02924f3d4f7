"""Holding the loop between two steps, so that a caller may use the model.

Callers' threads hold, the engine thread parks. Counted: several threads may hold at once and one
thread may hold repeatedly; the loop goes on when the last holder leaves.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PauseGate:
    """A gate at the top of the loop that callers can keep shut."""

    def __init__(self, wake_loop: Callable[[], None]) -> None:
        """Start open.

        Args:
            wake_loop: Makes a sleeping loop come to the gate.
        """
        self._wake_loop = wake_loop
        self._changed = threading.Condition()
        self._num_holders = 0
        self._parked = False
        self._ended = True
        self._cause: BaseException | None = None
        self._held = threading.local()

    @property
    def held_by_this_thread(self) -> bool:
        """Whether the calling thread is inside `hold`."""
        return getattr(self._held, "depth", 0) > 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the loop parked for the length of a with block.

        Raises:
            RuntimeError: The loop does not run, or ended before it parked.
        """
        with self._changed:
            if self._ended:
                raise RuntimeError("the engine does not run, so it cannot be paused")
            self._num_holders += 1
        self._held.depth = getattr(self._held, "depth", 0) + 1
        try:
            self._wake_loop()
            with self._changed:
                self._changed.wait_for(lambda: self._parked or self._ended)
                if self._ended:
                    raise RuntimeError(
                        "the engine ended while a pause waited for it"
                    ) from self._cause
            yield
        finally:
            self._held.depth -= 1
            with self._changed:
                self._num_holders -= 1
                self._changed.notify_all()

    def park(self) -> None:
        """Wait on the engine thread while anyone holds the gate."""
        if self._num_holders == 0:
            return
        with self._changed:
            self._parked = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_holders == 0)
            self._parked = False

    def set_ended(self, ended: bool, cause: BaseException | None = None) -> None:
        """Note that the loop has ended or begun; waiting holders are told, with what killed it."""
        with self._changed:
            self._ended = ended
            self._cause = cause
            self._changed.notify_all()
