"""Named points at which a test makes an engine fail; nothing is armed in normal operation.

One object per engine, handed down where it is assembled. The engine thread asks `armed` where it
passes a point and goes on; what is armed raises there as if the engine's own code had, or does
what the test wants: sleep, or end the thread. Tests arm and disarm from their threads.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class FaultPoint(Enum):
    """Where an engine can be made to fail, in the order in which a request comes past."""

    ADMIT = "admit"  # a request is taken from the mailbox into the scheduler
    BUILD = "build"  # a batch is turned into tensors
    FORWARD = "forward"  # the model runs
    SAMPLE = "sample"  # tokens are drawn
    DELIVER = "deliver"  # an output is brought to its handler or its queue


class InjectedFaultError(Exception):
    """What an armed point raises."""


class Subject(Protocol):
    """What a point is passed with: a request, or an output of one."""

    @property
    def request_id(self) -> str:
        """The request's id."""

    @property
    def prompt_ids(self) -> list[int]:
        """The request's prompt."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """One reason to raise; without an id and a token it is meant for everyone."""

    point: FaultPoint
    request_id: str | None
    token: int | None
    once: bool
    effect: Callable[[], None] | None

    def hits(self, subject: Subject) -> bool:
        """Return whether this request is meant."""
        if self.request_id is not None and self.request_id != subject.request_id:
            return False
        return self.token is None or self.token in subject.prompt_ids


class FaultPoints:
    """What is armed in one engine.

    Attributes:
        armed: Whether anything is; the only thing that normal operation looks at.
    """

    def __init__(self) -> None:
        """Start with nothing armed."""
        self.armed = False
        self._faults: list[_Fault] = []
        self._changing = threading.Lock()

    def arm(
        self,
        point: FaultPoint,
        *,
        request_id: str | None = None,
        token: int | None = None,
        once: bool = False,
        effect: Callable[[], None] | None = None,
    ) -> None:
        """Make a point fail.

        Args:
            point: Where.
            request_id: Only when this request comes past; None means any.
            token: Only when a request with this token in its prompt comes past; None means any.
            once: A single time.
            effect: Called in place of raising `InjectedFaultError`; its exceptions are raised.
        """
        with self._changing:
            self._faults.append(_Fault(point, request_id, token, once, effect))
            self.armed = True

    def disarm(self) -> None:
        """Let everything pass again."""
        with self._changing:
            self._faults.clear()
            self.armed = False

    def check(self, point: FaultPoint, subjects: Iterable[Subject]) -> None:
        """Fail if the point is armed for one of the requests that come past.

        Raises:
            InjectedFaultError: It is, and nothing else was to happen.
        """
        fault, subject = self._take(point, list(subjects))
        if fault is None or subject is None:
            return
        if fault.effect is None:
            raise InjectedFaultError(f"{point.value} of request {subject.request_id}")
        fault.effect()

    def _take(
        self, point: FaultPoint, subjects: list[Subject]
    ) -> tuple[_Fault | None, Subject | None]:
        """Return the fault that is met and by whom; one that is meant once is disarmed."""
        with self._changing:
            for fault in self._faults:
                hit = next((s for s in subjects if fault.point is point and fault.hits(s)), None)
                if hit is None:
                    continue
                if fault.once:
                    self._faults.remove(fault)
                    self.armed = bool(self._faults)
                return fault, hit
        return None, None
