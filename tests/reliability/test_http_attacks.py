"""What a hostile peer can do with bytes and with time, under both parsers (A15, R12, R18, R19)."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.settings import ModelSettings, ServerSettings, Settings
from tests.reliability.raw_http import RawAnswer, completion, exchange, request
from tests.server.live import LiveServer, run_live

PATIENCE = 0.6
POST: dict[str, Any] = {"method": "POST", "target": "/v1/completions"}


@pytest.fixture(scope="module", params=["httptools", "h11"])
def exposed(request) -> Iterator[LiveServer]:
    bounds = ServerSettings(
        port=0,
        http_parser=request.param,
        max_body_bytes=1 << 20,
        receive_timeout_seconds=PATIENCE,
        send_timeout_seconds=PATIENCE,
    )
    settings = Settings(model=ModelSettings(served_names=("tiny",)), server=bounds)
    with run_live(settings=settings, max_model_tokens=100_000) as server:
        yield server


@pytest.fixture(autouse=True)
def unharmed(exposed) -> Iterator[None]:
    """Whatever is sent, the server answers the next client and keeps nothing."""
    yield
    exposed.reset()
    assert exposed.complete().status_code == 200
    exposed.manager.wait_until(lambda: exposed.manager.num_active == 0)
    exposed.manager.wait_until(lambda: exposed.state.num_active == 0)
    exposed.manager.wait_until(lambda: len(exposed.server.server_state.connections) <= 4)


def post(body: bytes, *headers: str) -> bytes:
    return request("/v1/completions", *headers, method="POST", body=body)


def ask(server: LiveServer, *pieces: bytes) -> RawAnswer:
    return exchange(server.port, *pieces)


@pytest.mark.parametrize(
    "data",
    [
        request("/live", "X: " + "a" * 10_000_000),
        request("/" + "a" * 1_000_000),
        request("/live", *(f"X-{number}: a" for number in range(100_000))),
        request("/live", *(f"X-{number}: a" for number in range(200))),
        b"GET /live HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000,
    ],
    ids=["long header", "long path", "100000 headers", "200 headers", "no end"],
)
def test_headers_are_bounded(exposed, data):
    assert ask(exposed, data).status in (0, 400, 431)


def test_headers_within_the_bounds_pass(exposed):
    many = (f"X-{number}: {'a' * 400}" for number in range(100))
    assert ask(exposed, request("/live", *many)).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\0", 400),
        (b"\xff\xfe{}", 400),
        (b'{"prompt": "\xc3("}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b"[" * 100_000, 400),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        (b'{"prompt": "a", "max_tokens": 1e400}', 400),
        (b'{"prompt": "a", "max_tokens": NaN}', 400),
        (b'{"prompt": "a", "max_tokens": -Infinity}', 400),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 10_000 + b"}", 400),
        (b'{"prompt": 1, "prompt": "a", "max_tokens": 1}', 200),
        (b'{"prompt": "a", "max_tokens": 1} trailing', 400),
        (b"null", 400),
        (completion() + b" " * 2_000_000, 413),
        (b'\xef\xbb\xbf{"prompt": "a"}', 400),
    ],
    ids=range(16),
)
def test_bodies_are_read_strictly(exposed, body, status):
    answer = ask(exposed, post(body))
    assert answer.status == status
    if status != 200:
        error = json.loads(answer.data.partition(b"\r\n\r\n")[2])["error"]
        assert set(error) == {"message", "type", "param", "code"}


def test_a_body_without_a_declared_end_is_bounded(exposed):
    head = request(**POST, host="x").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    assert ask(exposed, head, *[chunk] * 20, b"0\r\n\r\n").status == 413
    # What is too large is read to its end; one that does not come runs into the time for that.
    assert ask(exposed, head, *[chunk] * 20).status == 408
    assert ask(exposed, head, b"zz\r\nabc\r\n").status in (0, 400)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /live HTTP/1.1\r\nHost: x\r\n",
        b"\r\n\r\n",
        request(**POST).replace(b"Content-Length: 0", b"Content-Length: 100"),
        request(**POST).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"5\r\nab",
        request(**POST).replace(b"Content-Length: 0", b"Content-Length: 9\r\nExpect: 100-continue"),
        request(**POST).replace(b"Content-Length: 0", b"Content-Length: 9\r\nUpgrade: h2c"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["nothing", "headers", "blank", "body", "chunk", "continue", "upgrade", "http2"],
)
def test_a_request_that_never_ends_is_ended(exposed, data):
    assert ask(exposed, data).status in (0, 100, 400, 404, 408)


def test_a_slow_trickle_is_no_way_to_stay(exposed):
    """Each byte in time, the whole never: the clock runs for the request, not for the byte."""
    with socket.create_connection(("127.0.0.1", exposed.port), timeout=20) as connection:
        began = time.monotonic()
        try:
            for byte in request("/live", "X: " + "a" * 200):
                connection.send(bytes([byte]))
                time.sleep(0.02)
        except ConnectionError:
            return
        assert connection.recv(100)[:12] in (b"", b"HTTP/1.1 408")
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "data",
    [
        post(completion()).replace(b"Content-Length", b"Content-Length: 3\r\nContent-Length"),
        post(completion()).replace(b"\r\nContent", b"\r\nTransfer-Encoding: chunked\r\nContent"),
        post(completion()).replace(b"Content-Length: ", b"Content-Length: -"),
        post(completion()).replace(b"Content-Length: ", b"Content-Length: +"),
        post(completion()).replace(b"Content-Length", b"Content-Length "),
        post(completion()).replace(b"Host: x", b"Host : x"),
        post(completion()).replace(b"\r\nHost", b"\r\n Host"),
        post(completion()).replace(b"HTTP/1.1", b"HTTP/9.9"),
        post(completion()).replace(b"POST", b"P\0ST"),
        post(completion()).replace(b"/v1", b"/v1 /x"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        b"A" * 100_000,
    ],
    ids=range(12),
)
def test_what_is_no_http_is_refused(exposed, data):
    answer = ask(exposed, data)
    if b"HTTP/9.9" in data and exposed.state.settings.server.http_parser == "h11":
        assert answer.statuses == [200], "the parser does not look at the version"
        return
    assert set(answer.statuses) <= {400, 405, 408, 431, 505}


def test_requests_in_one_packet_are_answered_in_order(exposed):
    several = request("/live").replace(b"Connection: close\r\n", b"") * 3 + request("/version")
    answer = ask(exposed, several)
    assert answer.statuses == [200] * 4
    assert b"version" in answer.data.rpartition(b"\r\n\r\n")[2]


def test_a_client_id_is_a_label_and_carries_no_line_break(exposed):
    answer = ask(exposed, request("/live", "X-Request-Id: a%0d%0aSet-Cookie: b"))
    assert b"\r\nx-request-id: a0d0aset-cookieb\r\n" in answer.data.lower()
    assert b"\nset-cookie" not in answer.data.lower()


def stalled_stream(port: int, max_tokens: int) -> socket.socket:
    """Ask for a long stream with a tiny window, and read nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", port))
    connection.sendall(post(completion(stream=True, max_tokens=max_tokens)))
    return connection


