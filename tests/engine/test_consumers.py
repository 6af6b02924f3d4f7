"""The outputs of a request go to one taker at a time, and each output to exactly one."""

import asyncio
import random

import pytest

from engine import InvalidRequestError
from tests.engine.threads import until

NUM_TOKENS = 6


@pytest.fixture
def stepped(controlled):
    """An engine that makes a token for its one request whenever the test allows it."""
    manager, runner = controlled()
    runner.hold()
    manager.start()
    yield manager, runner
    runner.go()
    manager.stop(hard_stop=True)


def add(manager, name="a"):
    return manager.add_request([1], name, max_new_tokens=NUM_TOKENS, streaming=True)


def advance(manager, runner, number):
    """Let the request have this many tokens in all, delivered."""
    runner.allow(number - runner.num_ended)
    if number < NUM_TOKENS:
        runner.wait_for_forward(number + 1)
    else:
        until(lambda: manager.statistics().num_live == 0)


def counts(outputs):
    return [len(output.generated_tokens) for output in outputs]


def begin_handler(manager):
    outputs: list = []
    manager.register_result_handler("a", outputs.append)
    return lambda: manager.unregister_result_handler("a")


def begin_iterator(manager):
    iterator = manager.request_id_iter("a")
    next(iterator)
    return iterator.close


TAKERS = {"handler": begin_handler, "iterator": begin_iterator}


@pytest.mark.parametrize("first", TAKERS)
async def test_a_second_taker_is_refused_whatever_it_is(stepped, first):
    """Each would get a part of the answer and think that it is the whole."""
    manager, runner = stepped
    add(manager)
    advance(manager, runner, 2)
    end = TAKERS[first](manager)
    with pytest.raises(InvalidRequestError, match="'a' go to a handler or an iterator"):
        manager.register_result_handler("a", print)
    with pytest.raises(InvalidRequestError):
        next(manager.request_id_iter("a"))
    with pytest.raises(InvalidRequestError):
        await anext(manager.stream("a"))
    end()
    rest: asyncio.Queue = asyncio.Queue()
    manager.register_result_handler("a", rest.put_nowait)
    advance(manager, runner, NUM_TOKENS)
    found: list = []
    while not (found and found[-1].is_finished()):
        found.append(await rest.get())
    # What the first one took is gone with it; everything else comes, once and in its order.
    assert counts(found) == list(range(3 if first == "handler" else 2, NUM_TOKENS + 1))


async def test_a_refused_taker_takes_nothing(stepped):
    manager, runner = stepped
    outputs: asyncio.Queue = asyncio.Queue()
    manager.register_result_handler("a", outputs.put_nowait)
    add(manager)
    for number in range(1, NUM_TOKENS + 1):
        with pytest.raises(InvalidRequestError):
            manager.register_result_handler("a", print)
        advance(manager, runner, number)
    assert counts([await outputs.get() for _ in range(NUM_TOKENS)]) == [1, 2, 3, 4, 5, 6]


async def test_a_stream_refuses_a_second_one(stepped):
    manager, runner = stepped
    add(manager)
    advance(manager, runner, 1)
    stream = manager.stream("a")
    await anext(stream)
    with pytest.raises(InvalidRequestError):
        await anext(manager.stream("a"))
    advance(manager, runner, NUM_TOKENS)
    assert counts([output async for output in stream]) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("number", [1, 3, NUM_TOKENS])
async def test_a_handler_that_comes_late_gets_what_waits_and_then_the_rest(stepped, number):
    manager, runner = stepped
    add(manager)
    advance(manager, runner, number)
    outputs: asyncio.Queue = asyncio.Queue()
    manager.register_result_handler("a", outputs.put_nowait)
    advance(manager, runner, NUM_TOKENS)
    assert counts([await outputs.get() for _ in range(NUM_TOKENS)]) == [1, 2, 3, 4, 5, 6]
    assert manager._router.num_handlers == 0


@pytest.mark.parametrize("seed", range(12))
async def test_takers_that_follow_one_another_get_each_output_once(stepped, seed):
    manager, runner = stepped
    source = random.Random(seed)
    add(manager)
    taken: list[int] = []

    def handle(output):
        taken.append(len(output.generated_tokens))

    for number in range(1, NUM_TOKENS):
        advance(manager, runner, number)
        way = source.choice(["result", "handler", "iterator", "nobody"])
        if way == "result":
            taken += counts([manager.get_result("a", timeout=0)])
        elif way == "iterator":
            taken += counts([next(manager.request_id_iter("a"))])
        elif way == "handler":
            manager.register_result_handler("a", handle)
            await asyncio.sleep(0)
            manager.unregister_result_handler("a")
        if way in ("result", "iterator") and source.random() < 0.5:
            while (output := manager.get_result("a", timeout=0)) is not None:
                taken += counts([output])
    advance(manager, runner, NUM_TOKENS)
    taken += counts([output async for output in manager.stream("a")])
    assert taken == [1, 2, 3, 4, 5, 6]
