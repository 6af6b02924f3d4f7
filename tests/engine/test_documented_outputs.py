"""What the documentation says of outputs: statuses, fields, events and errors, a test for each."""

import time

import pytest

from engine import GenerationOutput, RequestFailedError, RequestStatus
from engine.faults import FaultPoint


@pytest.fixture
def manager(make_manager):
    manager = make_manager(return_logprobs=True)
    manager.start()
    yield manager
    manager.stop(hard_stop=True)


def test_request_status():
    """The documented values, and one of our own above FINISHED."""
    values = {status.name: status.value for status in RequestStatus}
    assert values == {
        "PENDING": 0,
        "PREFILLING": 1,
        "DECODING": 2,
        "FINISHED": 3,
        "FAILED": 4,
        "CANCELLED": 5,
    }


def test_generation_output(manager):
    """The documented fields, their types and what they are before and after the end."""
    before = time.perf_counter()
    manager.add_request([1, 2], "a", max_new_tokens=3, streaming=True, record_timestamps=True)
    first, _, last = manager.request_id_iter("a")
    assert isinstance(first, GenerationOutput)
    assert (first.request_id, first.prompt_ids) == ("a", [1, 2])
    assert (len(first.generated_tokens), len(last.generated_tokens)) == (1, 3)
    assert len(last.logprobs) == 3
    assert all(logprob <= 0 for logprob in last.logprobs)
    assert (first.status, last.status) == (RequestStatus.DECODING, RequestStatus.FINISHED)
    assert (first.is_finished(), last.is_finished()) == (False, True)
    assert first.error is last.error is None
    assert before <= first.created_time <= last.lifespan[0] <= last.lifespan[1]
    assert first.lifespan[1] == -1
    assert len(last.timestamps) == 3
    assert last.timestamps == sorted(last.timestamps)


def test_snapshots(manager):
    """An output is what was so when it was made: later tokens do not reach it."""
    manager.add_request([1], "a", max_new_tokens=20, streaming=True, record_timestamps=True)
    outputs = list(manager.request_id_iter("a"))
    for count, output in enumerate(outputs, start=1):
        lengths = {len(output.generated_tokens), len(output.logprobs), len(output.timestamps)}
        assert lengths == {count}
    outputs[0].generated_tokens.append(99)
    assert len(outputs[0].generated_tokens) == 1


def test_events(manager):
    """One output per token when streaming, one in all otherwise; a prompt's chunk emits none."""
    manager.add_request(list(range(150)), "a", max_new_tokens=4, streaming=True)
    manager.add_request(list(range(150)), "b", max_new_tokens=4)
    assert len(list(manager.request_id_iter("a"))) == 4
    (output,) = manager.request_id_iter("b")
    assert len(output.generated_tokens) == 4


def test_the_end_of_sequence_is_among_the_tokens(manager):
    manager.add_request([1], "a", max_new_tokens=4)
    first, *_ = manager.get_result("a").generated_tokens
    manager.add_request([1], "b", max_new_tokens=4, eos_token_id=[first, 500_000_000 % 199])
    assert manager.get_result("b").generated_tokens == [first]


def test_errors(manager):
    """A request that fails is reported as FAILED with its text; the engine and others go on."""
    manager._channels.faults.arm(FaultPoint.SAMPLE, request_id="bad")
    manager.add_request([1], "bad", max_new_tokens=4)
    manager.add_request([2], "good", max_new_tokens=4)
    output = manager.get_result("bad")
    assert output.status is RequestStatus.FAILED
    assert output.error.startswith("the request failed")
    assert isinstance(output.exception, RequestFailedError)
    assert manager.get_result("good").status is RequestStatus.FINISHED
    assert manager.is_running()
