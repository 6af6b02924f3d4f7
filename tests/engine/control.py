"""A runner that a test holds, counts and breaks, in the place of a manager's own."""

import threading
from collections.abc import Callable

import torch

from engine import ContinuousBatchingManager
from engine.batch import BatchInputs
from engine.loop import EngineLoop
from engine.runners.eager import Runner
from tests.engine.threads import DEADLINE_SECONDS


class ControlledRunner:
    """Wraps a runner.

    Attributes:
        num_forwards: Forwards that have begun.
        poison: A token whose presence in a step makes the forward raise.
        edit: Called with the inputs and the logits of each forward; its result is returned.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._may_run = threading.Condition()
        self._num_allowed: int | None = None
        self._num_ended = 0
        self.num_forwards = 0
        self.poison: int | None = None
        self.edit: Callable[[BatchInputs, torch.Tensor], torch.Tensor] = lambda _, logits: logits

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """Wait until allowed, then compute or break."""
        with self._may_run:
            self.num_forwards += 1
            self._may_run.notify_all()
            assert self._may_run.wait_for(self._is_allowed, DEADLINE_SECONDS)
        if self.poison is not None and self.poison in inputs.input_ids[0].tolist():
            raise ValueError("poison")
        return self.edit(inputs, self._runner.forward(inputs))

    @property
    def num_ended(self) -> int:
        """Forwards that were allowed to end."""
        return self._num_ended

    def prepare(self) -> None:
        """Prepare what is wrapped."""
        self._runner.prepare()

    def hold(self) -> None:
        """Let no further forward end."""
        self.allow(0)

    def allow(self, count: int) -> None:
        """Let this many further forwards end."""
        with self._may_run:
            self._num_allowed = self._num_ended + count
            self._may_run.notify_all()

    def go(self) -> None:
        """Let everything run."""
        with self._may_run:
            self._num_allowed = None
            self._may_run.notify_all()

    def wait_for_forward(self, number: int = 1) -> None:
        """Wait until that many forwards have begun."""
        with self._may_run:
            assert self._may_run.wait_for(lambda: self.num_forwards >= number, DEADLINE_SECONDS)

    def _is_allowed(self) -> bool:
        if self._num_allowed is not None and self._num_ended >= self._num_allowed:
            return False
        self._num_ended += 1
        return True


def loop_of(manager: ContinuousBatchingManager) -> EngineLoop:
    """Return the loop of a manager that has one."""
    loop = manager._thread.loop
    assert loop is not None
    return loop


def control(manager: ContinuousBatchingManager) -> ControlledRunner:
    """Put a controlled runner into a manager that has not been started."""
    parts = loop_of(manager)._parts
    runner = ControlledRunner(parts.runner)
    parts.runner = runner
    return runner
