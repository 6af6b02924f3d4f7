"""What a step costs the scheduler: counted calls, not seconds."""

import sys

import pytest

from engine.cache.block_manager import BlockManager
from tests.engine.builders import make_request, make_scheduler
from tests.engine.scheduling import distinct, started, step

KINDS = ["fifo", "prefill_first", "priority"]


def num_calls(function, *arguments):
    """Return how many Python and C functions are called, down the whole tree."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return count


def blocked(kind, num_waiting, prompt_length):
    """A scheduler with two running requests and others that wait for blocks."""
    scheduler = make_scheduler(num_blocks=2_000, kind=kind, num_reserved_blocks=1_950)
    started(scheduler, distinct("a", 60), distinct("b", 120))
    for number in range(num_waiting):
        scheduler.add(make_request(f"w{number}", [number] * prompt_length))
    step(scheduler)
    return scheduler


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_costs_the_same_however_many_wait_and_however_long_they_are(kind):
    few, many, long = (blocked(kind, *shape) for shape in ((2, 60), (5_000, 60), (2, 6_000)))
    counts = {num_calls(scheduler.schedule_batch) for scheduler in (few, many, long)}
    assert len(counts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_costs_the_same_however_many_wait(kind):
    few, many = blocked(kind, 100, 60), blocked(kind, 5_000, 60)

    def cancel(scheduler, name):
        for request in list(scheduler.waiting):
            if request.request_id == name:
                return num_calls(scheduler.cancel, request)
        raise AssertionError(name)

    assert cancel(few, "w50") == cancel(many, "w2500")


def test_a_head_that_does_not_fit_is_not_matched_again_until_blocks_are_free(monkeypatch):
    attempts = []
    attach_prefix = BlockManager.attach_prefix

    def counted(self, request):
        attempts.append(request.request_id)
        return attach_prefix(self, request)

    monkeypatch.setattr(BlockManager, "attach_prefix", counted)
    scheduler = make_scheduler(num_blocks=12)
    first, second = started(scheduler, distinct("a", 18), distinct("b", 10))
    scheduler.add(distinct("c", 20))
    for _ in range(4):
        step(scheduler)
    assert attempts == ["a", "b", "c"]
    scheduler.cancel(second)
    step(scheduler)
    assert attempts == ["a", "b", "c", "c"]
    assert "c" in scheduler.running
    assert first.num_preemptions == 0


def test_a_head_whose_prefix_has_come_into_the_cache_is_looked_at_again():
    """It needs fewer blocks now, though none has been freed."""
    scheduler = make_scheduler(num_blocks=11, max_batch_tokens=8)
    shared = list(range(1, 25))
    started(scheduler, make_request("a", shared))
    scheduler.add(make_request("b", shared))
    for _ in range(5):
        step(scheduler)
        if "b" in scheduler.running:
            break
    assert "a" in scheduler.running
    assert "b" in scheduler.running
