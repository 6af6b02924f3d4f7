"""Measure how long the server takes to notice, to tell and to go, and print a table.

    python -m tests.reliability.times [--rounds N]

Each figure is the worst of N rounds (3), each with a server of its own: a process that serves a
random model of two layers. Nothing is judged, since that would depend on what else the machine
does; docs/reliability.md keeps the last table from a named machine.
"""

import argparse
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.engine.threads import Call, until
from tests.reliability.process import (
    EXIT_THREAD,
    HANG,
    Breakable,
    Imported,
    Stream,
    breakable_server,
)
from tests.tiny_model import make_tiny_model

NUM_STREAMS = 32
NUM_NEWCOMERS = 50
HANG_SECONDS = 1.0
Figures = dict[str, float]
Start = Callable[..., AbstractContextManager[Breakable]]


def since(began: float) -> float:
    return time.monotonic() - began


def seconds_until(condition: Callable[[], object]) -> float:
    began = time.monotonic()
    until(condition, seconds=60)
    return since(began)


def begin(server: Breakable) -> None:
    server.let_load()
    server.wait_until_ready()


def streams_of(server: Breakable, count: int) -> list[Stream]:
    streams = [Stream(server, f"stream {number}", 450) for number in range(count)]
    until(lambda: all(stream.events for stream in streams))
    return streams


def metric(server: Breakable, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"slipstream_{name} ")).split()[1])


def measure_start(start: Start) -> Figures:
    with start() as server:
        server.wait_for_port()
        server.let_load()
        return {"from the open port to /ready 200": seconds_until(server.is_ready)}


def measure_death(start: Start, letter: str, what: str, own: float) -> Figures:
    """Break the engine; `own` is what the server is told to wait before it calls it hung."""
    with start(f"server.hang_timeout_seconds={HANG_SECONDS}") as server:
        begin(server)
        streams = streams_of(server, 4)
        began = time.monotonic()
        Call(server.complete, letter)
        until(lambda: server.get("/live").status_code == 503)
        seen = since(began) - own
        codes = {stream.error_code() for stream in streams}
        told = since(began) - own
        assert codes == {"engine_dead"}
        assert server.wait() != 0
        return {
            f"{what}: to /live 503": seen,
            f"{what}: to the error event of every stream": told,
            f"{what}: to the end of the process": since(began) - own,
        }


def measure_drain(start: Start) -> Figures:
    with start("server.shutdown_timeout_seconds=60") as server:
        begin(server)
        streams = streams_of(server, NUM_STREAMS)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        until(lambda: server.get("/ready").status_code == 503)
        unready = since(began)
        slowest = 0.0
        for _ in range(NUM_NEWCOMERS):
            asked = time.monotonic()
            assert server.complete("new").status_code == 503
            slowest = max(slowest, since(asked))
        assert {stream.error_code() for stream in streams} == {None}
        ended = time.monotonic()
        assert server.wait() == 0
        return {
            "SIGTERM: to /ready 503": unready,
            f"SIGTERM: slowest refusal of {NUM_NEWCOMERS} newcomers": slowest,
            f"SIGTERM: from the end of {NUM_STREAMS} streams to exit 0": since(ended),
        }


def measure_leaving(start: Start) -> Figures:
    """A client that leaves: how long its blocks are kept."""
    with start() as server:
        begin(server)
        body = {"prompt": "on and on", "max_tokens": 450, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            assert metric(server, "requests_running") == 1
        figure = seconds_until(lambda: metric(server, "requests_running") == 0)
        return {"a client leaves: to its place and blocks free": figure}


def measure_refusals(start: Start) -> Figures:
    with start("engine.max_queue_size=4", "engine.max_requests_per_batch=1") as server:
        begin(server)
        crowd = [Stream(server, "on and on", 450) for _ in range(5)]
        until(lambda: metric(server, "requests_waiting") == 4)
        slowest = 0.0
        for _ in range(100):
            asked = time.monotonic()
            assert server.complete("too many", max_tokens=4).status_code == 429
            slowest = max(slowest, since(asked))
        assert crowd[0].is_alive(), "the queue was full to the end"
        return {"a full queue: slowest of 100 refusals": slowest}


MEASURES: list[Callable[[Start], Figures]] = [
    measure_start,
    lambda start: measure_death(start, EXIT_THREAD, "the engine's thread ends", 0.0),
    lambda start: measure_death(
        start, HANG, f"a step hangs, after {HANG_SECONDS:g} s", HANG_SECONDS
    ),
    measure_drain,
    measure_leaving,
    measure_refusals,
]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    worst: Figures = {}
    imported = Imported()
    with tempfile.TemporaryDirectory() as place:
        model = make_tiny_model(Path(place) / "model")
        for measure in MEASURES * rounds:

            def start(*settings: str) -> AbstractContextManager[Breakable]:
                folder = Path(tempfile.mkdtemp(dir=place))
                arguments = [word for setting in settings for word in ("--set", setting)]
                return breakable_server(imported, folder, str(model), *arguments)

            for name, seconds in measure(start).items():
                worst[name] = max(seconds, worst.get(name, 0.0))
    imported.close()
    table = [f"| {name} | {seconds:.2f} s |" for name, seconds in worst.items()]
    lines = [f"{platform.machine()}, {rounds} rounds, the worst of each", "", "| | |", "|---|---|"]
    sys.stdout.write("\n".join([*lines, *table, ""]))


if __name__ == "__main__":
    main()
