"""Crowds that send as slowly as they can, under both parsers: others are served (R12)."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from server.settings import ModelSettings, ServerSettings, Settings
from tests.integration.engine_server import run_clients
from tests.reliability.raw_http import completion, request
from tests.server.live import LiveServer, run_live

PATIENCE = 0.8
PAUSE = 0.02
CROWD = 16


@pytest.fixture(scope="module", params=["httptools", "h11"])
def exposed(request) -> Iterator[LiveServer]:
    bounds = ServerSettings(
        port=0,
        http_parser=request.param,
        receive_timeout_seconds=PATIENCE,
    )
    settings = Settings(model=ModelSettings(served_names=("tiny",)), server=bounds)
    with run_live(settings=settings) as server:
        yield server


async def trickle(port: int, at_once: bytes, slowly: bytes) -> bytes:
    """Send the beginning at once and the rest byte by byte; return what comes before the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    try:
        writer.write(at_once)
        for byte in slowly:
            if answer.done():
                break
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(PAUSE)
        return await answer
    except ConnectionError:
        return b""
    finally:
        answer.cancel()
        writer.close()


async def send_headers_slowly(port: int) -> bytes:
    return await trickle(port, b"POST /v1/completions HTTP/1.1\r\n", b"X-A: " + b"a" * 1000)


async def send_body_slowly(port: int) -> bytes:
    body = completion(stop="a" * 1000)
    whole = request("/v1/completions", method="POST", body=body)
    return await trickle(port, whole[: -len(body)], body)


@pytest.mark.parametrize("send", [send_headers_slowly, send_body_slowly])
def test_a_crowd_that_sends_slowly_holds_no_place_and_is_told(exposed, send):
    manager, admission = exposed.manager, exposed.state.admission
    exposed.reset()

    async def main() -> list[bytes]:
        crowd = [asyncio.create_task(send(exposed.port)) for _ in range(CROWD)]
        async with httpx.AsyncClient(base_url=exposed.url, timeout=20) as http:
            while not all(task.done() for task in crowd):
                answer = await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
                assert answer.status_code == 200
                assert admission.num_preparing == 0
                assert manager.num_active == 0
        return [await task for task in crowd]

    answers = run_clients(main())
    assert {answer[9:12] for answer in answers} <= {b"408", b""}
    assert any(answer.startswith(b"HTTP/1.1 408") for answer in answers)
    manager.wait_until(lambda: len(exposed.server.server_state.connections) <= 1)
    manager.wait_until(lambda: exposed.state.num_active == 0)
