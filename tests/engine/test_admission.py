"""The bound on how many requests wait: at once for some callers, in turn for others."""

import threading
import time
from functools import partial

import pytest

from engine.admission import MAX_RETRY_SECONDS, AdmissionGate
from engine.errors import EngineStoppingError, QueueFullError
from tests.engine.threads import until


def test_a_full_queue_is_refused_at_once_with_its_length():
    gate = AdmissionGate(2)
    gate.acquire()
    gate.acquire()
    with pytest.raises(QueueFullError, match="2 requests are waiting") as caught:
        gate.acquire()
    assert caught.value.num_waiting == 2
    assert gate.num_waiting == 2
    gate.release(2)


def test_a_place_given_back_can_be_taken():
    gate = AdmissionGate(1)
    gate.acquire()
    gate.release()
    gate.acquire()
    gate.release()
    assert gate.num_waiting == 0


def test_several_places_are_taken_all_or_none():
    gate = AdmissionGate(4)
    gate.acquire(3)
    with pytest.raises(QueueFullError):
        gate.acquire(2)
    gate.acquire(1)
    threads = [threading.Thread(target=gate.acquire_in_turn, args=(2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.release(1)
    assert gate.num_waiting == 3
    gate.release(3)
    for thread in threads:
        thread.join()
    assert gate.num_waiting == 4
    gate.release(4)


def test_zero_means_no_limit_and_still_counts():
    gate = AdmissionGate(0)
    for _ in range(5000):
        gate.acquire()
    assert gate.num_waiting == 5000
    gate.release(5000)


def test_giving_back_more_than_was_taken_is_caught():
    gate = AdmissionGate(1)
    gate.release(0)
    with pytest.raises(AssertionError, match="more places"):
        gate.release()


def test_who_waits_in_turn_gets_the_next_place():
    gate = AdmissionGate(1)
    gate.acquire()
    waiter = threading.Thread(target=gate.acquire_in_turn)
    waiter.start()
    time.sleep(0.02)
    assert waiter.is_alive()
    gate.release()
    waiter.join(5)
    assert not waiter.is_alive()
    assert gate.num_waiting == 1
    gate.release()


def test_no_place_is_given_twice():
    gate = AdmissionGate(1)
    gate.acquire()
    waiters = [threading.Thread(target=gate.acquire_in_turn) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    for num_left in (3, 2, 1, 0):
        gate.release()
        until(partial(has_left, waiters, num_left))
        assert gate.num_waiting == 1
    gate.release()


def has_left(waiters, count):
    return sum(waiter.is_alive() for waiter in waiters) == count


def test_closing_turns_away_who_waits():
    gate = AdmissionGate(1)
    gate.acquire()
    errors = []

    def wait():
        try:
            gate.acquire_in_turn()
        except EngineStoppingError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    gate.close()
    waiter.join(5)
    assert len(errors) == 1
    assert gate.num_waiting == 1
    gate.release()


def test_a_reopened_gate_lets_waiters_in_again():
    gate = AdmissionGate(1)
    gate.close()
    gate.reopen()
    gate.acquire_in_turn()
    gate.release()


def test_the_time_to_try_again_follows_the_rate_of_the_queue(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("engine.admission.time.monotonic", lambda: now[0])
    gate = AdmissionGate(1)

    def retry_after():
        with pytest.raises(QueueFullError) as caught:
            gate.acquire()
        return caught.value.retry_after_seconds

    gate.acquire()
    assert retry_after() == 1.0
    for _ in range(4):
        gate.release()
        gate.acquire()
        now[0] += 8.0
    assert retry_after() == pytest.approx(8.0)
    now[0] += 10_000.0
    assert retry_after() == MAX_RETRY_SECONDS
    gate.release()
