"""A tiny model for engine tests, and the accounting that each of them has to leave in order."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine import ContinuousBatchingConfig, ContinuousBatchingManager, PagedModel, wrap
from engine.cache.block_manager import BlockManager
from engine.loop import EngineLoop
from engine.requests import RequestState
from engine.scheduler import Scheduler
from tests.engine.control import ControlledRunner, control
from tests.engine.soundness import check_blocks, check_idle, check_scheduler

THREAD_NAME = "slipstream-engine"
THREAD_GRACE_SECONDS = 5.0


@dataclass(slots=True)
class EngineParts:
    """What a test built, to be checked when it is over.

    Attributes:
        holders: Requests that hold blocks of a block manager no scheduler owns; the test adds them.
        broken: Schedulers that the test broke on purpose, or whose loop died.
    """

    managers: list[ContinuousBatchingManager] = field(default_factory=list)
    schedulers: list[Scheduler] = field(default_factory=list)
    block_managers: list[BlockManager] = field(default_factory=list)
    loops: list[EngineLoop] = field(default_factory=list)
    holders: list[RequestState] = field(default_factory=list)
    broken: list[Scheduler] = field(default_factory=list)


def _record_instances(monkeypatch: pytest.MonkeyPatch, cls: type, instances: list) -> None:
    initialise = cls.__dict__["__init__"]

    def recorded(self, *args, **kwargs):
        initialise(self, *args, **kwargs)
        instances.append(self)

    monkeypatch.setattr(cls, "__init__", recorded)


def _record_deaths(monkeypatch: pytest.MonkeyPatch, broken: list[Scheduler]) -> None:
    for name in ("_replace_scheduler", "_die"):
        end = getattr(EngineLoop, name)

        def recorded(self, *args, end=end):
            broken.append(self.scheduler)
            end(self, *args)

        monkeypatch.setattr(EngineLoop, name, recorded)


@pytest.fixture(autouse=True)
def cache_is_sound(monkeypatch) -> Iterator[EngineParts]:
    """After each test: blocks add up, no request is left of a manager, and no thread."""
    before = set(threading.enumerate())
    parts = EngineParts()
    with monkeypatch.context() as patches:
        _record_instances(patches, ContinuousBatchingManager, parts.managers)
        _record_instances(patches, Scheduler, parts.schedulers)
        _record_instances(patches, BlockManager, parts.block_managers)
        _record_deaths(patches, parts.broken)
        yield parts
    for manager in parts.managers:
        _check_manager(manager)
    _check_threads(before)
    stopped = {id(s) for s in parts.schedulers if parts.managers}
    for scheduler in parts.schedulers:
        if scheduler in parts.broken:
            continue
        (check_idle if id(scheduler) in stopped else check_scheduler)(scheduler)
    owned = {id(scheduler.blocks) for scheduler in parts.schedulers}
    for blocks in parts.block_managers:
        if id(blocks) not in owned:
            check_blocks(blocks, parts.holders)


def _check_manager(manager: ContinuousBatchingManager) -> None:
    if manager.is_running():
        manager.stop(hard_stop=True, timeout=THREAD_GRACE_SECONDS)
        pytest.fail("the test left its engine running")
    assert manager._mailbox.num_live == 0, "a request was accepted and has not ended"
    assert manager._channels.gate.num_waiting == 0, "a place in the queue was not given back"
    assert manager._router.num_handlers == 0, "a handler waits for an output that cannot come"


def _check_threads(before: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - before:
        if thread.name == THREAD_NAME:
            thread.join(THREAD_GRACE_SECONDS)
            assert not thread.is_alive(), "an engine thread is left"


@pytest.fixture(scope="session")
def tiny_model() -> PagedModel:
    """A random two-layer Llama in fp32 that never ends an answer by itself."""
    config = LlamaConfig(
        vocab_size=199,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,  # wide enough for answers that do not repeat one token
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return wrap(LlamaForCausalLM(config).eval())


class Controlled(NamedTuple):
    """A manager and the runner in it."""

    manager: ContinuousBatchingManager
    runner: ControlledRunner


MakeManager = Callable[..., ContinuousBatchingManager]


@pytest.fixture
def make_manager(tiny_model) -> Iterator[MakeManager]:
    """A function from fields of the configuration to a manager, destroyed when the test is over."""
    managers = []

    def make(**fields) -> ContinuousBatchingManager:
        small = {
            "num_blocks": 64,
            "page_size": 16,
            "max_batch_tokens": 64,
            "step_time_target": 0.0,  # what a step computes must not depend on the machine
        }
        config = ContinuousBatchingConfig(**{**small, **fields})
        manager = tiny_model.init_continuous_batching(continuous_batching_config=config)
        managers.append(manager)
        return manager

    yield make
    for manager in managers:
        if manager.is_running():
            manager.stop(hard_stop=True)
        manager.destroy()


@pytest.fixture
def controlled(make_manager) -> Iterator[Callable[..., Controlled]]:
    """Like `make_manager`, with a runner that the test controls; nothing is held in the end."""
    runners = []

    def make(**fields) -> Controlled:
        manager = make_manager(**fields)
        runners.append(control(manager))
        return Controlled(manager, runners[-1])

    yield make
    for runner in runners:
        runner.go()
