"""How requests end in the scheduler: by a token, a length, an error or their caller."""

import pytest

from engine.batch import SampledTokens
from engine.errors import EngineStoppingError, RequestFailedError
from engine.requests import FinishReason, RequestStatus, TokenLogprobs
from tests.engine.builders import make_request, make_scheduler
from tests.engine.scheduling import distinct, full_of_three, prompt, share, started, step
from tests.engine.soundness import check_scheduler


@pytest.mark.parametrize(
    ("params", "reason", "stop_reason"),
    [
        ({"eos_token_ids": frozenset({7})}, FinishReason.STOP, None),
        ({"stop_token_ids": frozenset({7})}, FinishReason.STOP, 7),
        ({"max_new_tokens": 1}, FinishReason.LENGTH, None),
        ({"max_new_tokens": 1, "eos_token_ids": frozenset({7})}, FinishReason.STOP, None),
    ],
    ids=["eos", "stop token", "length", "eos as the last token"],
)
def test_a_request_ends_with_its_reason(params, reason, stop_reason):
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt(3), **params))
    _, (output,) = step(scheduler)
    assert (output.finish_reason, output.stop_reason) == (reason, stop_reason)
    assert output.generated_tokens == [7]
    assert output.status is RequestStatus.FINISHED
    assert scheduler.blocks.pool.num_free == 16


def test_only_streaming_requests_deliver_before_they_end():
    scheduler = make_scheduler()
    quiet, streaming = distinct("a", 3, max_new_tokens=2), distinct("b", 3, max_new_tokens=2)
    streaming.streaming = True
    scheduler.add(quiet)
    scheduler.add(streaming)
    delivered = [[output.request_id for output in step(scheduler)[1]] for _ in range(2)]
    assert delivered == [["b"], ["a", "b"]]


def test_logprobs_stay_with_their_tokens():
    scheduler = make_scheduler()
    first, second = distinct("a", 3, max_new_tokens=1), distinct("b", 3, max_new_tokens=1)
    scheduler.add(first)
    scheduler.add(second)
    entry = TokenLogprobs(9, -0.5, ())
    sampled = SampledTokens([8, 9], [-1.0, -2.0], [None, entry], {})
    one, other = scheduler.update(scheduler.schedule_batch(), sampled)
    assert (one.generated_tokens, one.logprobs, one.token_logprobs) == ([8], [-1.0], [])
    assert (other.generated_tokens, other.logprobs, other.token_logprobs) == ([9], [-2.0], [entry])


def test_the_error_of_a_row_ends_that_request_only():
    scheduler = make_scheduler()
    requests = [distinct(name, 3, max_new_tokens=1) for name in "abc"]
    for request in requests:
        scheduler.add(request)
    _, outputs = step(scheduler, errors={1: ValueError("no token left")})
    assert [output.status for output in outputs] == [
        RequestStatus.FINISHED,
        RequestStatus.FAILED,
        RequestStatus.FINISHED,
    ]
    failed = outputs[1]
    assert isinstance(failed.exception, RequestFailedError)
    assert isinstance(failed.exception.__cause__, ValueError)
    assert failed.error == "the request failed: no token left"
    assert failed.generated_tokens == []


def test_an_engine_error_is_delivered_as_it_is():
    scheduler = make_scheduler()
    (request,) = started(scheduler, distinct("a", 3))
    error = EngineStoppingError("stopped")
    assert scheduler.fail(request, error).exception is error


@pytest.mark.parametrize("end", ["cancel", "fail"])
@pytest.mark.parametrize("where", ["waiting", "running", "preempted"])
def test_a_request_can_be_ended_anywhere(where, end):
    scheduler, (_, request, _) = full_of_three()
    if where == "waiting":
        request = distinct("d", 2)
        scheduler.add(request)
    if where == "preempted":
        step(scheduler)
        assert request in scheduler.waiting
    held = len(request.block_ids)
    free = scheduler.blocks.pool.num_free
    output = scheduler.cancel(request) if end == "cancel" else scheduler.fail(request, ValueError())
    assert output.is_finished()
    assert output.finish_reason is FinishReason[{"cancel": "CANCELLED", "fail": "ERROR"}[end]]
    assert request not in scheduler.waiting
    assert request.request_id not in scheduler.running
    assert scheduler.blocks.pool.num_free == free + held
    check_scheduler(scheduler)


def test_cancelling_everything_after_a_preemption_lets_new_requests_in():
    """The reference takes no new request again until one that was running has finished."""
    scheduler, requests = full_of_three()
    step(scheduler)
    for request in requests:
        scheduler.cancel(request)
    scheduler.add(distinct("d", 3))
    batch, _ = step(scheduler)
    assert share(batch) == {"d": 3}


def test_the_answer_of_a_cancelled_request_is_found_by_the_next():
    scheduler = make_scheduler()
    (request,) = started(scheduler, make_request("a", prompt(9)))
    scheduler.cancel(request)
    scheduler.add(make_request("b", prompt(9)))
    assert share(step(scheduler)[0]) == {"b": 1}


def test_nothing_of_a_failed_request_is_found_by_the_next():
    scheduler = make_scheduler()
    (request,) = started(scheduler, make_request("a", prompt(9)))
    scheduler.fail(request, ValueError())
    scheduler.add(make_request("b", prompt(9)))
    assert share(step(scheduler)[0]) == {"b": 9}


def test_a_failed_prompt_computed_beside_its_twin_leaves_the_twins_blocks_findable():
    scheduler = make_scheduler()
    first, _ = started(scheduler, make_request("a", prompt(9)), make_request("b", prompt(9)))
    scheduler.fail(first, ValueError())
    check_scheduler(scheduler)


def test_a_request_ends_once():
    scheduler = make_scheduler()
    (request,) = started(scheduler, distinct("a", 3))
    scheduler.cancel(request)
    with pytest.raises(AssertionError, match="ended twice"):
        scheduler.cancel(request)
