"""Every accepted request gets exactly one terminal output, however it ends.

Each scenario ends with the engine stopped; what its callers could ever have received is then in the
result store.
"""

from collections import Counter

import pytest

from engine import (
    EngineDeadError,
    EngineStoppingError,
    FinishReason,
    RequestFailedError,
    RequestStatus,
)
from tests.engine.control import loop_of
from tests.engine.threads import until

POISON = 198


def outputs_of(manager):
    """Return all outputs of a stopped manager by request; each ends once, and last."""
    assert not manager.is_running()
    by_request: dict[str, list] = {}
    while (output := manager.get_result(timeout=0)) is not None:
        by_request.setdefault(output.request_id, []).append(output)
    for outputs in by_request.values():
        assert [output.is_finished() for output in outputs[:-1]] == [False] * (len(outputs) - 1)
        assert outputs[-1].is_finished()
    return by_request


def terminals_of(manager):
    return {name: outputs[-1] for name, outputs in outputs_of(manager).items()}


@pytest.mark.parametrize("streaming", [False, True])
def test_finished(make_manager, streaming):
    manager = make_manager()
    manager.start()
    ids = manager.add_requests(
        [[n, n + 1] for n in range(12)], max_new_tokens=5, streaming=streaming
    )
    manager.stop()
    outputs = outputs_of(manager)
    assert outputs.keys() == set(ids)
    assert {len(found) for found in outputs.values()} == {5 if streaming else 1}


def test_cancelled_while_waiting(controlled):
    manager, runner = controlled(max_requests_per_batch=1)
    runner.hold()
    manager.start()
    manager.add_request([1], "first", max_new_tokens=3)
    runner.wait_for_forward()
    manager.add_request([2], "second", max_new_tokens=3)
    manager.cancel_request("second")
    runner.go()
    manager.stop()
    terminals = terminals_of(manager)
    assert terminals["first"].finish_reason is FinishReason.LENGTH
    assert terminals["second"].status is RequestStatus.CANCELLED
    assert terminals["second"].finish_reason is FinishReason.CANCELLED
    assert terminals["second"].exception is None
    assert terminals["second"].generated_tokens == []


def test_cancelled_before_it_was_ever_seen(make_manager):
    manager = make_manager()
    manager.add_request([1], "a", max_new_tokens=3)
    manager.cancel_request("a")
    manager.cancel_request("a")
    manager.start()
    manager.stop()
    assert terminals_of(manager)["a"].status is RequestStatus.CANCELLED


def test_cancelled_while_running(controlled):
    manager, runner = controlled()
    runner.allow(3)
    manager.start()
    manager.add_request([1], "a", max_new_tokens=400)
    runner.wait_for_forward(4)
    manager.cancel_request("a")
    runner.go()
    output = manager.get_result("a")
    assert output.status is RequestStatus.CANCELLED
    # The step that runs when the cancellation arrives still yields its token.
    assert len(output.generated_tokens) == 4
    manager.stop()
    assert outputs_of(manager) == {}


def test_cancelled_in_the_step_that_ends_it(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=1)
    runner.wait_for_forward()
    manager.cancel_request("a")
    runner.go()
    manager.stop()
    assert terminals_of(manager)["a"].finish_reason is FinishReason.LENGTH


def test_cancelling_after_the_end_or_of_an_unknown_id_does_nothing(make_manager):
    manager = make_manager()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=1)
    assert manager.get_result("a").status is RequestStatus.FINISHED
    manager.cancel_request("a")
    manager.cancel_request("unknown")
    manager.stop()
    assert outputs_of(manager) == {}


def test_failed_alone(controlled):
    manager, runner = controlled()
    runner.poison = POISON
    manager.start()
    manager.add_request([1, POISON], "bad", max_new_tokens=3)
    manager.add_request([1, 2], "good", max_new_tokens=3)
    manager.stop()
    terminals = terminals_of(manager)
    assert isinstance(terminals["bad"].exception, RequestFailedError)
    assert isinstance(terminals["bad"].exception.__cause__, ValueError)
    assert terminals["bad"].finish_reason is FinishReason.ERROR
    assert terminals["good"].status is RequestStatus.FINISHED


