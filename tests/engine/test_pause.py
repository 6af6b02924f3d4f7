"""The gate that holds the loop: counted, re-entrant, and never waited for in vain."""

import contextlib
import threading

import pytest

from engine.pause import PauseGate
from tests.engine.threads import Call, until


class TurningLoop(threading.Thread):
    """A loop that does nothing but turn, and counts how often."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gate = PauseGate(lambda: None)
        self.num_turns = 0
        self.must_end = False
        self.gate.set_ended(False)
        self.start()

    def run(self) -> None:
        while not self.must_end:
            self.gate.park()
            self.num_turns += 1
        self.gate.set_ended(True)

    def end(self) -> None:
        self.must_end = True
        self.join(5)
        assert not self.is_alive()


@pytest.fixture
def loop():
    loop = TurningLoop()
    yield loop
    loop.end()


def is_still(loop):
    before = loop.num_turns
    threading.Event().wait(0.02)
    return loop.num_turns == before


def test_the_loop_stands_still_while_the_gate_is_held(loop):
    with loop.gate.hold():
        assert is_still(loop)
    until(lambda: not is_still(loop))


def test_one_thread_may_hold_repeatedly(loop):
    with loop.gate.hold():
        with loop.gate.hold():
            assert loop.gate.held_from_here
        assert loop.gate.held_from_here
        assert is_still(loop)
    assert not loop.gate.held_from_here


def test_the_loop_goes_on_when_the_last_of_several_holders_leaves(loop):
    inside, leave = threading.Semaphore(0), [threading.Event() for _ in range(3)]

    def hold(event):
        with loop.gate.hold():
            inside.release()
            event.wait(5)

    holders = [Call(hold, event) for event in leave]
    for _ in holders:
        assert inside.acquire(timeout=5)
    for event in leave:
        assert is_still(loop)
        event.set()
    for holder in holders:
        holder.outcome()
    until(lambda: not is_still(loop))


def test_another_threads_hold_is_not_this_threads(loop):
    with loop.gate.hold():
        assert Call(lambda: loop.gate.held_from_here).outcome() is False


def test_an_exception_inside_lets_the_loop_go_on(loop):
    with contextlib.suppress(KeyError), loop.gate.hold():
        raise KeyError
    assert not loop.gate.held_from_here
    until(lambda: not is_still(loop))


def test_a_loop_that_never_ran_cannot_be_held():
    gate = PauseGate(lambda: None)
    with pytest.raises(RuntimeError, match="does not run"), gate.hold():
        pytest.fail("the gate was entered")
    assert not gate.held_from_here


def test_a_loop_that_ended_cannot_be_held():
    loop = TurningLoop()
    loop.end()
    with pytest.raises(RuntimeError, match="does not run"), loop.gate.hold():
        pytest.fail("the gate was entered")


def test_who_waits_for_a_loop_that_dies_is_told_why():
    gate = PauseGate(lambda: None)
    gate.set_ended(False)

    def hold():
        with gate.hold():
            pytest.fail("the gate was entered")

    waiter = Call(hold)
    until(lambda: len(gate._holds) == 1)
    cause = ValueError("the loop broke")
    gate.set_ended(True, cause)
    with pytest.raises(RuntimeError, match="ended while a pause waited") as caught:
        waiter.outcome()
    assert caught.value.__cause__ is cause
    assert len(gate._holds) == 0


def test_holding_wakes_a_loop_that_sleeps():
    woken = threading.Event()
    gate = PauseGate(woken.set)
    gate.set_ended(False)

    def sleep_then_park():
        assert woken.wait(5)
        gate.park()

    sleeper = Call(sleep_then_park)
    with gate.hold():
        assert sleeper.is_alive()
    sleeper.outcome()


def test_many_threads_holding_at_random_leave_the_loop_turning(loop):
    def hold_often():
        for _ in range(100):
            with loop.gate.hold():
                before = loop.num_turns
                assert loop.num_turns == before

    for holder in [Call(hold_often) for _ in range(4)]:
        holder.outcome()
    assert len(loop.gate._holds) == 0
    until(lambda: not is_still(loop))
