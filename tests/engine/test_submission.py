"""Requests on their way in: ids, defaults, refusals at once, and the bound on the queue."""

import threading

import pytest

from engine import (
    DuplicateRequestError,
    EngineStoppingError,
    FinishReason,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
)
from tests.engine.control import loop_of
from tests.engine.threads import Call, until


def test_ids_are_made_in_the_order_of_submission(make_manager):
    manager = make_manager()
    assert manager.add_request([1]) == "req_0"
    assert manager.add_requests([[1], [2], [3]]) == ["req_1", "req_2", "req_3"]


def test_a_callers_own_id_is_kept(make_manager):
    assert make_manager().add_request([1], "mine") == "mine"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [199]}, "input_ids"),
        ({"input_ids": [1], "request_id": ""}, "request_id"),
        ({"input_ids": [1], "max_new_tokens": 0}, "max_new_tokens"),
        ({"input_ids": [1], "temperature": -1.0}, "temperature"),
        ({"input_ids": [1], "top_p": float("nan")}, "top_p"),
        ({"input_ids": [1], "unheard_of": 1}, "unheard_of"),
        ({"input_ids": [1], "eos_token_id": 199}, "eos_token_id"),
        ({"input_ids": [1], "holds_place": 0}, "holds_place"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_argument_is_refused_by_name_and_leaves_nothing(make_manager, arguments, param):
    manager = make_manager()
    with pytest.raises(InvalidRequestError) as caught:
        manager.add_request(**arguments)
    assert caught.value.param == param
    assert manager.statistics().num_live == 0


def test_a_prompt_that_fills_the_context_is_refused(make_manager):
    manager = make_manager(num_blocks=3, page_size=16)
    with pytest.raises(PromptTooLongError):
        manager.add_request([1] * 48)
    with pytest.raises(PromptTooLongError):
        manager.add_request([1] * 40, max_new_tokens=9)
    assert manager.statistics().num_live == 0


def test_the_longest_request_that_fits_is_finished(make_manager):
    manager = make_manager(num_blocks=3, page_size=16)
    manager.start()
    manager.add_request([1] * 47, "prompt")
    manager.add_request([1], "answer")
    outputs = {output.request_id: output for output in manager}
    assert len(outputs["prompt"].generated_tokens) == 1
    assert len(outputs["answer"].generated_tokens) == 47


def test_an_id_in_use_is_refused_and_free_again_after_the_end(make_manager):
    manager = make_manager()
    manager.add_request([1], "a", max_new_tokens=1)
    with pytest.raises(DuplicateRequestError):
        manager.add_request([2], "a")
    assert manager._channels.gate.num_waiting == 1
    manager.start()
    for _ in range(50):
        assert manager.get_result("a").is_finished()
        manager.add_request([1], "a", max_new_tokens=1)
    assert manager.get_result("a").is_finished()


def test_a_full_queue_refuses_at_once_until_a_request_is_scheduled(controlled):
    manager, runner = controlled(max_queue_size=2, max_requests_per_batch=1)
    runner.hold()
    manager.add_request([1], "a", max_new_tokens=1)
    manager.add_request([2], "b", max_new_tokens=1)
    with pytest.raises(QueueFullError) as caught:
        manager.add_request([3], "c")
    assert caught.value.num_waiting == 2
    assert 1.0 <= caught.value.retry_after_seconds <= 60.0
    manager.start()
    runner.wait_for_forward()
    manager.add_request([3], "c", max_new_tokens=1)  # a runs, so b and c wait
    with pytest.raises(QueueFullError):
        manager.add_request([4], "d")
    runner.go()
    assert {output.request_id for output in manager} == {"a", "b", "c"}


def test_one_that_holds_no_place_is_taken_by_a_full_queue_and_gives_none_back(controlled):
    manager, runner = controlled(max_queue_size=2, max_requests_per_batch=1)
    gate = manager._channels.gate
    runner.hold()
    manager.start()
    manager.add_request([1], "runs", max_new_tokens=2)
    runner.wait_for_forward()
    for name in ("a", "b"):
        manager.add_request([2], name, max_new_tokens=1)
        manager.add_request([2], f"free {name}", max_new_tokens=1, holds_place=False)
    with pytest.raises(QueueFullError):
        manager.add_request([3])
    assert manager.statistics().num_queued == 2
    manager.cancel_request("free a")
    runner.allow(1)
    assert manager.get_result("free a").finish_reason is FinishReason.CANCELLED
    assert gate.num_waiting == 2
    runner.go()
    assert {output.request_id for output in manager} == {"runs", "a", "b", "free b"}
    assert (gate.num_waiting, loop_of(manager)._num_places) == (0, 0)


@pytest.mark.parametrize("num_failures", [1, 99])
def test_places_are_right_when_a_step_breaks_under_those_that_hold_none(
    controlled, monkeypatch, num_failures
):
    manager, runner = controlled(max_requests_per_batch=1)
    runner.hold()
    manager.add_request([1], "free", max_new_tokens=1, holds_place=False)
    manager.add_request([2], "a", max_new_tokens=1)
    kind, failures = type(loop_of(manager).scheduler), iter(range(num_failures))
    schedule = kind.schedule_batch

    def broken(scheduler):
        batch = schedule(scheduler)
        if next(failures, None) is not None:
            raise MemoryError("no memory left for the test")
        return batch

    monkeypatch.setattr(kind, "schedule_batch", broken)
    manager.start()
    runner.go()
    assert {output.request_id for output in manager} == {"free", "a"}
    assert (manager._channels.gate.num_waiting, loop_of(manager)._num_places) == (0, 0)


def test_cancelling_a_waiting_request_returns_its_place(controlled):
    manager, runner = controlled(max_queue_size=1, max_requests_per_batch=1)
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=1)
    runner.wait_for_forward()
    manager.add_request([2], "b")
    manager.cancel_request("b")
    runner.go()
    assert manager.get_result("b").is_finished()
    manager.add_request([3], "c", max_new_tokens=1)


