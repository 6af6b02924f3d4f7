"""Clients of every operation that leave in the middle: nothing of theirs stays (R6)."""

import asyncio
import json
import logging
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest

from server.settings import BatchSettings, ModelSettings, ServerSettings, Settings
from tests.engine.threads import until
from tests.integration.engine_server import (
    Connection,
    EngineServer,
    run_clients,
    run_engine_server,
)
from tests.integration.test_engine_failures import controlled_server
from tests.reliability.tally import Accepted, counted, resident_bytes, settled_footprint

logger = logging.getLogger(__name__)

# Made once: each holds half a megabyte of certificates, which would count as the server's memory.
CERTIFICATES = ssl.create_default_context()

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "hello"}]
LONG = "long " * 40
AT_ONCE = 20
MAX_GROWTH_BYTES = 50 * 2**20
# By operation: where it goes, and the bodies of which one is drawn.
REQUESTS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "chat": (
        CHAT,
        [
            {"messages": MESSAGES, "max_tokens": 40, "stream": True},
            {"messages": MESSAGES, "max_tokens": 40},
        ],
    ),
    "completions": (
        COMPLETIONS,
        [
            {"prompt": "a", "n": 3, "max_tokens": 16, "ignore_eos": True, "stream": True},
            {"prompt": LONG, "n": 3, "max_tokens": 16, "ignore_eos": True},
            {"prompt": [LONG, "b"], "max_tokens": 16, "stream": True},
        ],
    ),
    "responses": (
        RESPONSES,
        [
            {"input": "hello", "max_output_tokens": 40, "stream": True},
            {"input": "hello", "max_output_tokens": 40, "store": True},
        ],
    ),
    "messages": (
        "/v1/messages",
        [{"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "stream": True}],
    ),
    "embeddings": ("/v1/embeddings", [{"input": [LONG, "a", "b", "c"] * 4}]),
}
Leave = Callable[[EngineServer, random.Random], Awaitable[None]]


async def wait_a_moment(draw: random.Random) -> None:
    await asyncio.sleep(draw.random() * 0.05)


def leaves(path: str, bodies: list[dict[str, Any]]) -> Leave:
    """Ask, and drop the connection before the answer, or in the middle of it."""

    async def leave(server: EngineServer, draw: random.Random) -> None:
        body = draw.choice(bodies)
        connection = await Connection.send(server.port, path, body)
        if body.get("stream") and draw.random() < 0.7:
            await connection.events(draw.randint(1, 30))
        else:
            await wait_a_moment(draw)
        await connection.close(abruptly=draw.random() < 0.5)

    return leave


async def cancel_background(server: EngineServer, draw: random.Random) -> None:
    """Begin a response, leave, and come back to cancel it, to delete it, or not at all."""
    body = {"input": "hello", "max_output_tokens": 40, "background": True}
    connection = await Connection.send(server.port, RESPONSES, body)
    status, made = await connection.whole()
    await connection.close()
    assert status == 200, made
    await wait_a_moment(draw)
    async with httpx.AsyncClient(base_url=server.url, timeout=20, verify=CERTIFICATES) as http:
        url = f"{RESPONSES}/{made['id']}"
        ending = draw.choice(["cancel", "delete", "nothing"])
        if ending == "cancel":
            answer = await http.post(f"{url}/cancel")
            assert answer.json()["status"] in ("cancelled", "completed", "incomplete")
        elif ending == "delete":
            assert (await http.delete(url)).status_code == 200


async def cancel_batch(server: EngineServer, draw: random.Random) -> None:
    """Begin a batch and cancel it; every line is answered, failed or left out, once."""
    ids = [f"r{number}" for number in range(8)]
    body = {"messages": MESSAGES, "max_tokens": 8}
    lines = [{"custom_id": one, "method": "POST", "url": CHAT, "body": body} for one in ids]
    data = "\n".join(map(json.dumps, lines)).encode()
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=CERTIFICATES) as http:
        form = {"file": ("in.jsonl", data)}
        file = await http.post("/v1/files", files=form, data={"purpose": "batch"})
        fields = {
            "input_file_id": file.json()["id"],
            "endpoint": CHAT,
            "completion_window": "24h",
        }
        url = f"/v1/batches/{(await http.post('/v1/batches', json=fields)).json()['id']}"
        await wait_a_moment(draw)
        await http.post(f"{url}/cancel")
        while True:
            batch = (await http.get(url)).json()
            if batch["status"] in ("cancelled", "completed"):
                break
            await asyncio.sleep(0.02)
        told: list[str] = []
        for name in ("output_file_id", "error_file_id"):
            if batch[name] is not None:
                text = (await http.get(f"/v1/files/{batch[name]}/content")).text
                told += [json.loads(line)["custom_id"] for line in text.splitlines()]
                await http.delete(f"/v1/files/{batch[name]}")
        await http.delete(f"/v1/files/{fields['input_file_id']}")
    assert sorted(told) == ids


