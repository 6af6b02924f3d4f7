"""A `slipstream serve` of its own, as a user starts it: a child process on a free port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTENING = re.compile(r"listens on (http://\S+)")
START_SECONDS = 90


@dataclass
class ServeProcess:
    """A server that listens.

    Attributes:
        url: Its address, without a path.
        process: The child.
        lines: What it has written so far.
    """

    url: str
    process: "subprocess.Popen[str]"
    lines: list[str]

    def check(self) -> None:
        """Fail, with what it wrote, if the server has ended."""
        status = self.process.poll()
        assert status is None, f"the server ended with {status}:\n" + "".join(self.lines)

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def serving(*arguments: str, start_seconds: float = START_SECONDS) -> Iterator[ServeProcess]:
    """Start a server with the tests' configuration, and end it with the block."""
    command = [sys.executable, "-m", "server", "serve", "--config", "configs/ci.toml", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, cwd=ROOT, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    lines: list[str] = []
    url: list[str] = []
    settled = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if found := LISTENING.search(line):
                url.append(found[1])
            if "curl" in line:
                settled.set()
        settled.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        settled.wait(start_seconds)
        assert url, "the server did not start:\n" + "".join(lines)
        yield ServeProcess(url[0], process, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(timeout=10)
        assert process.stderr is not None
        process.stderr.close()
