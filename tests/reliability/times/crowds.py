"""Times under load: refusals, a herd, slow readers, deadlines (R10 to R13)."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.engine.threads import Call, until
from tests.integration.engine_server import Connection, run_clients
from tests.reliability.process import Breakable
from tests.reliability.raw_http import completion, request
from tests.reliability.times.figures import (
    Figure,
    Figures,
    Start,
    begin,
    count,
    metric,
    milliseconds,
    p99,
    resident_mib,
    since,
)

PATH = "/v1/completions"
OVERLOAD_SECONDS = 10.0
NUM_HERD = 1000
NUM_NORMAL, NUM_SLOW = 10, 50
STREAM_SECONDS = 5.0
# Asks for /live, one request after another, until its input ends; then writes how long each took.
# A process of its own, as the clients of a herd would keep its answers waiting themselves.
PROBE = """
import http.client, json, select, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
took = []
while not select.select([sys.stdin], [], [], 0.002)[0]:
    began = time.monotonic()
    connection.request("GET", "/live")
    connection.getresponse().read()
    took.append(time.monotonic() - began)
    if len(took) == 1:
        print("asks", flush=True)
print(json.dumps(took))
"""


@contextmanager
def asking_for_life(server: Breakable) -> Iterator[list[float]]:
    """Ask for /live until the block ends; the list holds the seconds of each answer afterwards."""
    took: list[float] = []
    command = [sys.executable, "-c", PROBE, str(port_of(server))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as probe:
        assert probe.stdout is not None
        assert probe.stdout.readline() == "asks\n"
        yield took
        took += json.loads(probe.communicate()[0])


def port_of(server: Breakable) -> int:
    return int(server.url.rpartition(":")[2])


async def ask(server: Breakable, **fields: Any) -> tuple[int, float]:
    """Ask on a connection of its own; return the status, 0 if it was cut, and the seconds."""
    began = time.monotonic()
    body = {"prompt": "load", "temperature": 0, "ignore_eos": True, **fields}
    try:
        connection = await Connection.send(port_of(server), PATH, body)
        status, _ = await connection.whole()
        await connection.close(abruptly=True)
    except (OSError, IndexError):
        status = 0
    return status, since(began)


def measure_overload(start: Start) -> Figures:
    """Ten times as many requests a second as can be answered."""
    with start("engine.max_queue_size=32", "engine.max_requests_per_batch=2") as server:
        begin(server)

        async def capacity() -> float:
            """Return the answers of a second."""
            began = time.monotonic()
            await asyncio.gather(*(ask(server, max_tokens=400) for _ in range(16)))
            return 16 / since(began)

        async def load(rate: float) -> list[tuple[int, float]]:
            began, asked = time.monotonic(), []
            while since(began) < OVERLOAD_SECONDS:
                asked.append(asyncio.create_task(ask(server, max_tokens=400)))
                await asyncio.sleep(max(0.0, began + len(asked) / rate - time.monotonic()))
            return await asyncio.gather(*asked)

        rate = 10 * run_clients(capacity())
        before = resident_mib(server)
        answers = run_clients(load(rate))
        growth = resident_mib(server) - before
        refusals = [took for status, took in answers if status == 429]
        assert {status for status, _ in answers} == {200, 429}
        return {
            "ten times the load: refusals, p99": milliseconds(p99(refusals)),
            "ten times the load: refusals, slowest": milliseconds(max(refusals)),
            "ten times the load: more memory": Figure(growth, "MiB", 1),
        }


def measure_herd(start: Start, seconds: float, when: str) -> Figures:
    """So many connections within some seconds, while another one asks how the server is."""
    with start("engine.max_queue_size=400") as server:
        begin(server)

        async def ask_later(number: int) -> int:
            await asyncio.sleep(seconds * number / NUM_HERD)
            return (await ask(server, max_tokens=2))[0]

        async def herd() -> Counter[int]:
            return Counter(await asyncio.gather(*map(ask_later, range(NUM_HERD))))

        with asking_for_life(server) as lags:
            statuses = run_clients(herd())
        what = f"{NUM_HERD} connections {when}"
        others = NUM_HERD - statuses[200] - statuses[429]
        return {
            f"{what}: refused with 429": count(statuses[429]),
            f"{what}: reset, or neither answered nor refused": count(others),
            f"{what}: /live meanwhile, p99": milliseconds(p99(lags)),
            f"{what}: /live meanwhile, slowest": milliseconds(max(lags)),
        }


class SlowReaders:
    """Clients that ask for long streams, take a byte a second, and have next to no buffer."""

    def __init__(self, server: Breakable, number: int) -> None:
        body = completion(max_tokens=450, ignore_eos=True, stream=True, temperature=0, logprobs=5)
        self._connections = []
        for _ in range(number):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", port_of(server)))
            connection.sendall(request(PATH, method="POST", body=body))
            self._connections.append(connection)
        self._over = threading.Event()
        self._reading = Call(self._read)

    def _read(self) -> None:
        while not self._over.wait(1.0):
            for connection in self._connections:
                assert connection.recv(1), "a slow reader was cut"

    def close(self) -> None:
        self._over.set()
        self._reading.outcome()
        for connection in self._connections:
            connection.close()


async def gaps(server: Breakable) -> list[float]:
    """Let normal clients read streams for some seconds; return the times between their tokens."""
    ends, found = time.monotonic() + STREAM_SECONDS, []
    body = {
        "prompt": "on and on", "max_tokens": 450, "ignore_eos": True, "stream": True,
        "temperature": 0,
    }  # fmt: skip

    async def client() -> None:
        while time.monotonic() < ends:
            connection = await Connection.send(port_of(server), PATH, body)
            await connection.events(1)
            last = time.monotonic()
            while await connection.events(1):
                now = time.monotonic()
                found.append(now - last)
                last = now
            await connection.close()

    await asyncio.gather(*(client() for _ in range(NUM_NORMAL)))
    return found


def measure_slow_readers(start: Start) -> Figures:
    """Normal streams alone, and beside clients that hardly read."""
    with start("engine.max_requests_per_batch=64", "engine.num_blocks=2048") as server:
        begin(server)
        run_clients(gaps(server))
        alone = p99(run_clients(gaps(server)))
        before = resident_mib(server)
        readers = SlowReaders(server, NUM_SLOW)
        computed = p99(run_clients(gaps(server)))
        until(lambda: metric(server, "requests_running") == 0, seconds=60)
        beside = p99(run_clients(gaps(server)))
        growth = resident_mib(server) - before
        readers.close()
        what = f"{NUM_NORMAL} streams"
        return {
            f"{what}: between tokens, p99": milliseconds(alone),
            f"{what}: the same beside {NUM_SLOW} slow readers": milliseconds(beside),
            f"{what}: how many times as long": Figure(beside / alone, ""),
            f"{what}: the same while the answers of the slow are computed": Figure(
                computed / alone, ""
            ),
            f"{NUM_SLOW} slow readers: more memory": Figure(growth, "MiB", 1),
        }


def measure_deadlines(start: Start) -> Figures:
    """Requests that wait, and some that run, until their time is over."""
    seconds, number = 0.2, 16

    async def lateness(server: Breakable, status: int) -> Figure:
        """Return how long after its deadline the last one ended that did so with this status."""
        answers = await asyncio.gather(*(ask(server, max_tokens=450) for _ in range(number)))
        return milliseconds(max(took for found, took in answers if found == status) - seconds)

    figures = {}
    with start(
        f"server.queue_timeout_seconds={seconds}", "engine.max_requests_per_batch=1"
    ) as server:
        begin(server)
        what = f"{number} requests: from the deadline of those that wait to the end of the last"
        figures[what] = run_clients(lateness(server, 503))
    with start(f"server.request_timeout_seconds={seconds}") as server:
        begin(server)
        what = f"{number} requests: from the deadline of those that run to the end of the last"
        figures[what] = run_clients(lateness(server, 504))
    return figures
