"""How long the server takes to notice, to tell and to go (R6, R8, R9, R14)."""

import signal
import time

from tests.engine.threads import Call, until
from tests.reliability.process import Breakable, Stream
from tests.reliability.times.figures import (
    Figure,
    Figures,
    Start,
    begin,
    metric,
    seconds_until,
    since,
)

NUM_STREAMS = 32
NUM_NEWCOMERS = 50
HANG_SECONDS = 1.0


def streams_of(server: Breakable, count: int) -> list[Stream]:
    streams = [Stream(server, f"stream {number}", 450) for number in range(count)]
    until(lambda: all(stream.events for stream in streams))
    return streams


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
            f"{what}: to /live 503": Figure(seen),
            f"{what}: to the error event of every stream": Figure(told),
            f"{what}: to the end of the process": Figure(since(began) - own),
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
            "SIGTERM: to /ready 503": Figure(unready),
            f"SIGTERM: slowest refusal of {NUM_NEWCOMERS} newcomers": Figure(slowest),
            f"SIGTERM: from the end of {NUM_STREAMS} streams to exit 0": Figure(since(ended)),
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
        return {"a full queue: slowest of 100 refusals": Figure(slowest)}
