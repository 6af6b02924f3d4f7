"""Submitting: the handler first, the request second, and nothing left behind."""

import pytest

from engine import EngineStoppingError, QueueFullError
from server.engine_client import EngineClient
from server.request_record import RequestRecord, set_current_record
from tests.server.fakes import FakeManager


@pytest.fixture
def manager():
    fake = FakeManager(lambda _ids, _arguments: [1, 2, 3], eos_token_id=3)
    yield fake
    fake.stop()


async def test_the_handler_is_registered_before_the_request_is_added(manager, monkeypatch):
    calls = []
    for name in ("register_result_handler", "add_request"):
        real = getattr(manager, name)

        def spy(*args, _name=name, _real=real, **keywords):
            calls.append(_name)
            return _real(*args, **keywords)

        monkeypatch.setattr(manager, name, spy)
    EngineClient(manager).submit("r", [1], {})
    assert calls == ["register_result_handler", "add_request"]


async def test_a_refused_request_leaves_no_handler(manager):
    manager.queue_full_after = 0
    client = EngineClient(manager)
    with pytest.raises(QueueFullError):
        client.submit("r", [1], {})
    assert manager.num_handlers == 0
    assert client.num_open == 0


async def test_tokens_arrive_from_the_engine_thread(manager):
    client = EngineClient(manager)
    manager.start()
    (stream,) = client.submit("r", [1], {})
    assert client.num_open == 1
    ids = [token async for delta in stream for token in delta.token_ids]
    assert ids == [1, 2, 3]
    assert client.num_open == 0
    assert manager.cancelled == [], "a finished request must not be cancelled"


async def test_abort_all_reaches_every_reader(manager):
    manager.paused.set()
    client = EngineClient(manager)
    streams = client.submit("r", [1], {}, count=3)
    client.abort_all(EngineStoppingError("bye"))
    for stream in streams:
        with pytest.raises(EngineStoppingError):
            await anext(stream)
    assert sorted(manager.cancelled) == ["r", "r__child#0", "r__child#1"]
    assert client.num_open == 0


async def test_health_follows_the_engine(manager):
    client = EngineClient(manager)
    seen = [client.is_healthy]
    manager.start()
    seen.append(client.is_healthy)
    manager.die(RuntimeError("x"))
    seen.append(client.is_healthy)
    assert seen == [False, True, False]


async def test_what_was_not_admitted_does_not_reach_the_engine(manager):
    set_current_record(RequestRecord("", "POST", "/a/new/route"))
    with pytest.raises(AssertionError, match="not admitted"):
        EngineClient(manager).submit("r", [1], {})
    assert manager.added == []
