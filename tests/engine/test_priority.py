"""The priority scheduler: who starts, who gives way to whom, and that nobody starves."""

import pytest

from engine import InvalidRequestError
from engine.scheduler_kinds import MAX_PREEMPTIONS, STARTS_PER_TURN
from tests.engine.builders import make_request, make_scheduler
from tests.engine.control import loop_of
from tests.engine.scheduling import distinct, share, started, step


def urgent(name, length, priority=-1, **params):
    request = distinct(name, length, **params)
    request.priority = priority
    return request


def make(**limits):
    return make_scheduler(kind="priority", **limits)


def test_lower_priorities_start_first():
    scheduler = make(max_requests=2)
    for name, priority in (("a", 3), ("b", 1), ("c", 2), ("d", 1)):
        scheduler.add(urgent(name, 3, priority))
    batch, _ = step(scheduler)
    assert list(share(batch)) == ["b", "d"]


def test_equal_priorities_are_first_come_first_served():
    scheduler = make(max_requests=1)
    for name in "abc":
        scheduler.add(urgent(name, 3, 7, max_new_tokens=1))
    assert [list(share(step(scheduler)[0])) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_an_urgent_request_takes_the_row_of_the_lowest_and_newest():
    scheduler = make(max_requests=3)
    started(scheduler, urgent("a", 3, 5), urgent("b", 3, 5), urgent("c", 3, 1))
    scheduler.add(urgent("d", 3, 0))
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1, "c": 1, "d": 3}
    assert [request.request_id for request in scheduler.waiting] == ["b"]


def test_an_urgent_request_takes_as_many_blocks_as_it_needs_and_no_more():
    scheduler = make(num_blocks=6)
    a, b, c = started(scheduler, urgent("a", 7, 1), urgent("b", 7, 1), urgent("c", 7, 1))
    scheduler.add(urgent("d", 7, 0))
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1, "b": 1, "d": 7}
    assert (a.num_preemptions, b.num_preemptions, c.num_preemptions) == (0, 0, 1)


def test_nobody_gives_way_to_an_equal():
    scheduler = make(max_requests=1)
    started(scheduler, urgent("a", 3, 2))
    scheduler.add(urgent("b", 3, 2))
    step(scheduler)
    assert list(scheduler.running) == ["a"]


def test_nobody_gives_way_in_vain():
    """If all that may give way are not enough, they go on."""
    scheduler = make(num_blocks=6)
    low, high = started(scheduler, urgent("a", 3, 9), urgent("b", 11, 0))
    scheduler.add(urgent("c", 17, 1))
    step(scheduler)
    assert set(scheduler.running) == {"a", "b"}
    assert low.num_preemptions == high.num_preemptions == 0


def test_shared_blocks_do_not_count_as_given():
    scheduler = make(num_blocks=5)
    shared = list(range(1, 9))
    first = make_request("a", shared, max_new_tokens=50)
    started(scheduler, first)
    second = make_request("b", shared, max_new_tokens=50)
    second.priority = 1
    started(scheduler, second)
    scheduler.add(urgent("c", 9, 0))
    step(scheduler)
    assert len(second.block_ids) == 3
    assert scheduler.blocks.pool.num_free == 0
    assert second.num_preemptions == 0


def test_when_running_requests_grow_the_lowest_priority_gives_way():
    scheduler = make(num_blocks=3)
    _, low, newest = started(scheduler, distinct("a", 3), urgent("b", 3, 1), distinct("c", 3))
    step(scheduler)
    step(scheduler)
    assert (low.num_preemptions, newest.num_preemptions) == (1, 1)
    assert [request.request_id for request in scheduler.waiting] == ["c", "b"]


def test_an_urgent_prompt_is_computed_before_one_that_has_begun():
    scheduler = make(max_batch_tokens=8)
    started(scheduler, urgent("a", 20, 5))
    scheduler.add(urgent("b", 10, 0))
    assert share(step(scheduler)[0]) == {"b": 8}
    assert share(step(scheduler)[0]) == {"b": 2, "a": 6}


