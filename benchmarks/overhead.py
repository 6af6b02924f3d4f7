"""What a step of the engine costs when the model costs nothing.

    python -m benchmarks.overhead                    all shapes
    python -m benchmarks.overhead --rows 1 64        some numbers of running rows
    python -m benchmarks.overhead --transformers     beside transformers' continuous batching

A runner that returns the same logits every time stands in for the model; everything else is the
engine's own: mail, schedule, tensors, drawing a token, state, one streamed output per row and its
hand-over to an event loop. Processor time of the one thread that does it, so that other processes
on the machine count as little as they can; the median over many steps.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.host import print_facts
from benchmarks.machine import describe_machine
from benchmarks.null_engine import NullEngine
from benchmarks.null_transformers import transformers_steps

ROWS = (1, 16, 64, 256)
CONTEXTS = (100, 8_000)
WAITING = (0, 10_000)
# The target: a fixed part and a part per running row, in microseconds.
BASE_TARGET, ROW_TARGET = 150.0, 2.0
STREAM_TOKENS = 20_000
STREAM_WINDOW = 1_000
# Theirs are slower, and steadier than the difference.
TRANSFORMERS_STEPS = 60


@dataclass(frozen=True, slots=True)
class Shape:
    """One situation.

    Attributes:
        num_rows: Requests that run.
        context: Tokens each of them has behind it.
        num_waiting: Requests that wait.
    """

    num_rows: int
    context: int
    num_waiting: int

    @property
    def target(self) -> float:
        """What a step may cost, in microseconds."""
        return BASE_TARGET + ROW_TARGET * self.num_rows


def measure_steps(shape: Shape, num_steps: int) -> float:
    """Return the median cost of a step, in microseconds."""
    with NullEngine(shape.num_rows, shape.context + num_steps + 64) as engine:
        engine.submit(shape.num_rows, shape.context, max_new_tokens=num_steps + 50)
        engine.submit(shape.num_waiting, 16, max_new_tokens=4)
        engine.run_until_decoding(shape.num_rows)
        return statistics.median(engine.timed_turn() for _ in range(num_steps)) * 1e6


def measure_stream() -> tuple[float, float]:
    """Return what a token of a long streamed answer costs at its start and at its end, in us."""
    with NullEngine(1, STREAM_TOKENS + 64) as engine:
        engine.submit(1, 16, max_new_tokens=STREAM_TOKENS)
        engine.run_until_decoding(1)
        costs = [engine.timed_turn() * 1e6 for _ in range(STREAM_TOKENS - 8)]
    return statistics.median(costs[:STREAM_WINDOW]), statistics.median(costs[-STREAM_WINDOW:])


def show(console: Console, results: dict[Shape, float], theirs: dict[Shape, float]) -> None:
    """Print a row for each shape."""
    headers = ["rows", "context", "waiting", "us/step", "target"]
    table = Table(*headers, *(["transformers us/step", "ratio"] if theirs else []))
    for shape, cost in results.items():
        other = theirs.get(shape)
        compared = ["too large"] if other is None else [f"{other:,.0f}", f"{other / cost:,.0f} x"]
        table.add_row(
            str(shape.num_rows),
            f"{shape.context:,}",
            f"{shape.num_waiting:,}",
            f"{cost:,.0f}",
            f"{shape.target:,.0f}{'' if cost <= shape.target else ' missed'}",
            *(compared if theirs else []),
        )
    console.print(table)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, metavar="N")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS, metavar="N")
    parser.add_argument("--waiting", type=int, nargs="+", default=WAITING, metavar="N")
    parser.add_argument("--steps", type=int, default=400, metavar="N")
    parser.add_argument("--transformers", action="store_true", help="measure theirs as well")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    torch.set_num_threads(1)
    shapes = [
        Shape(rows, context, waiting)
        for rows in options.rows
        for context in options.contexts
        for waiting in options.waiting
    ]
    progress = Console(stderr=True)
    results, theirs = {}, {}
    for shape in track(shapes, "shapes", console=progress):
        results[shape] = measure_steps(shape, options.steps)
        if options.transformers:
            other = transformers_steps(
                shape.num_rows, shape.context, shape.num_waiting, TRANSFORMERS_STEPS
            )
            if other is not None:
                theirs[shape] = other
    console = Console()
    print_facts(console, describe_machine(), "overhead", arguments)
    show(console, results, theirs)
    start, end = measure_stream()
    console.print(
        f"a streamed answer of {STREAM_TOKENS:,} tokens: {start:.0f} us per token in its first "
        f"{STREAM_WINDOW:,}, {end:.0f} us in its last",
        highlight=False,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
