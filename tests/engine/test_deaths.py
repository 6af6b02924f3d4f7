"""Whatever ends the engine thread, everyone who waits for it is told at once, and why."""

import asyncio
import time
from contextlib import suppress

import pytest

from engine import EngineDeadError, EngineStoppingError, RequestStatus
from engine.loop import EngineLoop
from engine.models.weights import WeightWatch
from engine.sampling.sampler import Sampler
from engine.scheduler import Scheduler
from tests.engine.builders import make_request
from tests.engine.threads import Call, until

CAUSES = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
PLACES = {
    "forward": None,
    "scheduling": (Scheduler, "schedule_batch"),
    "sampling": (Sampler, "sample_batch"),
    "taking a step in": (Scheduler, "update"),
    "admission": (Scheduler, "add"),
}


class Broken:
    """Raises when it is called, once it is armed."""

    def __init__(self, own, cause: BaseException) -> None:
        self.own = own
        self.cause = cause
        self.armed = False

    def bind(self):
        """Return the method that stands in the place of the broken one."""

        def method(instance, *arguments, **options):
            if self.armed:
                raise self.cause
            return self.own(instance, *arguments, **options)

        return method


def break_at(place, cause, monkeypatch, runner) -> Broken:
    broken = Broken(None, cause)
    method = PLACES[place]
    if method is None:
        broken.own = runner.edit

        def edit(inputs, logits):
            if broken.armed:
                raise cause
            return logits

        runner.edit = edit
        return broken
    owner, name = method
    broken.own = getattr(owner, name)
    monkeypatch.setattr(owner, name, broken.bind())
    return broken


def begin_pause(manager):
    """Enter a pause; the turn before the last may have let it in."""
    with suppress(RuntimeError), manager.pause():
        pass


def assert_told(output, cause):
    assert output.status is RequestStatus.FAILED
    assert isinstance(output.exception, EngineDeadError)
    assert output.exception.__cause__ is cause
    assert str(cause) in output.error


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("place", PLACES)
async def test_all_who_wait_are_told(place, kind, controlled, monkeypatch):
    """What is no Exception too: SystemExit in a forward once ended the thread in silence."""
    cause = kind("as if")
    manager, runner = controlled(max_queue_size=4, max_requests_per_batch=2)
    broken = break_at(place, cause, monkeypatch, runner)
    runner.hold()
    manager.start()
    for name in "abc":
        manager.add_request([1], name, max_new_tokens=50, streaming=name == "b")
    runner.wait_for_forward()
    handled: asyncio.Queue = asyncio.Queue()
    manager.register_result_handler("b", handled.put_nowait)
    getting = Call(manager.get_result, "a")
    iterating = Call(lambda: list(manager.request_id_iter("c")))
    adding = Call(manager.add_requests, [[5], [6], [7], [8], [9]])
    joining = Call(manager.join, time.perf_counter())
    until(lambda: manager._channels.gate.num_waiting == 4)
    broken.armed = True
    if place == "admission":
        manager._channels.gate._num_waiting += 1
        manager._mailbox.post(make_request("late"))
    pausing = Call(begin_pause, manager)
    runner.go()
    assert_told(getting.outcome(), cause)
    assert_told(iterating.outcome()[-1], cause)
    output = await handled.get()
    assert_told(output if output.is_finished() else await handled.get(), cause)
    joining.outcome()
    with pytest.raises((EngineDeadError, EngineStoppingError)):
        adding.outcome()
    pausing.outcome()
    assert manager.fatal_error is cause
    with pytest.raises(EngineDeadError, match=kind.__name__) as refusal:
        manager.add_request([1])
    assert refusal.value.__cause__ is cause
    assert not manager.is_running()
    while manager.get_result(timeout=0) is not None:
        pass


@pytest.mark.parametrize("kind", CAUSES)
def test_a_batch_is_told(kind, tiny_model, monkeypatch, cache_is_sound):
    cause = kind("as if")

    def forward(self, batch):
        raise cause

    monkeypatch.setattr(EngineLoop, "_forward_and_sample", forward)
    with pytest.raises(EngineDeadError, match=kind.__name__) as caught:
        tiny_model.generate_batch([[1], [2]], max_new_tokens=3, warmup=False)
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("name", ["_end_all", "_restart"])
def test_an_error_around_the_turns_is_told_too(name, controlled, monkeypatch):
    """What is done between two turns and after the last."""
    manager, runner = controlled()
    cause = ValueError("our own mistake")

    def broken(*arguments):
        raise cause

    runner.hold()
    manager.add_request([1], "a", max_new_tokens=20)
    if name == "_restart":
        monkeypatch.setattr(Scheduler, "update", broken)
    monkeypatch.setattr(EngineLoop, name, broken)
    manager.start()
    runner.go()
    if name == "_end_all":
        manager.stop(hard_stop=True)
    assert_told_or_done(manager.get_result("a"), cause)
    manager.join(time.perf_counter())
    assert manager.fatal_error is cause


def test_an_error_before_the_first_turn_is_told_too(make_manager, monkeypatch):
    manager = make_manager()
    cause = ValueError("our own mistake")

    def broken(*arguments):
        raise cause

    monkeypatch.setattr(WeightWatch, "have_changed", broken)
    manager.add_request([1], "a", max_new_tokens=20)
    manager.start()
    assert_told(manager.get_result("a"), cause)
    manager.join(time.perf_counter())


def test_a_request_that_came_with_what_failed_is_not_lost(make_manager, monkeypatch):
    """Once it was taken out of the mailbox and not known to the loop yet: nobody ended it."""
    manager = make_manager()
    forget = EngineLoop._forget_computed
    errors = [ValueError("our own mistake")]

    def broken_once(loop):
        if errors:
            raise errors.pop()
        forget(loop)

    monkeypatch.setattr(EngineLoop, "_forget_computed", broken_once)
    manager.add_request([1], "a", max_new_tokens=20)
    manager.clear_prefix_cache()
    manager.start()
    assert len(manager.get_result("a").generated_tokens) == 20
    assert manager.statistics().num_restarts == 1
    manager.stop()


def assert_told_or_done(output, cause):
    assert output.status is RequestStatus.FINISHED or output.exception.__cause__ is cause


def test_a_death_that_cannot_be_told_of_leaves_nobody_waiting(make_manager, monkeypatch):
    manager = make_manager()

    def broken(*arguments):
        raise ValueError("as if telling failed")

    monkeypatch.setattr(EngineLoop, "run", broken)
    manager.start()
    waiting = Call(manager.get_result)
    assert waiting.outcome() is None
    manager.join(time.perf_counter())
    assert str(manager.fatal_error) == "as if telling failed"
    with pytest.raises(EngineDeadError):
        manager.add_request([1])
