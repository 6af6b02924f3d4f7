"""Waiting for other threads in tests, with an end."""

import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE_SECONDS = 20.0


def until(condition: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until something holds; fail if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waited for did not happen"
        time.sleep(0.001)


class Call(threading.Thread):
    """A call on a thread of its own, with its result or its exception."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._args = args
        self.error: BaseException | None = None
        self.result: Any = None
        self.start()

    def run(self) -> None:
        """Call, and keep what comes of it."""
        try:
            self.result = self._call(*self._args)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def outcome(self) -> Any:
        """Wait for the end; return the result or raise the exception."""
        self.join(DEADLINE_SECONDS)
        assert not self.is_alive(), "a call does not return"
        if self.error is not None:
            raise self.error
        return self.result
