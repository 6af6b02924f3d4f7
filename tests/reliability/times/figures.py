"""What the measurements have in common: a figure, a server, and a look at its counters."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psutil

from tests.engine.threads import until
from tests.reliability.process import Breakable

Start = Callable[..., AbstractContextManager[Breakable]]


@dataclass(frozen=True, order=True)
class Figure:
    """What was measured; of several rounds the largest is kept, which is the worst."""

    value: float
    unit: str = "s"
    digits: int = 2

    def __str__(self) -> str:
        return f"{self.value:.{self.digits}f} {self.unit}".rstrip()


Figures = dict[str, Figure]


def milliseconds(seconds: float) -> Figure:
    return Figure(seconds * 1000, "ms", 1)


def count(number: int) -> Figure:
    return Figure(number, "", 0)


def since(began: float) -> float:
    return time.monotonic() - began


def seconds_until(condition: Callable[[], object]) -> Figure:
    began = time.monotonic()
    until(condition, seconds=60)
    return Figure(since(began))


def p99(values: Sequence[float]) -> float:
    """Return the value that one in a hundred is above."""
    return sorted(values)[(len(values) * 99 + 99) // 100 - 1]


def begin(server: Breakable) -> None:
    server.let_load()
    server.wait_until_ready()


def metric(server: Breakable, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"slipstream_{name} ")).split()[1])


def resident_mib(server: Breakable) -> float:
    return float(psutil.Process(server.pid).memory_info().rss) / 2**20
