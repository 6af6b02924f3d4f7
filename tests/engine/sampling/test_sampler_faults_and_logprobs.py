"""The sampler: faults stay in their row, and log-probabilities say what they should."""

import math

import pytest
import torch

from engine.errors import RequestFailedError
from engine.sampling import logprobs as logprobs_module
from engine.sampling.logprobs import describe_tokens
from engine.sampling.parameters import SamplingParams
from tests.engine.sampling.rows import GREEDY, KINDS, VOCAB, logits_for, request, sample

# Faults


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rest", [GREEDY, SamplingParams(seed=1, top_p=0.9)])
def test_a_row_that_is_not_finite_fails_alone_and_is_named(bad, rest):
    logits = logits_for(3)
    if bad == -math.inf:
        logits[1] = bad
    else:
        logits[1, 17] = bad
    requests = [request(rest, name=f"request-{row}") for row in range(3)]
    result = sample(logits, requests, return_logprobs=rest is not GREEDY)
    assert list(result.errors) == [1]
    assert isinstance(result.errors[1], RequestFailedError)
    assert "request-1" in str(result.errors[1])
    clean = sample(logits[::2], requests[::2])
    assert [result.token_ids[0], result.token_ids[2]] == clean.token_ids


def test_a_nan_where_the_row_is_masked_is_still_found():
    logits = logits_for(1)
    logits[0, 4] = math.nan
    params = SamplingParams(min_new_tokens=5, eos_token_ids=frozenset({4}))
    assert list(sample(logits, [request(params)]).errors) == [0]


@pytest.mark.parametrize(
    "values",
    [
        {"logit_bias": {VOCAB + 7: 1.0}},
        {"logit_bias": {"x": 1.0}},
        {"logit_bias": {3: "much"}},
        {"logit_bias": {3: math.inf}},
        {"temperature": "hot"},
        {"repetition_penalty": 2.0, "presence_penalty": "some"},
        {"top_k": "many"},
    ],
)
def test_parameters_that_cannot_be_applied_fail_their_row_only(values):
    params = SamplingParams(**values)
    logits = logits_for(3)
    requests = [request(), request(params, name="guilty"), request(SamplingParams(seed=2))]
    result = sample(logits, requests)
    assert list(result.errors) == [1]
    assert isinstance(result.errors[1], RequestFailedError)
    assert "guilty" in str(result.errors[1])
    assert result.errors[1].__cause__ is not None
    assert result.token_ids[0] == int(logits[0].argmax())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_masking_every_token_fails_the_row_only(temperature, together):
    params = SamplingParams(
        temperature=temperature,
        top_p=0.5,
        min_new_tokens=9,
        eos_token_ids=frozenset(range(VOCAB)),
    )
    healthy = SamplingParams(temperature=temperature, seed=4)
    requests = [request(healthy), request(params), request(healthy)]
    for draw_rows in (sample, together):
        result = draw_rows(logits_for(3), requests, return_logprobs=True)
        assert list(result.errors) == [1]
        assert "no token" in str(result.errors[1])
        assert result.token_ids[0] == sample(logits_for(3)[:1], requests[:1]).token_ids[0]


# Log-probabilities


def test_token_logprobs_come_from_the_raw_logits():
    logits = logits_for(1)
    params = SamplingParams(
        temperature=0.5, top_k=3, logit_bias={50: 40.0}, repetition_penalty=1.5, top_logprobs=4
    )
    result = sample(logits, [request(params)])
    entry = result.token_logprobs[0]
    raw = logits[0].log_softmax(-1)
    assert entry.token_id == result.token_ids[0] == 50
    assert entry.logprob == raw[50].item()
    values, ids = raw.topk(4)
    assert entry.top == tuple(zip(ids.tolist(), values.tolist(), strict=True))


def test_a_failed_row_is_not_described():
    logits = logits_for(2)
    logits[0, 3] = math.nan
    params = SamplingParams(temperature=0.0, top_logprobs=2)
    result = sample(logits, [request(params), request(params)])
    assert list(result.errors) == [0]
    assert result.token_logprobs[0] is None
    assert result.token_logprobs[1] is not None


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (5, 5), (100, 8)])
def test_as_many_alternatives_as_asked_for_or_as_there_are(count, expected):
    result = sample(
        logits_for(1, 8), [request(SamplingParams(temperature=0.0, top_logprobs=count))]
    )
    assert len(result.token_logprobs[0].top) == expected


def test_equal_alternatives_are_listed_by_id():
    params = SamplingParams(temperature=0.0, top_logprobs=3)
    entry = sample(torch.zeros(1, VOCAB), [request(params)]).token_logprobs[0]
    assert [token for token, _ in entry.top] == [0, 1, 2]


def test_described_together_as_alone():
    logits = logits_for(4)
    rows, tokens, counts = [3, 1], [5, 6], [2, 7]
    alone = describe_tokens(logits, rows, tokens, counts)
    shared = logprobs_module._describe_together(logits[rows], tokens, counts)
    assert alone == shared


def test_logprobs_of_a_greedy_row_are_of_the_processed_logits():
    logits = logits_for(1)
    params = SamplingParams(temperature=0.0, logit_bias={9: 30.0})
    result = sample(logits, [request(params)], return_logprobs=True)
    logits[0, 9] += 30.0
    assert result.token_ids == [9]
    assert result.logprobs[0] == pytest.approx(logits[0].log_softmax(-1)[9].item(), abs=1e-6)


def test_logprobs_of_a_sampled_row_are_of_the_shaped_distribution():
    logits = logits_for(1)
    params = SamplingParams(temperature=0.5, top_k=4, seed=3)
    result = sample(logits, [request(params)], return_logprobs=True)
    values, ids = (logits[0] / 0.5).topk(4)
    expected = dict(zip(ids.tolist(), values.log_softmax(-1).tolist(), strict=True))
    assert result.logprobs[0] == pytest.approx(expected[result.token_ids[0]], abs=1e-5)


def test_asking_for_logprobs_does_not_change_tokens():
    logits = logits_for(len(KINDS))
    requests = [request(params) for params in KINDS]
    assert sample(logits, requests, True).token_ids == sample(logits, requests, False).token_ids
