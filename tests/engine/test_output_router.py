"""Outputs on their way to event loops: the right loop, the right order, whatever handlers do."""

import asyncio
import logging
import threading

import pytest

from engine.output_router import OutputRouter
from engine.requests import FinishReason, GenerationOutput, RequestStatus
from engine.result_store import ResultStore
from tests.engine.builders import make_request


def outputs_of(name, count):
    """Return a stream of outputs, the last one terminal."""
    state = make_request(name)
    state.status = RequestStatus.DECODING
    outputs = []
    for token in range(count):
        state.generated_tokens.append(token)
        if token == count - 1:
            state.finish(RequestStatus.FINISHED, FinishReason.LENGTH)
        outputs.append(state.make_output())
    return outputs


@pytest.fixture
def router():
    return OutputRouter(ResultStore())


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def call(self, function):
        async def called():
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(5)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(5)
            self.loop.close()


@pytest.fixture
def loops():
    loops = [LoopThread(), LoopThread()]
    yield loops
    for loop in loops:
        loop.close()


async def test_a_handler_gets_its_requests_outputs_in_order_and_then_goes(router):
    received: list[GenerationOutput] = []
    router.register("a", received.append)
    outputs = outputs_of("a", 3)
    for output in outputs:
        router.deliver([output])
    await asyncio.sleep(0)
    assert received == outputs
    assert router.num_handlers == 0
    assert len(router.store) == 0


async def test_outputs_without_a_handler_go_to_the_store(router):
    received: list[GenerationOutput] = []
    router.register("a", received.append)
    (mine,), (other,) = outputs_of("a", 1), outputs_of("b", 1)
    router.deliver([other, mine])
    await asyncio.sleep(0)
    assert received == [mine]
    assert router.store.get(timeout=0) is other


def test_registering_needs_a_running_event_loop(router):
    with pytest.raises(RuntimeError):
        router.register("a", print)
    assert router.num_handlers == 0


async def test_an_unregistered_handler_is_not_called(router):
    received: list[GenerationOutput] = []
    router.register("a", received.append)
    router.unregister("a")
    router.unregister("never registered")
    router.deliver(outputs_of("a", 1))
    await asyncio.sleep(0)
    assert received == []
    assert len(router.store) == 1


def test_handlers_run_on_the_loops_they_were_registered_on(router, loops):
    """The reference calls all of a step's handlers on the loop of one of them."""
    called: dict[str, list[threading.Thread]] = {"a": [], "b": []}
    for name, loop in zip(called, loops, strict=True):
        loop.call(
            lambda name=name: router.register(
                name, lambda _: called[name].append(threading.current_thread())
            )
        )
    (first,), (second,) = outputs_of("a", 1), outputs_of("b", 1)
    router.deliver([first, second])
    for loop in loops:
        loop.call(lambda: None)
    assert called == {"a": [loops[0].thread], "b": [loops[1].thread]}


def test_a_step_wakes_a_loop_once_however_many_streams_it_has(router, loops, monkeypatch):
    for number in range(20):
        loops[0].call(lambda number=number: router.register(f"r{number}", lambda _: None))
    wakes = []
    wake = loops[0].loop.call_soon_threadsafe

    def counted(*args, **options):
        wakes.append(args)
        return wake(*args, **options)

    monkeypatch.setattr(loops[0].loop, "call_soon_threadsafe", counted)
    router.deliver([output for n in range(20) for output in outputs_of(f"r{n}", 1)])
    assert len(wakes) == 1


def test_a_closed_loop_does_not_keep_others_from_their_outputs(router, loops, caplog):
    received: list[GenerationOutput] = []
    loops[0].call(lambda: router.register("a", received.append))
    loops[1].call(lambda: router.register("b", received.append))
    loops[0].close()
    (lost,), (kept,) = outputs_of("a", 1), outputs_of("b", 1)
    with caplog.at_level(logging.WARNING):
        router.deliver([lost, kept])
    loops[1].call(lambda: None)
    assert received == [kept]
    assert "1 outputs are lost with their event loop" in caplog.text
    assert router.num_handlers == 0


def test_a_request_whose_end_is_lost_with_its_loop_does_not_go_on(router, loops):
    """Several outputs of a request may come at once; its terminal one decides."""
    loops[0].call(lambda: router.register("ended", print))
    loops[0].call(lambda: router.register("running", print))
    loops[0].close()
    undelivered = router.deliver([*outputs_of("ended", 3), *outputs_of("running", 3)[:2]])
    assert list(undelivered) == ["running"]
    assert router.num_handlers == 1


async def test_a_loop_that_cannot_be_hashed_is_a_loop_like_others(router, monkeypatch):
    loop = asyncio.get_running_loop()
    received: list[GenerationOutput] = []
    router.register("a", received.append)
    router.register("b", received.append)
    monkeypatch.setattr(type(loop), "__hash__", None, raising=False)
    (first,), (second,) = outputs_of("a", 1), outputs_of("b", 1)
    assert router.deliver([first, second]) == {}
    monkeypatch.undo()
    await asyncio.sleep(0)
    assert received == [first, second]


async def test_a_handler_that_raises_does_not_keep_others_from_theirs(router, caplog):
    received: list[GenerationOutput] = []

    def raising(output):
        raise ValueError("the caller's own fault")

    router.register("a", raising)
    router.register("b", received.append)
    (bad,), (good,) = outputs_of("a", 1), outputs_of("b", 1)
    router.deliver([bad, good])
    await asyncio.sleep(0)
    assert received == [good]
    assert "the result handler of request a raised" in caplog.text


async def test_a_handler_may_unregister_itself_while_it_runs(router):
    received: list[GenerationOutput] = []

    def once(output):
        received.append(output)
        router.unregister("a")

    router.register("a", once)
    for output in outputs_of("a", 2):
        router.deliver([output])
        await asyncio.sleep(0)
    assert len(received) == 1
    assert len(router.store) == 1