def test_drained(controlled):
    manager, runner = controlled(max_requests_per_batch=2)
    runner.hold()
    manager.start()
    ids = [manager.add_request([n], max_new_tokens=4) for n in range(6)]
    runner.wait_for_forward()
    manager.stop(block=False)
    with pytest.raises(EngineStoppingError):
        manager.add_request([9])
    runner.go()
    manager.stop()
    terminals = terminals_of(manager)
    assert terminals.keys() == set(ids)
    assert {t.finish_reason for t in terminals.values()} == {FinishReason.LENGTH}


def test_stopped_hard(controlled):
    manager, runner = controlled(max_requests_per_batch=2)
    runner.allow(2)
    ids = [manager.add_request([n], max_new_tokens=400) for n in range(6)]
    manager.start()
    runner.wait_for_forward(3)
    manager.stop(block=False, hard_stop=True)
    runner.go()
    manager.stop()
    terminals = terminals_of(manager)
    assert terminals.keys() == set(ids)
    assert {type(t.exception) for t in terminals.values()} == {EngineStoppingError}
    assert "stopped before this request completed" in str(terminals[ids[0]].error)
    # What had been generated is kept; the waiting ones had nothing.
    assert [len(terminals[name].generated_tokens) for name in ids] == [3, 3, 0, 0, 0, 0]


def test_stopped_hard_while_draining(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=400)
    runner.wait_for_forward()
    manager.stop(block=False)
    manager.stop(block=False, hard_stop=True)
    runner.go()
    manager.stop()
    assert isinstance(terminals_of(manager)["a"].exception, EngineStoppingError)


@pytest.mark.parametrize("hard_stop", [False, True])
def test_stopped_before_it_was_started(make_manager, hard_stop):
    manager = make_manager()
    ids = manager.add_requests([[1], [2]])
    manager.stop(hard_stop=hard_stop)
    terminals = terminals_of(manager)
    assert terminals.keys() == set(ids)
    assert {type(t.exception) for t in terminals.values()} == {EngineStoppingError}


def test_destroyed_before_it_was_started(make_manager):
    manager = make_manager()
    manager.add_request([1], "a")
    manager.destroy()
    manager.destroy()
    assert isinstance(terminals_of(manager)["a"].exception, EngineStoppingError)


def test_destroyed_while_running_finishes_what_was_accepted(make_manager):
    manager = make_manager()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=30)
    manager.destroy()
    assert terminals_of(manager)["a"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("place", ["schedule_batch", "update"])
def test_died(controlled, place):
    manager, runner = controlled(max_requests_per_batch=2)
    runner.hold()
    manager.start()
    ids = [manager.add_request([n], max_new_tokens=400) for n in range(5)]
    runner.wait_for_forward()
    cause = KeyError("our own mistake")

    def broken(*args):
        raise cause

    loop_of(manager).restarts.max_restarts = 0
    setattr(loop_of(manager).scheduler, place, broken)
    runner.go()
    until(lambda: not manager.is_running())
    terminals = terminals_of(manager)
    assert terminals.keys() == set(ids)
    for terminal in terminals.values():
        assert isinstance(terminal.exception, EngineDeadError)
        assert terminal.exception.__cause__ is cause
    assert manager.fatal_error is cause


def test_preempted_often_and_then_finished(make_manager):
    manager = make_manager(num_blocks=4, page_size=16, safety_margin=0.0)
    ids = manager.add_requests([[n, n] for n in range(8)], max_new_tokens=40)
    manager.start()
    until(lambda: manager.statistics().num_preemptions > 0)
    manager.stop()
    outputs = outputs_of(manager)
    assert Counter({name: len(found) for name, found in outputs.items()}) == Counter(ids)
    assert sum(found[-1].num_preemptions for found in outputs.values()) > 0