def test_add_requests_waits_its_turn(make_manager):
    manager = make_manager(max_queue_size=2, max_requests_per_batch=2)
    manager.start()
    ids = manager.add_requests([[n] for n in range(20)], max_new_tokens=3)
    assert {output.request_id for output in manager} == set(ids)


def test_add_requests_is_turned_away_when_the_engine_stops(controlled):
    manager, runner = controlled(max_queue_size=1, max_requests_per_batch=1)
    runner.hold()
    manager.start()
    call = Call(lambda: manager.add_requests([[n] for n in range(9)], max_new_tokens=1))
    runner.wait_for_forward()
    until(lambda: manager._channels.gate.num_waiting == 1)
    manager.stop(block=False)
    runner.go()
    with pytest.raises(EngineStoppingError):
        call.outcome()


def test_add_requests_that_do_not_all_fit_leave_none_behind(make_manager):
    """Their ids are lost with the exception, so nobody could take their results."""
    manager = make_manager(max_queue_size=2)
    with pytest.raises(QueueFullError):
        manager.add_requests([[1], [2], [3]])
    manager.start()
    assert {output.finish_reason for output in manager} == {FinishReason.CANCELLED}
    assert loop_of(manager).num_steps == 0


def test_add_requests_checks_all_before_it_submits_the_first(make_manager):
    manager = make_manager()
    with pytest.raises(InvalidRequestError):
        manager.add_requests([[1], [2], []])
    assert manager.statistics().num_live == 0


def test_changing_the_prompt_afterwards_changes_nothing(make_manager):
    manager = make_manager()
    prompt = [1, 2, 3]
    manager.add_request(prompt, "a", max_new_tokens=4)
    prompt[:] = [50, 60]
    manager.add_request([1, 2, 3], "b", max_new_tokens=4)
    manager.start()
    outputs = {output.request_id: output for output in manager}
    assert outputs["a"].prompt_ids == [1, 2, 3]
    assert outputs["a"].generated_tokens == outputs["b"].generated_tokens


def test_a_request_is_either_refused_or_ended_when_a_stop_comes_between(make_manager):
    """A request accepted an instant before the stop must not be lost."""
    manager = make_manager()
    for _ in range(15):
        manager.start()
        begin = threading.Barrier(2)
        call = Call(submit_until_refused, manager, begin)
        begin.wait()
        manager.stop()
        accepted = call.outcome()
        ended = set()
        while (output := manager.get_result(timeout=0)) is not None:
            assert output.is_finished()
            ended.add(output.request_id)
        assert ended == set(accepted)


def submit_until_refused(manager, begin):
    begin.wait()
    accepted = []
    while True:
        try:
            accepted.append(manager.add_request([1, 2], max_new_tokens=1))
        except EngineStoppingError:
            return accepted