def test_who_does_not_read_is_cut_and_holds_nobody_up(exposed):
    exposed.manager.script = lambda _ids, _arguments: [300] * 90_000
    stalled = [stalled_stream(exposed.port, 90_000) for _ in range(4)]
    exposed.manager.wait_until(lambda: exposed.manager.num_active == 4)
    assert exposed.complete(max_tokens=3).status_code == 200
    exposed.manager.wait_until(lambda: exposed.manager.num_active == 0, seconds=30)
    assert len(exposed.manager.cancelled) == 4
    for connection in stalled:
        connection.close()


def test_connections_are_bounded():
    bounds = ServerSettings(port=0, max_connections=4)
    with run_live(settings=Settings(server=bounds)) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        server.manager.wait_until(lambda: len(server.server.server_state.connections) == 4)
        refused = exchange(server.port, request("/live"))
        assert refused.status in (0, 503)
        for connection in held:
            connection.close()
        server.manager.wait_until(lambda: not server.server.server_state.connections)
        assert exchange(server.port, request("/live")).status == 200


FRAGMENTS = st.sampled_from(
    [
        b"GET ", b"POST ", b"/v1/completions", b"/live", b" HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n",
        b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n",
        b"{}", b'{"prompt": "a"}', b"\0", b"\xff", b"%", b"?", b"#", b":", b" ", b"\n", b"\t",
    ]
)  # fmt: skip


@given(st.lists(st.one_of(FRAGMENTS, st.binary(max_size=8)), max_size=14))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_bytes_make_a_server_error(exposed, pieces):
    """A half-closed socket says that nothing more will come, so that no timeout is waited for."""
    with socket.create_connection(("127.0.0.1", exposed.port), timeout=20) as connection:
        received = bytearray()
        try:
            connection.sendall(b"".join(pieces))
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                received += data
        except ConnectionError:
            pass
    assert not any(status >= 500 for status in RawAnswer(bytes(received)).statuses)


def test_many_half_open_connections_leave_the_health_routes_alone(exposed):
    held = [socket.create_connection(("127.0.0.1", exposed.port)) for _ in range(200)]
    for connection in held:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n")
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(exposed.http.get("/live").status_code))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
    for connection in held:
        connection.close()
