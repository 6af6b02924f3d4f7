"""Measure how long the server takes to notice, to tell and to go, and print a table.

    python -m tests.reliability.times [--rounds N]

Each figure is the worst of N rounds (3), each with a server of its own: a process that serves a
random model of two layers. Nothing is judged, since that would depend on what else the machine
does; docs/reliability.md keeps the last table from a named machine.
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.reliability.process import EXIT_THREAD, HANG, Breakable, Imported, breakable_server
from tests.reliability.times import crowds, lives
from tests.reliability.times.figures import Figures, Start
from tests.tiny_model import make_tiny_model

MEASURES: list[Callable[[Start], Figures]] = [
    lives.measure_start,
    lambda start: lives.measure_death(start, EXIT_THREAD, "the engine's thread ends", 0.0),
    lambda start: lives.measure_death(
        start, HANG, f"a step hangs, after {lives.HANG_SECONDS:g} s", lives.HANG_SECONDS
    ),
    lives.measure_drain,
    lives.measure_leaving,
    lives.measure_refusals,
    crowds.measure_overload,
    lambda start: crowds.measure_herd(start, 1.0, "within a second"),
    lambda start: crowds.measure_herd(start, 0.0, "at once"),
    crowds.measure_slow_readers,
    crowds.measure_deadlines,
]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    worst: Figures = {}
    # Before this process has anything that a server should not inherit.
    imported = Imported()
    with tempfile.TemporaryDirectory() as place:
        model = make_tiny_model(Path(place) / "model")
        for measure in MEASURES * rounds:

            def start(*settings: str) -> AbstractContextManager[Breakable]:
                folder = Path(tempfile.mkdtemp(dir=place))
                arguments = [word for setting in settings for word in ("--set", setting)]
                return breakable_server(imported, folder, str(model), *arguments)

            for name, figure in measure(start).items():
                worst[name] = max(figure, worst.get(name, figure))
    imported.close()
    table = [f"| {name} | {figure} |" for name, figure in worst.items()]
    lines = [f"{platform.machine()}, {rounds} rounds, the worst of each", "", "| | |", "|---|---|"]
    sys.stdout.write("\n".join([*lines, *table, ""]))


if __name__ == "__main__":
    main()
