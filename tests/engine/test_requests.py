"""Outputs as snapshots, and the record of a request that they are taken from."""

import pytest

from engine.requests import FinishReason, RequestStatus, TokenLogprobs
from tests.engine.builders import make_request


def accept(state, token, logprob=-0.5):
    state.status = RequestStatus.DECODING
    state.generated_tokens.append(token)
    state.logprobs.append(logprob)
    state.token_logprobs.append(TokenLogprobs(token, logprob, ()))
    if state.timestamps is not None:
        state.timestamps.append(float(token))


def test_later_tokens_do_not_change_an_earlier_output():
    state = make_request()
    state.timestamps = []
    accept(state, 5, -1.0)
    first = state.make_output()
    accept(state, 6, -2.0)
    state.finish(RequestStatus.FINISHED, FinishReason.LENGTH)
    second = state.make_output()
    assert (first.generated_tokens, first.logprobs, first.timestamps) == ([5], [-1.0], [5.0])
    assert [entry.token_id for entry in first.token_logprobs] == [5]
    assert (first.status, first.finish_reason) == (RequestStatus.DECODING, None)
    assert (second.generated_tokens, second.timestamps) == ([5, 6], [5.0, 6.0])


def test_changing_an_output_does_not_change_the_request():
    state = make_request(prompt=[1, 2])
    accept(state, 5)
    output = state.make_output()
    output.generated_tokens.append(99)
    output.new_tokens.append(99)
    output.prompt_ids.append(99)
    assert (state.generated_tokens, state.prompt_ids) == ([5], [1, 2])
    assert output.generated_tokens == [5]


def test_deltas_join_to_the_whole():
    state = make_request()
    outputs = []
    for count in (1, 0, 3):
        for token in range(count):
            accept(state, token)
        outputs.append(state.make_output())
    assert [output.new_tokens for output in outputs] == [[0], [], [0, 1, 2]]
    assert [len(output.new_logprobs) for output in outputs] == [1, 0, 3]
    joined = [token for output in outputs for token in output.new_tokens]
    assert joined == state.generated_tokens


def test_timestamps_are_none_unless_recorded():
    assert make_request().make_output().timestamps is None


def test_a_failed_output_carries_the_error_and_its_text():
    state, error = make_request(), ValueError("no")
    state.finish(RequestStatus.FAILED, FinishReason.ERROR, error)
    output = state.make_output()
    assert (output.exception, output.error) == (error, "no")
    assert output.lifespan[0] == -1.0
    assert output.lifespan[1] >= output.created_time


@pytest.mark.parametrize("status", RequestStatus)
def test_terminal_statuses_are_finished(status):
    terminal = {RequestStatus.FINISHED, RequestStatus.FAILED, RequestStatus.CANCELLED}
    state = make_request()
    state.status = status
    assert state.is_finished() == state.make_output().is_finished() == (status in terminal)


def test_tokens_are_read_across_prompt_and_answer():
    state = make_request(prompt=[1, 2, 3])
    state.generated_tokens.extend([10, 11])
    everything = [1, 2, 3, 10, 11]
    assert [state.token_at(position) for position in range(5)] == everything
    for start in range(6):
        for stop in range(start, 6):
            assert state.tokens_between(start, stop).tolist() == everything[start:stop]


def test_the_block_table_as_an_array_follows_its_list():
    request = make_request()
    for block in (5, 3, 8):
        request.block_ids.append(block)
        assert request.block_row().tolist() == request.block_ids
    assert request.block_row() is request.block_row()
    request.forget_blocks()
    request.block_ids.extend([1, 2, 4])
    assert request.block_row().tolist() == [1, 2, 4]


def test_an_output_is_shown_without_its_token_lists():
    text = repr(make_request("req_7", list(range(1000))).make_output())
    assert text == (
        "GenerationOutput('req_7', PENDING, 1000 prompt tokens, 0 generated, error=None)"
    )
