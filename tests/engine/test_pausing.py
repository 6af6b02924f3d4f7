"""Pausing a manager: nothing is computed meanwhile, nothing is lost."""

import threading
import time

import pytest
import torch

from tests.engine.threads import Call, until


@pytest.fixture
def busy(controlled):
    """A manager in the middle of a long answer, and its runner."""
    manager, runner = controlled()
    manager.start()
    manager.add_request([1, 2], "a", max_new_tokens=400, streaming=True)
    runner.wait_for_forward(3)
    return manager, runner


def test_no_step_runs_while_the_engine_is_paused(busy):
    manager, runner = busy
    with manager.pause():
        before = runner.num_forwards
        time.sleep(0.05)
        assert runner.num_forwards == before
    until(lambda: runner.num_forwards > before)
    manager.cancel_request("a")


def test_a_pause_changes_no_token(busy):
    manager, _ = busy
    for _ in range(10):
        with manager.pause():
            time.sleep(0.001)
    *_, paused = manager.request_id_iter("a")
    manager.add_request([1, 2], "b", max_new_tokens=400)
    assert manager.get_result("b").generated_tokens == paused.generated_tokens


def test_several_threads_hold_at_once_and_the_last_one_lets_go(busy):
    manager, runner = busy
    inside, leave = threading.Semaphore(0), [threading.Event() for _ in range(3)]

    def hold(event):
        with manager.pause(), manager.pause():
            inside.release()
            event.wait(10)

    holders = [Call(hold, event) for event in leave]
    for _ in holders:
        assert inside.acquire(timeout=10)
    before = runner.num_forwards
    for event in leave[:2]:
        event.set()
    for holder in holders[:2]:
        holder.outcome()
    time.sleep(0.02)
    assert runner.num_forwards == before
    leave[2].set()
    until(lambda: runner.num_forwards > before)
    manager.cancel_request("a")


def test_requests_are_accepted_during_a_pause(busy):
    manager, _ = busy
    with manager.pause():
        manager.add_request([5], "b", max_new_tokens=2)
        manager.cancel_request("a")
        assert manager.get_result("b", timeout=0.02) is None
    assert manager.get_result("b").is_finished()


def test_an_idle_engine_can_be_paused(make_manager):
    manager = make_manager()
    manager.start()
    with manager.pause():
        manager.add_request([5], "b", max_new_tokens=2)
        assert manager.get_result("b", timeout=0.02) is None
    assert manager.get_result("b").is_finished()


def test_the_model_can_be_used_during_a_pause(busy, tiny_model):
    manager, _ = busy
    with manager.pause(), torch.inference_mode():
        logits = tiny_model.hf_model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 199)
    manager.cancel_request("a")


@pytest.mark.parametrize(
    "options",
    [{}, {"block": False}, {"timeout": 0.01}, {"hard_stop": True}, {"keep_for_next_session": True}],
    ids=str,
)
def test_stopping_inside_ones_own_pause_raises_and_changes_nothing(busy, options, tiny_model):
    manager, _ = busy
    with manager.pause(), pytest.raises(RuntimeError, match="inside this thread's own pause"):
        manager.stop(**options)
    assert tiny_model.cached_manager is None
    manager.add_request([5], "b", max_new_tokens=1)
    assert manager.get_result("b").is_finished()
    manager.cancel_request("a")


def test_destroying_inside_ones_own_pause_raises_and_changes_nothing(busy):
    manager, _ = busy
    with manager.pause(), pytest.raises(RuntimeError, match="inside this thread's own pause"):
        manager.destroy()
    manager.add_request([5], "b", max_new_tokens=1)
    assert manager.get_result("b").is_finished()
    manager.cancel_request("a")


def test_another_threads_stop_waits_for_the_holders(busy):
    manager, _ = busy
    with manager.pause():
        stop = Call(lambda: manager.stop(hard_stop=True))
        stop.join(0.03)
        assert stop.is_alive()
        assert manager.is_running()
    stop.outcome()
    assert not manager.is_running()


@pytest.mark.parametrize("state", ["never started", "stopped", "destroyed"])
def test_what_does_not_run_cannot_be_paused(make_manager, state):
    manager = make_manager()
    if state != "never started":
        manager.start()
        manager.stop()
    if state == "destroyed":
        manager.destroy()
    with pytest.raises(RuntimeError, match="does not run"), manager.pause():
        pytest.fail("the pause was entered")
