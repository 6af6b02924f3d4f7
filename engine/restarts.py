"""How often the loop may begin again before it is taken for broken.

Engine thread only. A fault that comes once in a while costs the requests that met it; one that
comes back at once would cost every request there will ever be, and is better seen as a death.
"""

import time
from collections import deque

MAX_RESTARTS = 3
WINDOW_SECONDS = 60.0


class RestartBudget:
    """Counts restarts within a sliding window."""

    def __init__(
        self, max_restarts: int = MAX_RESTARTS, window_seconds: float = WINDOW_SECONDS
    ) -> None:
        """Start with nothing spent.

        Args:
            max_restarts: Restarts within any window.
            window_seconds: Length of the window.
        """
        self.max_restarts = max_restarts
        self.num_restarts = 0
        self._window_seconds = window_seconds
        self._times: deque[float] = deque()

    def spend(self) -> bool:
        """Count one restart; return False if there have been too many of late."""
        now = time.monotonic()
        while self._times and now - self._times[0] > self._window_seconds:
            self._times.popleft()
        if len(self._times) >= self.max_restarts:
            return False
        self._times.append(now)
        self.num_restarts += 1
        return True
