"""From the start of a server's process to its first token, and the memory it has then.

    python -m benchmarks.startup                    the default model, as it is served by default
    python -m benchmarks.startup --weights auto fp32 --transformers PROGRAM

`--transformers` adds `transformers serve`: PROGRAM is the `transformers` of an environment that has
`transformers[serving]` and accelerate. It gets the same model as a folder in float32.
The servers take turns; each starts from nothing but what the system keeps of files. A chat is asked
for again and again until it is answered.

    port          until connections are taken
    first token   until the first piece of text of a streamed chat
    memory        resident, of the process and its children, after an answer of 64 tokens

"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer

import engine
from benchmarks.host import ROOT, describe_host, print_facts
from server.environment import cache_folder
from server.model_store import StoredModel, find_model
from server.settings import ModelSettings

LONGEST_START_SECONDS = 300.0
PAUSE_SECONDS = 0.02
NUM_TOKENS = 64
NAME = "model"


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds from the process's, and bytes after an answer."""

    port: float
    first_token: float
    memory: int


def ours(weights: str, model: str) -> list[str]:
    """Return the command that serves with weights of a format, `+int8` with such activations."""
    name, _, activations = weights.partition("+")
    settings = ["--set", f"model.weights={name}"]
    if activations:
        settings += ["--set", f"model.activations={activations}"]
    where = [model] if model else []
    return [sys.executable, "-m", "server", "serve", *where, "--served-name", NAME, *settings]


def transformers_serve(program: str, folder: str) -> list[str]:
    """Return the command that serves a folder by transformers."""
    return [program, "serve", folder, "--device", "cpu", "--dtype", "float32",
            "--continuous-batching"]  # fmt: skip


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: Sequence[str]) -> Iterator[psutil.Process]:
    """Run a command until the block ends; if that gives it up, say what it printed last."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        ) as running,
    ):
        try:
            yield psutil.Process(running.pid)
        except SystemExit as error:
            output.seek(0)
            last = output.read().decode(errors="replace").strip().splitlines()[-1:]
            raise SystemExit("; ".join([str(error), *last])) from error
        finally:
            running.terminate()


def time_start(command: Sequence[str], model: str) -> Start:
    """Start a server and ask it until it answers."""
    port, began = free_port(), time.perf_counter()
    with process([*command, "--port", str(port)]) as server:
        wait_for_port(server, port, began)
        opened = time.perf_counter() - began
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None) as http:
            first_token = None
            while first_token is None:
                check(server, began)
                with suppress(httpx.TransportError):
                    first_token = ask(http, model, began)
                time.sleep(PAUSE_SECONDS)
        everyone = [server, *server.children(recursive=True)]
        return Start(opened, first_token, sum(one.memory_info().rss for one in everyone))


def wait_for_port(server: psutil.Process, port: int, began: float) -> None:
    """Wait until connections are taken."""
    while True:
        check(server, began)
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(PAUSE_SECONDS)


def check(server: psutil.Process, began: float) -> None:
    """End the program if the server has ended, or takes too long."""
    if not server.is_running() or server.status() == psutil.STATUS_ZOMBIE:
        raise SystemExit("a server ended before it answered")
    if time.perf_counter() - began > LONGEST_START_SECONDS:
        raise SystemExit(f"a server has not answered in {LONGEST_START_SECONDS:.0f} seconds")


def ask(http: httpx.Client, model: str, began: float) -> float | None:
    """Ask for a chat; return when its first text came, None if it was refused."""
    body = {
        "model": model, "messages": [{"role": "user", "content": "Tell me about the sea."}],
        "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True,
    }  # fmt: skip
    first = None
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            answer.read()
            return None
        for line in answer.iter_lines():
            if first is None and line.startswith("data: {") and has_text(line):
                first = time.perf_counter() - began
    return first


def has_text(line: str) -> bool:
    """Return whether an event carries text."""
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return bool((choices[0].get("delta") or {}).get("content"))


def save_as_folder(stored: StoredModel, folder: Path) -> None:
    """Write a model as transformers reads it, in float32."""
    model = engine.load(stored.source, weights="fp32", use_kernels=False).hf_model
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(stored.folder).save_pretrained(folder)


def row(name: str, starts: Sequence[Start]) -> list[str]:
    """Return the cells of a contender: medians of its starts, lowest and highest."""

    def seconds(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    return [
        name,
        seconds([start.port for start in starts]),
        seconds([start.first_token for start in starts]),
        f"{statistics.median([start.memory for start in starts]) / 2**20:,.0f} MiB",
    ]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="the default model")
    parser.add_argument("--weights", nargs="+", default=["auto"], metavar="FORMAT[+int8]")
    parser.add_argument("--transformers", metavar="PROGRAM", help="beside its `serve`")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="after one to warm up")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse_arguments(arguments)
    stored = find_model(ModelSettings(path=options.model), cache_folder())
    commands = {f"slipstream {name}": (ours(name, options.model), NAME) for name in options.weights}
    starts: dict[str, list[Start]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.transformers:
            save_as_folder(stored, Path(folder))
            commands["transformers serve"] = (
                transformers_serve(options.transformers, folder),
                folder,
            )
        starts = {name: [] for name in commands}
        for _ in track(range(options.rounds + 1), "rounds", console=Console(stderr=True)):
            for name, (command, model) in commands.items():
                starts[name].append(time_start(command, model))
    table = Table("server", "port, s", "first token, s", "memory")
    for name, each in starts.items():
        table.add_row(*row(name, each[1:]))
    console = Console()
    print_facts(console, describe_host(), "startup", arguments)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
