"""Signals, the drain and exit codes: a server process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import gc
import sys
from server.app import create_app
from server.serving import run
from server.settings import ServerSettings, Settings
from tests.server.fakes import FakeManager, FakeModel, make_byte_level_tokenizer

gc.disable()  # as the command does
drain_seconds, port = float(sys.argv[1]), int(sys.argv[2])
tokenizer = make_byte_level_tokenizer()
manager = FakeManager(
    lambda _ids, _arguments: [300] * 400, eos_token_id=2, max_model_tokens=1000
)
manager.step_seconds = 0.01
settings = Settings(server=ServerSettings(port=port, shutdown_timeout_seconds=drain_seconds))
app = create_app(settings, FakeModel(), manager, tokenizer)

def on_listening(host, port):
    assert gc.isenabled()
    print(port, flush=True)

sys.exit(run(app, settings.server, on_listening))
"""


class ServerProcess:
    """A server in its own process."""

    def __init__(self, drain_seconds: float) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(drain_seconds), "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.url = f"http://127.0.0.1:{int(line)}"
        self.texts: list[str] = []
        self.threads: list[threading.Thread] = []

    def start_streams(self, count: int, max_tokens: int) -> None:
        started = threading.Barrier(count + 1)

        def read() -> None:
            body = {"prompt": "hello", "stream": True, "max_tokens": max_tokens}
            with httpx.stream("POST", f"{self.url}/completions", json=body, timeout=30) as got:
                lines = got.iter_lines()
                first = next(lines)
                started.wait()
                self.texts.append("\n".join([first, *lines]))

        self.threads = [threading.Thread(target=read) for _ in range(count)]
        for thread in self.threads:
            thread.start()
        started.wait(20)

    def signal(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> tuple[int, str]:
        for thread in self.threads:
            thread.join(30)
        error = self.process.communicate(timeout=30)[1]
        return self.process.returncode, error


@pytest.fixture
def start():
    running = []

    def launch(drain_seconds: float) -> ServerProcess:
        running.append(ServerProcess(drain_seconds))
        return running[-1]

    yield launch
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def wait_for_drain(server: ServerProcess) -> None:
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/ready").status_code != 503:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_streams_finish_and_new_work_is_refused_while_draining(start):
    server = start(30.0)
    server.start_streams(4, max_tokens=150)
    server.signal()
    wait_for_drain(server)
    refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert httpx.get(f"{server.url}/live").status_code == 200
    code, error = server.wait()
    assert code == 0, error
    assert len(server.texts) == 4
    for text in server.texts:
        assert text.rstrip().endswith("data: [DONE]")
        assert '"finish_reason":"length"' in text
        assert '"error"' not in text
    assert "Traceback" not in error


def test_at_the_end_of_the_drain_streams_end_with_an_error_event(start):
    server = start(0.3)
    server.start_streams(3, max_tokens=400)
    began = time.monotonic()
    server.signal()
    code, error = server.wait()
    assert code == 0, error
    assert time.monotonic() - began < 15
    for text in server.texts:
        frames = text.rstrip().split("\n\n")
        assert frames[-1] == "data: [DONE]"
        assert json.loads(frames[-2][6:])["error"]["code"] == "engine_stopping"


def test_a_second_signal_does_not_wait(start):
    server = start(60.0)
    server.start_streams(2, max_tokens=400)
    server.signal()
    wait_for_drain(server)
    began = time.monotonic()
    server.signal()
    code, error = server.wait()
    assert code == 0, error
    assert time.monotonic() - began < 15
    assert all('"engine_stopping"' in text for text in server.texts)


def test_an_idle_server_exits_at_once(start):
    server = start(60.0)
    began = time.monotonic()
    server.signal()
    code, error = server.wait()
    assert (code, error) == (0, "")
    assert time.monotonic() - began < 15


def test_a_taken_port_is_a_failure(start):
    server = start(1.0)
    port = server.url.rsplit(":", 1)[1]
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, "1", port],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
