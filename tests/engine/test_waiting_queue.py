"""The queue by rank: its order, whatever is added, removed and promoted in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.requests import RequestState
from engine.waiting_queue import MIN_REBUILT, WaitingQueue, rank
from tests.engine.builders import make_request


def waiting(arrival, priority=0):
    request = make_request(f"r{arrival}")
    request.arrival, request.priority = arrival, priority
    return request


def test_lower_priorities_come_first_and_within_one_who_came_first():
    queue = WaitingQueue()
    for arrival, priority in enumerate([5, 0, 5, -1, 0]):
        queue.push(waiting(arrival, priority))
    assert [request.arrival for request in queue] == [3, 1, 4, 0, 2]
    assert queue.first().arrival == 3
    assert queue.longest_waiting().arrival == 0


def test_a_request_that_comes_back_goes_before_those_that_arrived_after_it():
    queue = WaitingQueue()
    first, second, third = (waiting(arrival) for arrival in range(3))
    for request in (first, second, third):
        queue.push(request)
    queue.remove(second)
    queue.push(second)
    assert list(queue) == [first, second, third]


def test_a_promoted_request_goes_before_all_others():
    queue = WaitingQueue()
    low, high = waiting(0, priority=9), waiting(1, priority=-9)
    queue.push(low)
    queue.push(high)
    queue.promote(low)
    assert list(queue) == [low, high]
    assert queue.first() is low


def test_another_request_of_the_same_name_is_not_in_the_queue():
    queue = WaitingQueue()
    queue.push(waiting(0))
    assert waiting(0) not in queue


def test_removed_requests_do_not_pile_up():
    """As when ten thousand clients hang up behind a head that does not move."""
    queue = WaitingQueue()
    queue.push(waiting(0))
    for arrival in range(1, 10_000):
        request = waiting(arrival)
        queue.push(request)
        queue.remove(request)
    assert len(queue) == 1
    assert max(len(queue._by_rank), len(queue._by_arrival)) <= MIN_REBUILT + 1


OPERATIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=200)


@pytest.mark.parametrize("rebuilt", [0, MIN_REBUILT])
def test_the_queue_is_always_as_if_it_were_sorted(rebuilt, monkeypatch):
    monkeypatch.setattr("engine.waiting_queue.MIN_REBUILT", rebuilt)

    @given(OPERATIONS)
    def check(operations):
        queue = WaitingQueue()
        model: list[RequestState] = []
        for arrival, (operation, number) in enumerate(operations):
            if operation < 2 or not model:
                request = waiting(arrival, priority=number % 3)
                queue.push(request)
                model.append(request)
            elif operation == 2:
                queue.remove(model.pop(number % len(model)))
            else:
                queue.promote(model[number % len(model)])
            assert len(queue) == len(model)
            if model:
                assert queue.first() is min(model, key=rank)
                assert queue.longest_waiting() is min(model, key=lambda request: request.arrival)
        assert list(queue) == sorted(model, key=rank)

    check()
