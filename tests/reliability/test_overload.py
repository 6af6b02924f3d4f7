"""More than fits: refused early and honestly, kept within bounds, over in time (R10, R11, R13)."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from server.keys import KeyRing, parse_keys
from server.settings import ModelSettings, SecuritySettings, ServerSettings, Settings
from tests.engine.threads import Call, until
from tests.integration.engine_server import Connection, run_clients, run_engine_server
from tests.integration.test_engine_failures import controlled_server
from tests.server.live import run_live

MODEL = ModelSettings(served_names=("tiny",))
QUEUE = 32


def with_server(**fields: Any) -> Settings:
    return Settings(MODEL, server=ServerSettings(port=0, engine_failure="stay", **fields))


async def ask(port: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    connection = await Connection.send(port, "/v1/completions", body)
    try:
        return await connection.whole()
    finally:
        await connection.close()


def test_ten_times_the_load_is_served_or_refused_and_never_lost(tiny_model):
    options = {"max_tokens": 64, "ignore_eos": True}
    body = {"prompt": "load", "temperature": 0, **options}
    fields: dict[str, Any] = {"max_queue_size": QUEUE, "max_requests_per_batch": 2}
    with run_engine_server(tiny_model, **fields) as server:
        expected = server.complete("load", **options).json()["choices"]
        most = 0

        async def watch(done: asyncio.Event) -> None:
            nonlocal most
            while not done.is_set():
                queued = server.manager.statistics().num_queued
                most = max(most, queued + server.state.admission.num_preparing)
                await asyncio.sleep(0.002)

        async def load() -> list[tuple[int, dict[str, Any]]]:
            done = asyncio.Event()
            watcher = asyncio.create_task(watch(done))
            answers = await asyncio.gather(*(ask(server.port, body) for _ in range(320)))
            done.set()
            await watcher
            return answers

        answers = run_clients(load(), 100)
        server.wait_until_idle()
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= QUEUE
    assert most <= QUEUE
    for status, answer in answers:
        if status == 200:
            assert answer["choices"] == expected
        else:
            assert answer["error"]["code"] == "rate_limit_exceeded"


def test_a_refusal_costs_no_tokenising_and_n_takes_n_places(tiny_model, monkeypatch):
    with controlled_server(tiny_model, max_queue_size=4, max_requests_per_batch=1) as (
        server,
        runner,
    ):
        runner.hold()
        running = Call(server.complete, "runs")
        until(lambda: server.manager.statistics().num_running == 1)
        four = Call(lambda: server.complete("four", n=4, temperature=1, max_tokens=2))
        until(lambda: server.manager.statistics().num_queued == 4)
        encoded: list[Any] = []
        original = server.state.encoder.encode_prompts

        async def spy(body: Any) -> Any:
            encoded.append(body)
            return await original(body)

        monkeypatch.setattr(server.state.encoder, "encode_prompts", spy)
        refused = server.complete("one more")
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert encoded == []
        runner.go()
        assert running.outcome().status_code == 200
        assert len(four.outcome().json()["choices"]) == 4
        assert server.complete("and now").status_code == 200
        assert len(encoded) == 1
        server.wait_until_idle()


def test_a_list_of_inputs_counts_once_from_its_arrival_to_its_end(tiny_model):
    with controlled_server(tiny_model, max_queue_size=8, max_requests_per_batch=1) as (
        server,
        runner,
    ):

        def places() -> tuple[int, int]:
            return server.state.admission.num_preparing, server.manager.statistics().num_queued

        def embed(count: int) -> Any:
            return server.http.post("/v1/embeddings", json={"input": ["one"] * count})

        def wait_for(count: str, value: int) -> None:
            until(lambda: getattr(server.manager.statistics(), count) == value)

        runner.hold()
        running = Call(lambda: server.complete("runs", max_tokens=2))
        wait_for("num_running", 1)
        lists = []
        for num_lists in (1, 2):  # both fit, 4 places each
            lists.append(Call(embed, 6))
            wait_for("num_live", 1 + 4 * num_lists)
            assert places() == (4 * num_lists, 0)
        assert embed(1).status_code == 429
        assert server.complete("one more").status_code == 429
        # The first of these steps end the answer, the others take inputs of the first list.
        begin = server.manager.statistics().num_steps
        for number in range(1, 6):
            runner.allow(1)
            wait_for("num_steps", begin + number)
            assert places() == (8, 0)
        runner.go()
        assert running.outcome().status_code == 200
        answers = [one.outcome() for one in lists]
        assert [len(answer.json()["data"]) for answer in answers] == [6, 6]
        server.wait_until_idle()
        assert places() == (0, 0)


def test_the_status_of_a_refusal_is_a_setting(tiny_model):
    settings = with_server(overload_status=503)
    with run_engine_server(tiny_model, settings=settings, max_queue_size=1) as server:
        server.state.admission._num_preparing = 1
        refused = server.complete("no place")
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503,
            "rate_limit_exceeded",
        )
        assert int(refused.headers["Retry-After"]) >= 1
        server.state.admission._num_preparing = 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_too_long_is_told(tiny_model, stream):
    seconds = 0.3
    settings = with_server(queue_timeout_seconds=seconds)
    with controlled_server(tiny_model, settings=settings, max_requests_per_batch=1) as (
        server,
        runner,
    ):
        runner.hold()
        running = Call(lambda: server.complete("runs", max_tokens=400, ignore_eos=True))
        until(lambda: server.manager.statistics().num_running == 1)
        waiting = Call(lambda: server.complete("waits", stream=stream))
        until(lambda: server.manager.statistics().num_queued == 1)
        # Deadlines are looked at where a step ends. None does before this one is over, since a fast
        # machine would have ended the running request by then.
        time.sleep(seconds)
        until(lambda: not waiting.is_alive() or _later(runner))
        answer = waiting.outcome()
        text = answer.text if stream else json.dumps(answer.json())
        assert "queue_timeout" in text
        if not stream:
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) >= 1
        runner.go()
        assert running.outcome().status_code == 200
        server.wait_until_idle()


def _later(runner: Any) -> bool:
    """Let one step end."""
    runner.allow(1)
    return False


def test_a_request_that_takes_too_long_is_told_and_its_blocks_are_free(tiny_model):
    seconds = 0.4
    settings = with_server(request_timeout_seconds=seconds)
    with controlled_server(tiny_model, settings=settings) as (server, runner):
        runner.hold()
        late = [Call(lambda: server.complete("late", max_tokens=300, ignore_eos=True))]
        late.append(Call(lambda: server.complete("late", max_tokens=300, stream=True)))
        until(lambda: server.manager.statistics().num_live == 2)
        # Over before a step ends: a fast machine has made all 300 tokens by then otherwise.
        time.sleep(seconds)
        until(lambda: not any(call.is_alive() for call in late) or _later(runner))
        whole, stream = (call.outcome() for call in late)
        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert '"deadline_exceeded"' in stream.text
        assert stream.text.endswith("data: [DONE]\n\n")
        runner.go()
        server.wait_until_idle()


@pytest.mark.parametrize("share", [False, True])
def test_keys_share_prefixes_only_if_the_operator_says_so(tiny_model, share):
    keys = KeyRing(clients=parse_keys(["anna key-of-anna", "bob key-of-bob"], origin="test"))
    settings = Settings(
        MODEL,
        server=ServerSettings(port=0),
        security=SecuritySettings(share_prefixes=share),
        keys=keys,
    )
    with run_engine_server(tiny_model, settings=settings) as server:

        def cached(key: str) -> int:
            answer = server.http.post(
                "/v1/completions",
                json={"prompt": "the same long beginning " * 4, "max_tokens": 1},
                headers={"x-api-key": key},
            )
            count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count

        assert cached("key-of-anna") == 0
        assert cached("key-of-anna") > 0
        assert (cached("key-of-bob") > 0) == share


def test_one_key_cannot_end_what_another_asked_for(tiny_model):
    keys = KeyRing(clients=parse_keys(["anna key-of-anna", "bob key-of-bob"], origin="test"))
    settings = Settings(MODEL, server=ServerSettings(port=0), keys=keys)
    with controlled_server(tiny_model, settings=settings) as (server, runner):
        runner.hold()

        def ask_as(key: str) -> Any:
            headers = {"x-api-key": key, "X-Request-Id": "same-label"}
            body = {"prompt": "mine", "temperature": 0, "max_tokens": 4, "ignore_eos": True}
            return server.http.post("/v1/completions", json=body, headers=headers)

        anna, bob = Call(lambda: ask_as("key-of-anna")), Call(lambda: ask_as("key-of-bob"))
        until(lambda: server.manager.statistics().num_live == 2)
        cancelled = server.http.post(
            "/v1/requests/same-label/cancel", headers={"x-api-key": "key-of-bob"}
        )
        assert cancelled.json()["num_cancelled"] == 1
        runner.go()
        assert anna.outcome().status_code == 200
        assert bob.outcome().status_code != 200
        server.wait_until_idle()


def test_a_herd_is_answered_to_the_last():
    """1,000 connections at once: none is reset, each is served or refused, and /live answers."""
    with run_live() as server:
        server.manager.queue_full_after = 400
        body = {"prompt": "herd", "max_tokens": 2}

        async def stampede() -> Counter[int]:
            answers = await asyncio.gather(*(ask(server.port, body) for _ in range(1000)))
            return Counter(status for status, _ in answers)

        statuses = run_clients(stampede(), 100)
        assert statuses == {200: 400, 429: 600}
        assert server.http.get("/live").status_code == 200
        server.manager.wait_until(lambda: server.state.num_active == 0)
