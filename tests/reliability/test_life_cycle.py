"""From the open port to the exit code: loading, draining, dying, hanging (R8, R9, R14, R20)."""

import itertools
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.engine.threads import Call, until
from tests.reliability.process import (
    EXIT_THREAD,
    HANG,
    HANG_FOR_A_WHILE,
    Breakable,
    Imported,
    Stream,
    breakable_server,
)

ENGINE_FAILED = 70
Start = Callable[..., Breakable]
SOURCES = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def imported() -> Iterator[Imported]:
    process = Imported()
    yield process
    process.close()


@pytest.fixture
def start(imported, tiny_model_folder, tmp_path) -> Iterator[Start]:
    """Starts servers of the tiny model; they load at once unless told to wait."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def launch(*settings: str, waits: bool = False, folder: Path = tiny_model_folder):
            own = tmp_path / str(next(numbers))
            own.mkdir()
            arguments = [word for setting in settings for word in ("--set", setting)]
            server = stack.enter_context(breakable_server(imported, own, str(folder), *arguments))
            if waits:
                server.wait_for_port()
            else:
                server.let_load()
                server.wait_until_ready()
            return server

        yield launch


def test_the_port_is_open_before_the_model_is_loaded(start):
    server = start(waits=True)
    assert server.get("/live").status_code == 200
    for path in ("/ready", "/health", "/ping", "/v1/ready"):
        answer = server.get(path)
        assert (answer.status_code, answer.json()) == (503, {"status": "loading"})
        assert int(answer.headers["Retry-After"]) > 0
    for refused in (server.complete("early"), server.get("/v1/models")):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_loading"
        assert int(refused.headers["Retry-After"]) > 0
        assert refused.headers["X-Request-Id"]
    server.let_load()
    server.wait_until_ready()
    assert server.complete("now", max_tokens=2).status_code == 200


def test_a_signal_while_loading_ends_it_at_once(start):
    server = start(waits=True)
    server.signal()
    assert server.wait() == 0
    assert "Traceback" not in server.text


def test_a_model_that_cannot_be_loaded_is_one_line_and_a_status(start, tmp_path, tiny_model_folder):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny_model_folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"no weights")
    server = start(waits=True, folder=broken)
    assert server.get("/live").status_code == 200
    server.let_load()
    assert server.wait() == 1
    assert "Traceback" not in server.text
    last = server.text.splitlines()[-1]
    assert last.startswith("slipstream: ")
    assert "cannot be loaded" in last


def test_a_killed_start_leaves_nothing_that_hinders_the_next(start):
    server = start(waits=True)
    server.signal(signal.SIGKILL)
    server.wait()
    port = server.url.rpartition(":")[2]
    again = start(f"server.port={port}")
    assert again.complete("hello", max_tokens=2).status_code == 200


@pytest.mark.parametrize("poison", [HANG, EXIT_THREAD])
def test_an_engine_that_hangs_or_ends_takes_the_process_with_it(start, poison):
    server = start("server.hang_timeout_seconds=1")
    streams = [Stream(server, f"stream {number}", 400) for number in range(4)]
    until(lambda: all(stream.events for stream in streams))
    whole = [Call(server.complete, f"{poison} breaks it") for _ in range(2)]
    until(lambda: server.get("/live").status_code == 503)
    assert server.get("/live").json() == {"status": "hung" if poison == HANG else "dead"}
    assert server.get("/health").status_code == server.get("/ready").status_code == 503
    late = server.complete("too late")
    assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_dead")
    assert [stream.error_code() for stream in streams] == ["engine_dead"] * 4
    for call in whole:
        answer = call.outcome()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
    assert server.wait() == ENGINE_FAILED


def test_an_engine_that_ended_can_be_started_again(start):
    server = start("server.engine_failure=restart")
    before = server.complete("the same question", max_tokens=8).json()["choices"]
    broken = server.complete(f"{EXIT_THREAD} breaks it")
    assert (broken.status_code, broken.json()["error"]["code"]) == (503, "engine_dead")
    until(lambda: server.get("/ready").status_code == 200)
    assert server.get("/live").status_code == 200
    assert server.complete("the same question", max_tokens=8).json()["choices"] == before
    server.signal()
    assert server.wait() == 0


def test_a_server_that_stays_takes_requests_again_when_its_engine_goes_on(start):
    server = start("server.engine_failure=stay", "server.hang_timeout_seconds=1")
    before = server.complete("the same question", max_tokens=8).json()["choices"]
    for _ in range(2):
        hung = server.complete(f"{HANG_FOR_A_WHILE} holds it")
        assert (hung.status_code, hung.json()["error"]["code"]) == (503, "engine_dead")
        assert server.get("/live").json() == {"status": "hung"}
        (server.folder / "may-go-on").touch()
        until(lambda: server.get("/ready").status_code == 200)
        assert server.get("/live").status_code == 200
        assert server.complete("the same question", max_tokens=8).json()["choices"] == before
        (server.folder / "may-go-on").unlink()
    server.signal()
    assert server.wait() == 0


def test_an_engine_that_always_ends_is_given_up(start):
    server = start("server.engine_failure=restart")
    for _ in range(3):
        server.complete(EXIT_THREAD)
        until(lambda: server.get("/ready").status_code == 200)
    server.complete(EXIT_THREAD)
    assert server.wait() == ENGINE_FAILED


@pytest.mark.parametrize(
    ("first", "num_streams", "num_newcomers"),
    [(signal.SIGTERM, 32, 50), (signal.SIGINT, 4, 2), (signal.SIGHUP, 4, 2)],
)
def test_a_drain_finishes_streams_and_answers_newcomers(start, first, num_streams, num_newcomers):
    server = start("server.shutdown_timeout_seconds=60")
    streams = [Stream(server, "on and on", 450) for _ in range(num_streams)]
    until(lambda: all(stream.events for stream in streams))
    server.signal(first)
    until(lambda: server.get("/ready").status_code == 503)
    assert server.get("/live").status_code == 200
    refused = [Call(server.complete, f"new {number}") for number in range(num_newcomers)]
    for call in refused:
        answer = call.outcome()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert int(answer.headers["Retry-After"]) > 0
    assert [stream.error_code() for stream in streams] == [None] * num_streams
    assert all('"length"' in stream.events[-2] for stream in streams)
    assert server.wait() == 0
    assert "Traceback" not in server.text


def test_a_second_signal_does_not_wait(start):
    server = start("server.shutdown_timeout_seconds=3600")
    streams = [Stream(server, "on and on", 450) for _ in range(24)]
    until(lambda: all(stream.accepted for stream in streams))
    server.signal()
    until(lambda: server.get("/ready").status_code == 503)
    server.signal()
    assert {stream.error_code() for stream in streams} <= {None, "engine_stopping"}
    assert server.wait() == 0


def test_at_the_end_of_the_drain_the_rest_get_an_error_event(start):
    server = start("server.shutdown_timeout_seconds=0.2")
    streams = [Stream(server, "on and on", 450) for _ in range(24)]
    until(lambda: all(stream.accepted for stream in streams))
    server.signal()
    codes = {stream.error_code() for stream in streams}
    assert "engine_stopping" in codes
    assert codes <= {None, "engine_stopping"}
    assert server.wait() == 0


def test_a_broken_pipe_is_no_signal_to_end(start):
    server = start()
    server.signal(signal.SIGPIPE)
    assert server.get("/live").status_code == 200
    assert server.complete("still there", max_tokens=2).status_code == 200


@pytest.mark.parametrize("package", ["engine", "server"])
def test_no_wait_depends_on_the_wall_clock(package):
    """A clock that is set must not end or prolong anything; only dates in answers may be read."""
    allowed = re.compile(r"created|completed_at|time_ns|lifetime|birth")
    for path in (SOURCES / package).rglob("*.py"):
        # What a batch may take outlives the process: no other clock would know.
        if path.parent.name == "batches":
            continue
        for line in path.read_text().splitlines():
            if re.search(r"\btime\.time\(|datetime\.now\(", line):
                assert allowed.search(line), f"{path}: {line}"


def test_one_socket_listens(start):
    server = start()
    pid = server.pid
    sockets = {
        entry.readlink().name
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if str(entry.readlink()).startswith("socket:")
    }
    inodes = {name.strip("socket:[]") for name in sockets}
    listening = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (table.startswith("udp") or fields[3] == "0A"):
                listening.append(fields[1])
    assert len(listening) == 1
    assert httpx.get(f"{server.url}/live").status_code == 200
