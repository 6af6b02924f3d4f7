"""Requests that run out of time, waiting or running, and what `generate` calls max_time."""

import time

import pytest
from transformers import GenerationConfig

from engine import (
    DeadlineExceededError,
    FinishReason,
    InvalidRequestError,
    QueueTimeoutError,
    RequestStatus,
)
from engine.deadlines import SPARE_ENTRIES, Deadlines
from tests.engine.builders import make_request
from tests.engine.threads import until


def with_deadline(name, seconds, created=100.0):
    request = make_request(name)
    request.deadline_seconds = seconds
    request.created_time = created
    return request


def watched(*requests):
    deadlines = Deadlines()
    for request in requests:
        deadlines.add(request)
    return deadlines, {request.request_id: request for request in requests}


def expired(deadlines, now, live):
    return [request for request, _ in deadlines.pop_expired(now, live)]


def test_the_nearest_deadlines_come_first():
    deadlines, live = watched(with_deadline("a", 9), with_deadline("b", 3), make_request("c"))
    assert not deadlines.is_due(102.0)
    assert deadlines.is_due(103.0)
    assert expired(deadlines, 103.0, live) == [live["b"]]
    assert expired(deadlines, 200.0, live) == [live["a"]]
    assert not deadlines.is_due(1e9)


def test_what_has_ended_does_not_expire():
    deadlines, _ = watched(with_deadline("a", 9))
    assert expired(deadlines, 200.0, {}) == []


def test_the_next_request_of_a_name_has_its_own_deadline():
    deadlines, _ = watched(with_deadline("a", 9))
    later = with_deadline("a", 50)
    deadlines.add(later)
    assert expired(deadlines, 120.0, {"a": later}) == []
    assert expired(deadlines, 150.0, {"a": later}) == [later]


def test_entries_of_ended_requests_do_not_pile_up():
    requests = [with_deadline(str(n), n + 1) for n in range(2 * SPARE_ENTRIES)]
    deadlines, _ = watched(*requests)
    last = requests[-1]
    deadlines.sweep({last.request_id: last})
    assert len(deadlines) == 1
    assert expired(deadlines, 1e9, {last.request_id: last}) == [last]


def test_a_running_request_fails_with_its_tokens(controlled):
    manager, runner = controlled()
    runner.allow(3)
    manager.start()
    manager.add_request([1, 2], "a", max_new_tokens=400, deadline_seconds=0.3)
    manager.add_request([1, 2], "b", max_new_tokens=8)
    runner.wait_for_forward(4)
    time.sleep(0.35)
    runner.go()
    late, other = manager.get_result("a"), manager.get_result("b")
    manager.stop()
    assert (late.status, late.finish_reason) == (RequestStatus.FAILED, FinishReason.ERROR)
    assert isinstance(late.exception, DeadlineExceededError)
    assert late.exception.deadline_seconds == 0.3
    assert 3 <= len(late.generated_tokens) < 400
    assert other.finish_reason is FinishReason.LENGTH


def test_a_waiting_request_fails_too_and_gives_its_place_back(controlled):
    manager, runner = controlled(max_requests_per_batch=1, max_queue_size=1)
    runner.allow(2)
    manager.start()
    manager.add_request([1], "a", max_new_tokens=40)
    runner.wait_for_forward(3)
    manager.add_request([2], "b", max_new_tokens=4, deadline_seconds=0.01)
    time.sleep(0.02)
    runner.go()
    late = manager.get_result("b")
    assert isinstance(late.exception, DeadlineExceededError)
    assert late.generated_tokens == []
    until(lambda: manager.statistics().num_waiting == 0)
    manager.add_request([3], "c", max_new_tokens=1)
    manager.stop()


def test_what_a_late_request_computed_is_still_a_prefix(controlled):
    manager, runner = controlled(page_size=4)
    runner.allow(1)
    manager.start()
    manager.add_request(list(range(20)), "a", max_new_tokens=100, deadline_seconds=0.05)
    runner.wait_for_forward(2)
    time.sleep(0.06)
    runner.go()
    assert isinstance(manager.get_result("a").exception, DeadlineExceededError)
    manager.add_request(list(range(20)), "b", max_new_tokens=1)
    assert manager.get_result("b").num_cached_tokens == 19
    manager.stop()


@pytest.mark.parametrize("value", ["x", -1.0, float("nan"), float("inf")])
def test_a_bad_deadline_is_refused(make_manager, value):
    with pytest.raises(InvalidRequestError, match="deadline_seconds") as caught:
        make_manager().add_request([1], deadline_seconds=value)
    assert caught.value.param == "deadline_seconds"


@pytest.mark.parametrize("in_config", [True, False])
def test_max_time_ends_an_answer_after_a_token_as_in_generate(tiny_model, in_config):
    options = {} if in_config else {"max_time": 0.0}
    config = GenerationConfig(eos_token_id=None, max_time=0.0 if in_config else None)
    outputs = tiny_model.generate_batch([[1, 2]], config, max_new_tokens=50, **options)
    output = outputs["req_0"]
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.generated_tokens) == 1


def test_a_request_that_waits_too_long_is_given_up_and_one_that_started_is_not(controlled):
    manager, runner = controlled(max_requests_per_batch=1, max_queue_size=2)
    runner.hold()
    manager.start()
    manager.add_request([1, 2], "runs", max_new_tokens=2, queue_seconds=0.3)
    runner.wait_for_forward()
    manager.add_request([1, 2], "waits", max_new_tokens=2, queue_seconds=0.1)
    time.sleep(0.35)
    runner.go()
    waited, ran = manager.get_result("waits"), manager.get_result("runs")
    manager.stop()
    assert isinstance(waited.exception, QueueTimeoutError)
    assert waited.exception.queue_seconds == 0.1
    assert waited.generated_tokens == []
    assert ran.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("value", [-1, float("nan"), "soon", True])
def test_a_wait_is_a_number_of_seconds(controlled, value):
    manager, _ = controlled()
    with pytest.raises(InvalidRequestError, match="queue_seconds"):
        manager.add_request([1, 2], queue_seconds=value)


@pytest.mark.parametrize("value", [3, b"x", "x" * 129])
def test_a_salt_is_a_short_text(controlled, value):
    manager, _ = controlled()
    with pytest.raises(InvalidRequestError, match="salt"):
        manager.add_request([1, 2], salt=value)


def test_requests_with_different_salts_share_no_blocks(controlled):
    manager, _ = controlled(page_size=4)
    manager.start()
    prompt = list(range(1, 13))

    def cached(salt):
        name = manager.add_request(prompt, max_new_tokens=1, salt=salt)
        return manager.get_result(name).num_cached_tokens

    assert [cached("a"), cached("a") > 0, cached("b"), cached("b") > 0] == [0, True, 0, True]
    assert cached(None) == 0
    manager.stop()
