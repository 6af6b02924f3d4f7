"""Streams as bytes, their errors, and clients that leave; over real sockets."""

import json
import re
import socket
import struct
import threading
import time
from typing import Any

import httpx
import pytest

from engine import RequestFailedError
from server.rendering.answer import AnswerOptions
from tests.server.live import LiveServer, run_live


def send(
    live: LiveServer, path: str, body: dict, *, receive_buffer: int | None = None
) -> socket.socket:
    """Send a request on a socket of its own."""
    connection = socket.socket()
    connection.settimeout(20)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((live.host, live.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def read_until(connection: socket.socket, ending: bytes) -> bytes:
    data = bytearray()
    while ending not in data[-65536 - len(ending) :]:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return bytes(data)


def unchunk(data: bytes) -> tuple[bytes, bytes]:
    """Split a chunked answer into its head and its body."""
    head, _, rest = data.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return head, body


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
}


@pytest.mark.parametrize("path", BODIES)
def test_the_bytes_of_a_stream(live, path):
    connection = send(live, path, {**BODIES[path], "stream": True})
    with connection:
        head, body = unchunk(read_until(connection, b"0\r\n\r\n"))
    head = head.lower()
    assert head.startswith(b"http/1.1 200")
    assert b"content-type: text/event-stream" in head
    assert b"cache-control: no-cache" in head
    assert b"x-accel-buffering: no" in head
    assert b"\r" not in body
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    for frame in body.removesuffix(b"\n\n").split(b"\n\n"):
        assert frame.startswith(b"data: ")
        assert frame.count(b"\n") == 0
        if frame != b"data: [DONE]":
            json.loads(frame[6:])


def test_each_token_is_sent_at_once(live):
    live.manager.step_seconds = 0.02
    arrivals = []
    with live.http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as got:
        for line in got.iter_lines():
            if line:
                arrivals.append(time.monotonic())
    assert len(arrivals) >= 16
    assert arrivals[-1] - arrivals[0] > 0.15


def test_the_role_comes_with_the_first_token_and_not_before(live):
    live.manager.paused.set()
    with live.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as got:
        assert got.status_code == 200
        threading.Timer(0.2, live.manager.paused.clear).start()
        began = time.monotonic()
        lines = got.iter_lines()
        first = next(lines)
        assert time.monotonic() - began > 0.1
        assert json.loads(first[6:])["choices"][0]["delta"]["role"] == "assistant"
        assert "data: [DONE]" in list(lines)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", BODIES)
def test_an_error_in_a_stream_is_an_event_before_done(live, path, n):
    live.manager.script = lambda _ids, _arguments: [300, 301, RequestFailedError('"/secret"\n')]
    response = live.http.post(path, json={**BODIES[path], "stream": True, "n": n})
    assert response.status_code == 200
    *_, error, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    body = json.loads(error.removeprefix("data: "))["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == "request_failed"
    assert "secret" not in error
    live.manager.wait_until(lambda: live.manager.num_active == 0)


def test_a_dying_engine_ends_every_stream_with_an_error(mortal_live):
    mortal_live.manager.paused.set()
    texts = []

    def read():
        body = {**CHAT, "stream": True}
        texts.append(
            httpx.post(f"{mortal_live.url}/v1/chat/completions", json=body, timeout=10).text
        )

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    mortal_live.manager.wait_until(lambda: mortal_live.manager.num_active == 4)
    mortal_live.manager.die(RuntimeError("boom"))
    for thread in threads:
        thread.join(10)
    assert len(texts) == 4
    for text in texts:
        assert "engine_dead" in text
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("abrupt", [True, False])
def test_a_client_that_leaves_frees_its_request(live, path, streamed, abrupt):
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    body = {**BODIES[path], "stream": streamed, "n": 2, "max_tokens": 200}
    connection = send(live, path, body)
    live.manager.wait_until(lambda: live.manager.num_active == 2)
    if streamed:
        assert b"data: " in read_until(connection, b"data: ")
    if abrupt:
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()
    live.manager.wait_until(lambda: live.manager.num_active == 0, seconds=1.0)
    assert len(live.manager.cancelled) == 2


def test_a_client_that_leaves_while_its_request_waits_frees_it(live):
    live.manager.paused.set()
    for streamed in (True, False):
        connection = send(live, "/v1/chat/completions", {**CHAT, "stream": streamed})
        live.manager.wait_until(lambda: live.manager.num_active == 1)
        connection.close()
        live.manager.wait_until(lambda: live.manager.num_active == 0)


def test_leaving_clients_are_no_error(live, caplog):
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    for streamed in (True, False) * 3:
        connection = send(live, "/v1/chat/completions", {**CHAT, "stream": streamed})
        live.manager.wait_until(lambda: live.manager.num_active == 1)
        connection.close()
        live.manager.wait_until(lambda: live.manager.num_active == 0)
    live.manager.wait_until(lambda: live.state.num_active == 0)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert live.http.get("/health").status_code == 200


def test_a_slow_reader_gets_its_text_merged_and_whole():
    count = 40_000
    with run_live(max_model_tokens=10**6) as live:
        usual = live.manager.script
        live.manager.script = lambda _ids, _arguments: [300] * count
        body = {"prompt": "a", "stream": True, "max_tokens": count}
        with send(live, "/v1/completions", body, receive_buffer=16384) as connection:
            live.manager.wait_until(lambda: live.manager.num_active == 1)
            live.manager.wait_until(lambda: live.manager.num_active == 0, seconds=60)
            live.manager.script = usual
            assert live.chat().status_code == 200, "a slow reader must not stall the others"
            _, data = unchunk(read_until(connection, b"0\r\n\r\n"))
        frames = [json.loads(frame[6:]) for frame in data.decode().split("\n\n")[:-2]]
        text = "".join(frame["choices"][0]["text"] for frame in frames)
        assert text == live.tokenizer.decode([300] * count)
        longest = max(len(frame["choices"][0]["text"]) for frame in frames)
        assert longest > 10 * len(live.tokenizer.decode([300])), "nothing was merged"


def test_headers_without_an_end_are_refused(live):
    with socket.create_connection((live.host, live.port), timeout=10) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nX-Big: ")
        answer = b""
        try:
            for _ in range(200):
                connection.sendall(b"a" * 10_000)
            answer = connection.recv(100)
        except OSError:
            answer = b"HTTP/1.1 431"
        assert answer == b"" or b" 431 " in answer + b" "
    assert live.http.get("/live").status_code == 200


def test_two_requests_on_one_connection(live):
    assert {live.chat(stream=streamed).status_code for streamed in (True, False, True)} == {200}


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
@pytest.mark.parametrize("path", BODIES)
def test_events_made_from_one_another_have_the_keys_of_events_that_are_rendered(
    live, path, options, monkeypatch
):
    """Which texts share an event is a matter of time; everything around them is not."""
    live.says("one two three four five six seven eight nine ten")
    body = {**BODIES[path], "stream": True, "stream_options": options, "n": 2}

    def shapes() -> set[bytes]:
        events = httpx.post(f"{live.url}{path}", json=body).content.split(b"\n\n")
        varying = rb'"(id|created|content|text)":("[^"]*"|\d+)'
        return {re.sub(varying, rb'"\1":', event) for event in events}

    # On a busy machine all text may come at once, and leave out an event that others follow.
    quick = set().union(*(shapes() for _ in range(10)))
    monkeypatch.setattr(AnswerOptions, "text_alone", False)
    assert quick == set().union(*(shapes() for _ in range(10)))
