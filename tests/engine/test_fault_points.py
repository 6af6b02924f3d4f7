"""Faults injected at each named point: the culprit fails, its neighbours notice nothing."""

import asyncio

import pytest

from engine import EngineDeadError, FinishReason, RequestFailedError
from engine.faults import FaultPoint, FaultPoints, InjectedFaultError
from tests.engine.builders import make_request
from tests.engine.control import loop_of

POISON = 198
CANARIES = {f"canary {n}": [n, 2 * n + 1, 5, 6, 7] for n in range(6)}
POINTS = list(FaultPoint)


@pytest.fixture
def alone(make_manager):
    """The canaries' answers with nobody beside them."""
    manager = make_manager()
    manager.start()
    answers = {}
    for name, prompt in CANARIES.items():
        manager.add_request(prompt, name, max_new_tokens=12)
        answers[name] = manager.get_result(name).generated_tokens
    manager.stop()
    return answers


def faults_of(manager) -> FaultPoints:
    return manager._channels.faults


def run_canaries(manager):
    """Return what the canaries answer, submitted now and beside whatever runs."""
    for name, prompt in CANARIES.items():
        manager.add_request(prompt, name, max_new_tokens=12)
    return {name: manager.get_result(name).generated_tokens for name in CANARIES}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_fault_for_one_request_fails_that_request_only(make_manager, alone, point, streaming):
    manager = make_manager()
    faults_of(manager).arm(point, request_id="bad")
    manager.add_request([1, 2], "bad", max_new_tokens=8, streaming=streaming)
    manager.start()
    assert run_canaries(manager) == alone
    *_, output = manager.request_id_iter("bad")
    assert output.finish_reason is FinishReason.ERROR
    assert isinstance(output.exception, RequestFailedError)
    assert isinstance(output.exception.__cause__, InjectedFaultError)
    assert manager.is_running()
    assert manager.statistics().num_restarts == 0


