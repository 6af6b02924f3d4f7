"""Very many requests through one process: its books are empty when they have ended (R21)."""

import asyncio
import gc
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from engine import ContinuousBatchingConfig, ContinuousBatchingManager
from server.app import create_app
from server.settings import ModelSettings, ServerSettings, Settings
from tests.engine.checksum_model import ChecksumModel
from tests.engine.control import loop_of
from tests.engine.soundness import check_idle
from tests.engine.threads import until
from tests.integration.engine_server import ServedModel
from tests.reliability.tally import logs_not_kept

logger = logging.getLogger(__name__)

AT_ONCE = 64
WARM_UP = 2_000
# What a request that is not forgotten leaves is one entry at least.
MAX_GROWTH = 500
CONTAINERS = (dict, list, set, deque, OrderedDict)
BODY = {"model": "tiny", "max_tokens": 2, "ignore_eos": True}


@asynccontextmanager
async def running(served: ServedModel) -> AsyncIterator[tuple[FastAPI, ContinuousBatchingManager]]:
    """Start an application without a socket, over a model that only adds up its tokens."""
    config = ContinuousBatchingConfig(
        page_size=4, num_blocks=1024, max_batch_tokens=1024, max_requests_per_batch=AT_ONCE
    )
    manager = served.model.init_continuous_batching(continuous_batching_config=config)
    parts = loop_of(manager)._parts
    model = ChecksumModel(parts.scheduler.blocks, served.model.causal_lm.vocab_size)
    parts.cache, parts.runner = model.cache, model
    manager.warmup = lambda: None  # type: ignore[method-assign]  # would need the real one
    settings = Settings(ModelSettings(served_names=("tiny",)), server=ServerSettings(port=0))
    app = create_app(settings, served.model, manager, served.tokenizer)
    async with app.router.lifespan_context(app):
        yield app, manager


async def send_one(app: FastAPI, number: int) -> None:
    """Send a completion and read its answer; one of four is a stream, one of eight leaves."""
    body = {**BODY, "prompt": [number % 7, number % 11], "stream": number % 4 == 0}
    leaves = number % 8 == 7
    data, statuses, chunks = json.dumps(body).encode(), [], []

    async def receive() -> dict[str, Any]:
        nonlocal data
        if data:
            sent, data = data, b""
            return {"type": "http.request", "body": sent, "more_body": False}
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))
        chunks.append(message.get("body", b""))

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/completions", "raw_path": b"/v1/completions", "root_path": "",
        "query_string": b"", "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    if not leaves:
        assert statuses[0] == 200, b"".join(chunks)


async def send_many(app: FastAPI, count: int) -> None:
    """Send so many, some at a time, and wait until they are over."""
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await send_one(app, number)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    statistics = app.state.server.manager.statistics
    await asyncio.to_thread(until, lambda: statistics().num_live == 0)


def num_entries() -> int:
    """Return how many entries the containers of this process hold, those of plain values too."""
    gc.collect()
    known = {id(one): one for one in gc.get_objects()}
    # A dictionary of numbers is no object of the collector; it is found through who owns it.
    known.update({id(one): one for owner in [*known.values()] for one in gc.get_referents(owner)})
    return sum(len(one) for one in known.values() if type(one) in CONTAINERS)


async def check_books(served: ServedModel, count: int) -> None:
    """Send so many requests; afterwards the process holds what it held before."""
    async with running(served) as (app, manager):
        with logs_not_kept():
            await send_many(app, WARM_UP)
            before, began = num_entries(), time.perf_counter()
            await send_many(app, count)
            rate = count / (time.perf_counter() - began)
            growth = num_entries() - before
        logger.info("%d requests, %.0f a second: %+d entries", count, rate, growth)
        assert growth < MAX_GROWTH
        state = app.state.server
        assert len(state.running) == state.client.num_open == state.admission.num_preparing == 0
        check_idle(loop_of(manager).scheduler)


async def test_the_books_of_ended_requests_are_closed(tiny_model):
    await check_books(tiny_model, 3_000)


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_the_books_of_a_million_requests_are_closed(tiny_model):
    await check_books(tiny_model, 1_000_000)
