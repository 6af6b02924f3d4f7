"""Server processes with an engine that a test breaks, and the requests of their clients.

Importing the libraries takes a process many times as long as everything else, so that one process
imports them, before any thread has been started, and each server is a fork of it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.engine.threads import Call, until

ROOT = Path(__file__).parents[2]
# The command itself, except that loading waits for a file, and that prompts with certain letters
# do to the engine what no engine should do. For each line: a child that waits for the server, a
# fork of its own, and writes down its exit code.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from engine.faults import FaultPoint
from server import launch
from server.cli import main

load, create_app = launch._load, launch.create_app
place = Path()

def wait_for(name):
    while not (place / name).exists():
        time.sleep(0.01)

def create_breakable_app(settings, model, manager, tokenizer):
    def token(letter):
        return tokenizer.encode(letter, add_special_tokens=False)[0]
    start = manager.start
    def start_breakable():  # not before the warm-up, whose prompts hold every token
        faults = manager._channels.faults
        faults.disarm()
        faults.arm(FaultPoint.FORWARD, token=token("#"), effect=lambda: time.sleep(3600))
        faults.arm(FaultPoint.FORWARD, token=token("$"), effect=sys.exit)
        goes_on = lambda: wait_for("may-go-on")
        faults.arm(FaultPoint.FORWARD, token=token("%"), effect=goes_on)
        start()
    manager.start = start_breakable
    return create_app(settings, model, manager, tokenizer)

def serve(folder, arguments):
    global place
    place = folder
    def load_when_allowed(*arguments):
        wait_for("may-load")
        return load(*arguments)
    launch._load, launch.create_app = load_when_allowed, create_breakable_app
    error = os.open(folder / "stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(error, 2)
    sys.exit(main(arguments))

print("imported", flush=True)
for line in sys.stdin:
    folder, *arguments = json.loads(line)
    folder = Path(folder)
    if os.fork():
        os.wait()
        continue
    if os.fork():
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        serve(folder, arguments)
    (folder / "pid").write_text(str(pid))
    status = os.waitpid(pid, 0)[1]
    (folder / "code").write_text(str(os.waitstatus_to_exitcode(status)))
    os._exit(0)
"""
HANG, EXIT_THREAD, HANG_FOR_A_WHILE = "#", "$", "%"
PORT = re.compile(r"port (\d+) is open")


class Imported:
    """The process that has imported everything and forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "imported\n"

    def fork(self, folder: Path, arguments: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(folder), *arguments]) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Breakable:
    """A server process; what it writes and how it ends lies in a folder of its own."""

    def __init__(self, imported: Imported, folder: Path, arguments: list[str]) -> None:
        self.folder = folder
        imported.fork(folder, ["serve", "--config", "configs/ci.toml", *arguments])
        until(lambda: self._read("pid"))
        self.pid = int(self._read("pid"))
        self.url = ""
        # Without certificates, which take longer to read than the tests take.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.Client(verify=False, timeout=60, limits=limits)

    @property
    def text(self) -> str:
        """What it has written."""
        return self._read("stderr")

    @property
    def has_ended(self) -> bool:
        return bool(self._read("code"))

    def let_load(self) -> None:
        (self.folder / "may-load").touch()

    def wait_for_port(self) -> None:
        until(lambda: PORT.search(self.text) or self.has_ended, seconds=60)
        found = PORT.search(self.text)
        assert found, self.text
        self.url = f"http://127.0.0.1:{found[1]}"

    def wait_until_ready(self) -> None:
        self.wait_for_port()
        until(self.is_ready, seconds=60)

    def is_ready(self) -> bool:
        return self.get("/ready").status_code == 200

    def get(self, path: str) -> httpx.Response:
        return self.http.get(f"{self.url}{path}")

    def complete(self, prompt: str, **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
        return self.http.post(f"{self.url}/v1/completions", json=body)

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        until(lambda: self.has_ended, seconds=60)
        return int(self._read("code"))

    def close(self) -> None:
        if not self.has_ended:
            self.signal(signal.SIGKILL)
        self.wait()
        self.http.close()

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


class Stream(Call):
    """One streamed answer, read on a thread."""

    def __init__(self, server: Breakable, prompt: str, max_tokens: int) -> None:
        self._server = server
        self._body = {
            "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": max_tokens,
            "stream": True,
        }  # fmt: skip
        self.accepted = False
        self.events: list[str] = []
        super().__init__(self._read)

    def _read(self) -> list[str]:
        url = f"{self._server.url}/v1/completions"
        with self._server.http.stream("POST", url, json=self._body) as answer:
            assert answer.status_code == 200, answer.read()
            self.accepted = True
            for line in answer.iter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))
        return self.events

    def error_code(self) -> str | None:
        """Return the code of the error it ended with, None if it ended well."""
        *_, last, done = self.outcome()
        assert done == "[DONE]"
        error = json.loads(last).get("error")
        return error and str(error["code"])


@contextmanager
def breakable_server(imported: Imported, folder: Path, *arguments: str) -> Iterator[Breakable]:
    """Start a server; it begins to load when it is let."""
    server = Breakable(imported, folder, list(arguments))
    try:
        yield server
    finally:
        server.close()