@pytest.mark.parametrize("point", POINTS)
def test_a_thousand_poisons_leave_no_trace(make_manager, alone, point):
    """200 for each of the 5 points; what is left behind is looked for after every test."""
    manager = make_manager(max_queue_size=0)
    faults_of(manager).arm(point, token=POISON)
    manager.start()
    for wave in range(10):
        bad = manager.add_requests(
            [[n, wave, POISON, *range(n % 24)] for n in range(20)], max_new_tokens=4
        )
        assert run_canaries(manager) == alone
        for name in bad:
            assert manager.get_result(name).finish_reason is FinishReason.ERROR
    faults_of(manager).disarm()
    assert run_canaries(manager) == alone
    statistics = manager.statistics()
    assert (statistics.num_live, statistics.num_restarts) == (0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks


@pytest.mark.parametrize("point", [FaultPoint.BUILD, FaultPoint.FORWARD, FaultPoint.SAMPLE])
def test_a_fault_that_does_not_come_back_fails_nobody(make_manager, alone, point):
    """A step is tried again in halves: what was nobody's fault is nobody's failure."""
    manager = make_manager()
    faults_of(manager).arm(point, once=True)
    for name, prompt in CANARIES.items():
        manager.add_request(prompt, name, max_new_tokens=12)
    manager.start()
    assert {name: manager.get_result(name).generated_tokens for name in CANARIES} == alone
    assert not faults_of(manager).armed


async def test_a_handler_is_told_that_its_output_was_not_delivered(make_manager):
    manager = make_manager()
    faults_of(manager).arm(FaultPoint.DELIVER, request_id="bad")
    outputs: asyncio.Queue = asyncio.Queue()
    manager.register_result_handler("bad", outputs.put_nowait)
    manager.add_request([1], "bad", max_new_tokens=5, streaming=True)
    manager.start()
    output = await asyncio.wait_for(outputs.get(), 10)
    assert output.finish_reason is FinishReason.ERROR
    await asyncio.to_thread(manager.stop)
    assert outputs.empty()


def test_faults_are_told_apart():
    faults = FaultPoints()
    assert not faults.armed
    one, other = make_request("one", [1, 2]), make_request("other", [3])
    faults.arm(FaultPoint.ADMIT, token=3)
    faults.check(FaultPoint.ADMIT, [one])
    faults.check(FaultPoint.BUILD, [other])
    with pytest.raises(InjectedFaultError, match="admit of request other"):
        faults.check(FaultPoint.ADMIT, [one, other])
    faults.disarm()
    faults.check(FaultPoint.ADMIT, [other])


# ------------------------------------------------------------------- outside of every ring


def break_steps(manager, place, count):
    """Make the next `count` calls of a scheduler's method raise, whichever scheduler it is."""
    parts = loop_of(manager)._parts
    left = [count]

    def spoil(scheduler):
        method = getattr(scheduler, place)

        def broken(*args):
            if left[0]:
                left[0] -= 1
                raise KeyError("our own mistake")
            return method(*args)

        setattr(scheduler, place, broken)
        return scheduler

    make = parts.make_scheduler
    parts.make_scheduler = lambda: spoil(make())
    spoil(parts.scheduler)


@pytest.mark.parametrize("place", ["schedule_batch", "update"])
def test_a_step_that_breaks_costs_what_was_running_and_the_loop_goes_on(controlled, alone, place):
    manager, runner = controlled(max_requests_per_batch=2)
    runner.hold()
    for name, prompt in CANARIES.items():
        manager.add_request(prompt, name, max_new_tokens=12)
    manager.start()
    runner.wait_for_forward()
    break_steps(manager, place, 1)
    runner.go()
    outputs = {output.request_id: output for output in manager}
    failed = [name for name, output in outputs.items() if output.exception is not None]
    assert sorted(failed) == ["canary 0", "canary 1"]
    for name in failed:
        assert isinstance(outputs[name].exception.__cause__, KeyError)
        del alone[name]
    assert {name: outputs[name].generated_tokens for name in alone} == alone
    assert manager.statistics().num_restarts == 1
    assert manager.fatal_error is None


def test_a_step_that_breaks_again_at_once_costs_what_was_waiting_too(controlled, alone):
    manager, runner = controlled(max_requests_per_batch=2, max_queue_size=9)
    runner.hold()
    ids = [manager.add_request([n], max_new_tokens=4) for n in range(6)]
    manager.start()
    runner.wait_for_forward()
    break_steps(manager, "schedule_batch", 2)
    runner.go()
    outputs = {output.request_id: output for output in manager}
    assert outputs.keys() == set(ids)
    assert all(output.exception is not None for output in outputs.values())
    assert run_canaries(manager) == alone
    assert manager.statistics().num_restarts == 2


def test_a_loop_that_breaks_too_often_dies(make_manager):
    manager = make_manager()
    break_steps(manager, "update", 10)
    manager.start()
    for number in range(loop_of(manager).restarts.max_restarts):
        manager.add_request([1], max_new_tokens=2)
        assert isinstance(manager.get_result().exception, RequestFailedError), number
    manager.add_request([1], max_new_tokens=2)
    assert isinstance(manager.get_result().exception, EngineDeadError)
    with pytest.raises(EngineDeadError):
        manager.add_request([1])


def test_a_restart_forgets_what_the_cache_held(make_manager):
    """Nothing of a step that broke may be found by the next."""
    manager = make_manager()
    manager.start()
    prompt = list(range(40))
    for expected in (0, 39):
        manager.add_request(prompt, "a", max_new_tokens=2)
        assert manager.get_result("a").num_cached_tokens == expected
    break_steps(manager, "update", 1)
    manager.add_request([1], "bad", max_new_tokens=2)
    assert manager.get_result("bad").exception is not None
    manager.add_request(prompt, "a", max_new_tokens=2)
    assert manager.get_result("a").num_cached_tokens == 0