def test_what_an_urgent_prompt_leaves_of_a_step_goes_to_who_gave_way():
    scheduler = make(max_batch_tokens=8)
    started(scheduler, urgent("a", 20, 5))
    scheduler.add(urgent("b", 3, 0))
    assert share(step(scheduler)[0]) == {"b": 3, "a": 5}


def test_a_low_prompt_is_computed_under_an_endless_stream_of_urgent_ones():
    """It has a row and blocks, but each step could be full of others' tokens."""
    scheduler = make(max_batch_tokens=8, num_blocks=64)
    (low,) = started(scheduler, urgent("z", 40, 5, max_new_tokens=1))
    for number in range(100):
        scheduler.add(make_request(f"urgent {number}", [number] * 8, max_new_tokens=1))
        step(scheduler)
        if low.is_finished():
            break
    assert low.is_finished()
    assert number <= 2 * STARTS_PER_TURN


def test_a_low_request_gets_its_turn_under_an_endless_stream_of_urgent_ones():
    scheduler = make(max_requests=2)
    low = urgent("z", 3, 1000, max_new_tokens=3)
    scheduler.add(low)
    num_added = 0
    for _ in range(400):
        while len(scheduler.waiting) < 6:
            scheduler.add(make_request(f"urgent {num_added}", [num_added], max_new_tokens=2))
            num_added += 1
        step(scheduler)
        if low.is_finished():
            break
    assert low.is_finished()
    assert low.promoted
    assert num_added < 2 * STARTS_PER_TURN


def test_a_request_gives_way_a_few_times_only():
    scheduler = make(max_requests=1)
    low = urgent("z", 3, 1, max_new_tokens=500)
    scheduler.add(low)
    for number in range(20):
        step(scheduler)
        scheduler.add(make_request(f"urgent {number}", [number], max_new_tokens=1))
        step(scheduler)
        step(scheduler)
    assert low.num_preemptions == MAX_PREEMPTIONS
    assert "z" in scheduler.running


@pytest.mark.parametrize("num_low", [1, 5])
def test_every_request_ends_whatever_the_priorities(num_low):
    scheduler = make(num_blocks=6, max_batch_tokens=8, max_requests=3)
    requests = [urgent(name, 6, ord(name) % 4, max_new_tokens=16) for name in "abcdefghijk"]
    requests += [urgent(name, 2, 99, max_new_tokens=16) for name in "vwxyz"[:num_low]]
    for request in requests:
        scheduler.add(request)
    for _ in range(2_000):
        if not scheduler.has_requests():
            break
        step(scheduler)
    assert all(request.is_finished() for request in requests)


def test_priorities_reach_the_scheduler(controlled):
    manager, runner = controlled(scheduler_type="priority", max_requests_per_batch=1)
    runner.hold()
    manager.start()
    manager.add_request([1], "first", max_new_tokens=2)
    runner.wait_for_forward()
    manager.add_request([2], "low", max_new_tokens=1, priority=3)
    manager.add_request([3], "none", max_new_tokens=1)
    manager.add_request([4], "high", max_new_tokens=1, priority=-3)
    runner.go()
    order = [output.request_id for output in manager]
    assert order == ["high", "first", "none", "low"]
    assert loop_of(manager).scheduler.num_preemptions == 1


@pytest.mark.parametrize("kind", ["fifo", "prefill_first"])
def test_a_priority_is_refused_where_there_is_no_order_by_it(make_manager, kind):
    manager = make_manager(scheduler_type=kind)
    with pytest.raises(InvalidRequestError, match="priority is 2, which needs") as caught:
        manager.add_request([1], priority=2)
    assert caught.value.param == "priority"


@pytest.mark.parametrize("value", [1.5, "high", True, 2**31])
def test_a_priority_that_is_no_priority_is_refused(make_manager, value):
    manager = make_manager(scheduler_type="priority")
    with pytest.raises(InvalidRequestError) as caught:
        manager.add_request([1], priority=value)
    assert caught.value.param == "priority"
