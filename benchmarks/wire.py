"""What HTTP and server-sent events cost, and nothing behind them: a server whose model is tiny.

    python -m benchmarks.wire                      one client and 64, chats
    python -m benchmarks.wire --clients 1 16 64 --endpoint completions

The server is a process of its own on the first processor that this one may use, with one thread for
the model, whose single layer takes microseconds; the clients are this process, on the last one.
Everything between is the product: requests are parsed, admitted, tokenised, scheduled and computed,
tokens become text and events.

    tokens/s       tokens that arrived, over the time from the first request to the last byte
    events/s       events that carried them; tokens that are ready together share one
    first byte     from sending a request, while the other clients' answers run, to the first byte
                   of its own; connecting is not counted
    server         processor time of the server, as a share of its processor

"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.host import ROOT, describe_host, print_facts
from benchmarks.null_model import write_null_model

MODEL = "null"
LISTENING = re.compile(r"listens on http://([\d.]+):(\d+)")
EVENT = b"data: "
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say something."}]}),
    "completions": ("/v1/completions", {"prompt": "Say something."}),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """What one client got.

    Attributes:
        first_byte: Seconds from the request to the first byte of the events.
        num_events: Events in all.
        num_tokens: Tokens, as the server counted them.
    """

    first_byte: float
    num_events: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """All clients, each with some requests one after another.

    Attributes:
        streams: All answers; the first ones of the clients, which come at once, come first.
        seconds: From the first request to the last byte.
        server_seconds: Processor time of the server meanwhile.
    """

    streams: list[Stream]
    seconds: float
    server_seconds: float


@contextmanager
def null_server(processor: int, max_tokens: int, clients: int) -> Iterator[tuple[str, int, int]]:
    """Serve a null model on one processor; yields address, port and process id."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_null_model(Path(folder), max_tokens)
        command = [
            sys.executable, "-m", "server", "serve", str(model), "--port", "0",
            "--served-name", MODEL, "--set", f"engine.max_requests_per_batch={clients}",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: os.sched_setaffinity(0, {processor}),
        )  # fmt: skip
        try:
            yield (*_address(process), process.pid)
        finally:
            process.terminate()
            process.wait()


def _address(process: "subprocess.Popen[str]") -> tuple[str, int]:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := LISTENING.search(line):
            return found[1], int(found[2])
    raise SystemExit("the server did not start:\n" + "".join(said))


def request(endpoint: str, num_tokens: int) -> bytes:
    """Return an HTTP request for a stream of so many tokens."""
    path, fields = BODIES[endpoint]
    body = json.dumps(
        {
            "model": MODEL, **fields, "max_tokens": num_tokens, "ignore_eos": True, "stream": True,
            "temperature": 0, "stream_options": {"include_usage": True},
        }
    ).encode()  # fmt: skip
    return (
        f"POST {path} HTTP/1.1\r\nHost: null\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def read_stream(address: str, port: int, message: bytes) -> Stream:
    """Send a request and read its answer to the end."""
    reader, writer = await asyncio.open_connection(address, port, limit=1 << 20)
    begin = time.perf_counter()
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise SystemExit(f"refused: {(head + await reader.read(2000)).decode()}")
    data = await reader.read(1 << 16)
    first_byte = time.perf_counter() - begin
    num_events, last = 0, b""
    while data:
        num_events += data.count(EVENT)
        last = (last + data)[-2000:]
        data = await reader.read(1 << 16)
    writer.close()
    usage = re.findall(rb'"completion_tokens":(\d+)', last)
    if not last.rstrip().endswith(b"0") or not usage:
        raise SystemExit(f"a stream ended early: {last!r}")
    return Stream(first_byte, num_events, int(usage[-1]))


async def take_turn(
    address: str, port: int, pid: int, clients: int, options: argparse.Namespace
) -> Turn:
    """Let all clients send; first answers of many lengths keep them from doing it at once."""
    message = request(options.endpoint, options.tokens)

    async def client(number: int) -> list[Stream]:
        opening = request(options.endpoint, options.tokens * (number + 1) // clients + 1)
        requests = [opening, *[message] * (options.requests - 1)]
        return [await read_stream(address, port, each) for each in requests]

    server = psutil.Process(pid)
    begin, used = time.perf_counter(), sum(server.cpu_times()[:2])
    answers = await asyncio.gather(*map(client, range(clients)))
    seconds = time.perf_counter() - begin
    streams = [stream for same_place in zip(*answers, strict=True) for stream in same_place]
    return Turn(streams, seconds, sum(server.cpu_times()[:2]) - used)


def row(clients: int, turns: Sequence[Turn]) -> list[str]:
    """Return the cells of a number of clients: medians of the turns."""
    median = statistics.median
    first = sorted(stream.first_byte * 1e3 for turn in turns for stream in turn.streams[clients:])
    tokens = [sum(s.num_tokens for s in turn.streams) / turn.seconds for turn in turns]
    events = [sum(s.num_events for s in turn.streams) / turn.seconds for turn in turns]
    return [
        str(clients),
        f"{median(tokens):,.0f} ({min(tokens):,.0f} to {max(tokens):,.0f})",
        f"{median(events):,.0f}",
        f"{median(first):.1f} / {first[int(len(first) * 0.99)]:.1f}",
        f"{median([turn.server_seconds / turn.seconds for turn in turns]):.0%}",
    ]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wire",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64], metavar="N")
    parser.add_argument("--tokens", type=int, default=500, metavar="N", help="of an answer (500)")
    parser.add_argument("--endpoint", choices=BODIES, default="chat")
    parser.add_argument("--requests", type=int, default=4, metavar="N", help="of a client (4)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="after one to warm up")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[-1]})
    table = Table("clients", "tokens/s", "events/s", "first byte ms, median / 99 %", "server")
    most = max(options.clients)
    with null_server(processors[0], options.tokens + 100, most) as (address, port, pid):
        for clients in options.clients:
            turns = [
                uvloop.run(take_turn(address, port, pid, clients, options))
                for _ in range(options.turns + 1)
            ]
            table.add_row(*row(clients, turns[1:]))
    console = Console()
    print_facts(console, describe_host(), "wire", arguments)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
