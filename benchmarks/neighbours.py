"""Whether streams stutter when other programs want the server's processors.

    python -m benchmarks.neighbours                    the default model, as `make serve` serves it
    python -m benchmarks.neighbours --threads 1 2 --niceness 0 2 5

A server of its own for each number of threads and each niceness, and chats streamed to this
process, one and eight at a time, while no neighbour, one or two of them run: `while True: pass`, at
the priority of the server and of this program. Nobody is kept to a processor. A gap is the time
between two events of one stream; the first ones of each stream do not count.

    gap median     what a step takes
    gap 99 %       of all streams' gaps together
    longest        of these
    tokens/s       of all streams together, over the same time

"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise, product

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.host import ROOT, describe_host, print_facts

CONFIG = "configs/cpu.toml"
NAME = "model"
LISTENING = re.compile(r"listens on http://([\d.]+):(\d+)")
EVENT = b"data: {"
# So many events of a stream go by before its gaps count.
NUM_FIRST = 4
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Turn:
    """Streams at a time: all their gaps in seconds, and events a second in all."""

    gaps: list[float]
    rate: float


@contextmanager
def server(model: str, threads: int, settings: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Serve a model until the block ends; yields address and port."""
    command = [
        sys.executable, "-m", "server", "serve", *([model] if model else []), "--config", CONFIG,
        "--port", "0", "--served-name", NAME,
        *(word for setting in settings for word in ("--set", setting)),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    ) as process:  # fmt: skip
        try:
            yield _address(process)
        finally:
            process.terminate()


def _address(process: "subprocess.Popen[str]") -> tuple[str, int]:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := LISTENING.search(line):
            return found[1], int(found[2])
    raise SystemExit("the server did not start:\n" + "".join(said))


@contextmanager
def neighbour() -> Iterator[None]:
    """Keep a processor busy, as far as others leave it."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        try:
            yield
        finally:
            process.terminate()


def request(number: int, num_tokens: int) -> bytes:
    """Return an HTTP request for a stream of so many tokens."""
    content = f"Tell me the story of {number + 2} ships."
    body = json.dumps(
        {
            "model": NAME, "messages": [{"role": "user", "content": content}], "stream": True,
            "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0,
        }
    ).encode()  # fmt: skip
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {NAME}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def read_stream(address: tuple[str, int], message: bytes) -> list[float]:
    """Send a request; return when each event came."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(message)
    moments = []
    while line := await reader.readline():
        if line.startswith(EVENT):
            moments.append(time.perf_counter())
    writer.close()
    if len(moments) <= NUM_FIRST:
        raise SystemExit(f"a stream had {len(moments)} events; give --tokens more")
    return moments[NUM_FIRST:]


async def take_turn(address: tuple[str, int], streams: int, num_tokens: int) -> Turn:
    """Let so many streams run at the same time."""
    answers = await asyncio.gather(
        *(read_stream(address, request(number, num_tokens)) for number in range(streams))
    )
    gaps = [late - early for times in answers for early, late in pairwise(times)]
    seconds = max(times[-1] for times in answers) - min(times[0] for times in answers)
    return Turn(gaps, len(gaps) / seconds)


def measure(options: argparse.Namespace, threads: int, niceness: int) -> Iterator[list[str]]:
    """Start a server and yield the rows of the table that are its."""
    settings = [f"engine.thread_niceness={niceness}", *options.overrides]
    with server(options.model, threads, settings) as address:
        uvloop.run(take_turn(address, max(options.streams), 16))
        cases = list(product(options.streams, options.neighbours))
        turns: dict[tuple[int, int], list[Turn]] = {case: [] for case in cases}
        for _, case in product(range(options.turns), cases):
            with ExitStack() as others:
                for _ in range(case[1]):
                    others.enter_context(neighbour())
                turns[case].append(uvloop.run(take_turn(address, case[0], options.tokens)))
        for (streams, neighbours), taken in turns.items():
            yield [str(threads), str(niceness), str(streams), str(neighbours), *cells(taken)]


def cells(turns: Sequence[Turn]) -> list[str]:
    """Return the cells of a case: of all its turns together, the rate of the median one."""
    gaps = sorted(1e3 * gap for turn in turns for gap in turn.gaps)
    return [
        f"{statistics.median(gaps):.1f}",
        f"{gaps[int(len(gaps) * 0.99)]:.1f}",
        f"{gaps[-1]:.1f}",
        f"{statistics.median([turn.rate for turn in turns]):,.0f}",
    ]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="the default model")
    both = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, nargs="+", default=[both], metavar="N")
    parser.add_argument("--niceness", type=int, nargs="+", default=[2], metavar="N")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--tokens", type=int, default=100, metavar="N", help="of a stream (100)")
    parser.add_argument("--turns", type=int, default=2, metavar="N", help="of each case (2)")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE",
        help="a setting of the server; may be repeated",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    table = Table(
        "threads", "niceness", "streams", "neighbours", "gap median, ms", "99 %", "longest",
        "tokens/s",
    )  # fmt: skip
    for threads, niceness in product(options.threads, options.niceness):
        for row in measure(options, threads, niceness):
            table.add_row(*row)
    console = Console()
    print_facts(console, describe_host(), "neighbours", arguments)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
