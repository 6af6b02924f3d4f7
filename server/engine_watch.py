"""Whether the engine lives and moves.

The event loop looks, ten times a second, at counters that the engine thread writes. A step that
does not come to its end holds no lock that is needed here, so that a hung engine is seen, too.
"""

import time
from enum import Enum

from server.engine_client import Manager


class EngineCondition(Enum):
    """What the watch has found."""

    WELL = "well"
    DEAD = "dead"
    HUNG = "hung"


class EngineWatch:
    """Looks after one engine."""

    def __init__(self, manager: Manager, hang_seconds: float) -> None:
        """Watch a manager that has been started.

        Args:
            manager: The engine's front door.
            hang_seconds: Without a step for so long, while requests run, it hangs; 0 never.
        """
        self._manager = manager
        self._hang_seconds = hang_seconds
        self._num_steps = -1
        self._moved = time.monotonic()

    def look(self) -> EngineCondition:
        """Return the engine's condition at this moment."""
        if self._manager.fatal_error is not None or not self._manager.is_running():
            return EngineCondition.DEAD
        statistics = self._manager.statistics()
        now = time.monotonic()
        idle = statistics.num_live == 0 or statistics.is_paused
        if idle or statistics.num_steps != self._num_steps:
            self._num_steps = statistics.num_steps
            self._moved = now
        if 0 < self._hang_seconds < now - self._moved:
            return EngineCondition.HUNG
        return EngineCondition.WELL