OPERATIONS: dict[str, Leave] = {
    **{name: leaves(*request) for name, request in REQUESTS.items()},
    "background": cancel_background,
    "batch": cancel_batch,
}


def leave_many(server: EngineServer, leave: Leave, count: int, seed: int = 0) -> None:
    """Let clients leave, some at a time, until so many have left."""
    draw = random.Random(seed)

    async def all_of_them() -> None:
        for start in range(0, count, AT_ONCE):
            several = min(AT_ONCE, count - start)
            await asyncio.gather(*(leave(server, draw) for _ in range(several)))

    run_clients(all_of_them(), 600)
    server.wait_until_idle()
    until(lambda: len(server.state.running) == 0)


def check_leaving(tiny_model, folder, names: list[str], count: int) -> None:
    """Let so many clients of each operation leave; nothing of theirs is left, none is uncounted."""
    settings = Settings(
        ModelSettings(served_names=("tiny",)),
        server=ServerSettings(port=0, engine_failure="stay"),
        batches=BatchSettings(folder=str(folder)),
    )
    accepted = Accepted()
    with run_engine_server(
        tiny_model, prepare=accepted.watch, settings=settings, num_blocks=64
    ) as server:
        # As many as will leave at once: what they need together is taken for good the first time.
        for name in names:
            leave_many(server, OPERATIONS[name], AT_ONCE)
        footprint, before = settled_footprint(server), resident_bytes()
        for name in names:
            answers, taken = counted(server, "answers"), accepted.num_answers
            leave_many(server, OPERATIONS[name], count, seed=1)
            ended: Counter[str] = Counter()
            ended.update(counted(server, "answers"))
            ended.subtract(answers)
            taken = accepted.num_answers - taken
            logger.info("%d who leave %s: %d taken, %s", count, name, taken, dict(+ended))
            if name != "batch":  # its lines are nobody's requests; they are told in its files
                assert ended.total() == taken
                assert ended["error"] == 0
        assert settled_footprint(server) == footprint
        assert server.state.admission.num_preparing == 0
        growth = resident_bytes() - before
        logger.info("memory grew by %.1f MiB", growth / 2**20)
        assert growth < MAX_GROWTH_BYTES, f"{growth / 2**20:.0f} MiB"


def test_whoever_leaves_leaves_nothing_behind(tiny_model, tmp_path):
    check_leaving(tiny_model, tmp_path, list(OPERATIONS), 20)


@pytest.mark.parametrize("stream", [False, True])
def test_more_leavers_than_places_leave_every_place_free(tiny_model, stream):
    body = {"prompt": "a", "max_tokens": 400, "stream": stream}
    fields: dict[str, Any] = {"max_queue_size": 2, "max_requests_per_batch": 1}

    async def fill_and_leave(server: EngineServer) -> None:
        connections = []
        for number in range(1, 4):
            connections.append(await Connection.send(server.port, COMPLETIONS, body))
            await asyncio.to_thread(
                until, partial(lambda n: server.manager.statistics().num_live == n, number)
            )
        for connection in connections:
            await connection.close(abruptly=True)

    with controlled_server(tiny_model, **fields) as (server, runner):
        for _ in range(3):
            runner.hold()
            run_clients(fill_and_leave(server))
            runner.go()
            server.wait_until_idle()
            gauges = server.http.get("/metrics").text
            assert "slipstream_requests_running 0.0" in gauges
            assert "slipstream_requests_waiting 0.0" in gauges
            assert server.complete("and now", max_tokens=2).status_code == 200


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_hundred_of_each_operation_leave_nothing_behind(tiny_model, tmp_path):
    check_leaving(tiny_model, tmp_path, list(OPERATIONS), 200)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_thousand_who_leave_leave_nothing_behind(tiny_model, tmp_path):
    check_leaving(tiny_model, tmp_path, ["completions"], 2000)
