"""Logits to distribution, for rows together and for one row, against transformers' own classes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.requests import RequestState
from engine.sampling import processors
from engine.sampling.history import HistoryCache
from engine.sampling.host_row import places_of_largest, shape_row
from engine.sampling.parameters import SamplingParams
from engine.sampling.row_plan import RowInputs, plan_row

VOCAB = 60
PROMPT, OUTPUT = [3, 4, 4, 9], [4, 7, 7, 7]


def plans_for(rows, vocab=VOCAB, prompt=PROMPT, output=OUTPUT):
    histories = HistoryCache()
    requests = [
        RequestState(str(place), prompt, params, generated_tokens=list(output))
        for place, params in enumerate(rows)
    ]
    return [
        plan_row(place, request, RowInputs(0.0, histories, vocab))
        for place, request in enumerate(requests)
    ]


def shaped_together(scores, rows):
    return processors.shape_distribution(scores, plans_for(rows, scores.shape[-1]))


def shaped_alone(scores, params):
    candidates = shape_row(scores.numpy(), params)
    result = torch.full_like(scores, -math.inf)
    ids = slice(None) if candidates.ids is None else torch.from_numpy(candidates.ids)
    result[ids] = torch.from_numpy(candidates.scores)
    return result


def oracle(params, scores):
    """Shape one [V] row with what `generate` would build for these parameters."""
    warpers = LogitsProcessorList()
    if params.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        warpers.append(MinPLogitsWarper(params.min_p))
    return warpers(torch.LongTensor([[0]]), torch.FloatTensor(scores[None].clone()))[0]


def random_logits(rows, vocab=VOCAB, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


SHAPES = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=7.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=5),
    SamplingParams(top_k=59),
    SamplingParams(top_k=60),
    SamplingParams(top_k=10_000),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.1),
    SamplingParams(top_p=0.0),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.05),
    SamplingParams(min_p=1.0),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.8, min_p=0.1),
    SamplingParams(temperature=2.0, top_k=7, top_p=0.5),
    SamplingParams(temperature=1.3, top_p=0.95, min_p=0.02),
]


# Against transformers


@pytest.mark.parametrize("params", SHAPES)
@pytest.mark.parametrize("vocab", [VOCAB, 700, 20_000])
def test_shaping_equals_transformers(params, vocab):
    logits = random_logits(3, vocab, seed=vocab)
    together = shaped_together(logits, [params] * 3)
    for row in range(3):
        expected = oracle(params, logits[row]).softmax(-1)
        torch.testing.assert_close(together[row].softmax(-1), expected, atol=1e-5, rtol=0)
        alone = shaped_alone(logits[row], params)
        torch.testing.assert_close(alone.softmax(-1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("params", SHAPES)
def test_as_many_of_each_level_stay_as_in_transformers(params):
    # bf16 logits tie often; a few levels only make every threshold fall between equals. Which of
    # them top-p keeps depends on an unstable sort there, so the kept levels are compared.
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        logits = torch.randint(0, 4, (VOCAB,), generator=generator).float()
        expected = oracle(params, logits)
        alone, together = shaped_alone(logits, params), shaped_together(logits[None], [params])[0]
        assert torch.equal(alone.sort().values, expected.sort().values)
        assert torch.equal(alone, together)
        if params.top_p == 1.0:
            assert torch.equal(alone, expected)


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, [0]), (0.5, [0, 1]), (0.9, [0, 1, 2, 3])])
def test_top_p_keeps_the_lower_index_of_equals(top_p, kept):
    params = SamplingParams(top_p=top_p)
    logits = torch.tensor([1.0, 1.0, 1.0, 1.0, -90.0])
    for shaped in (shaped_alone(logits, params), shaped_together(logits[None], [params])[0]):
        assert (shaped > -math.inf).nonzero()[:, 0].tolist() == kept


def test_top_p_works_on_what_top_k_left():
    logits = torch.log(torch.tensor([0.4, 0.2, 0.2, 0.1, 0.1]))
    params = SamplingParams(top_k=1, top_p=0.45)
    assert (shaped_alone(logits, params) > -math.inf).tolist() == [True] + [False] * 4


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.0, 0.5, 2.0]),
    st.integers(0, 70),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.01, 0.5]),
    st.sampled_from([5, 64, 200, 3000]),
)
@settings(max_examples=150, deadline=None)
def test_one_row_and_rows_together_keep_the_same_tokens(seed, temperature, k, p, min_p, vocab):
    logits = random_logits(1, vocab, seed=seed % 2**31, spread=2.0).to(torch.bfloat16).float()
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    alone, together = shaped_alone(logits[0], params), shaped_together(logits, [params])[0]
    num_different = int(((alone > -math.inf) != (together > -math.inf)).sum())
    # Where the mass of a set equals 1 - top_p to within fp32, the last token is a toss-up.
    assert num_different <= 1
    assert (alone > -math.inf).any()
    assert alone.argmax() == together.argmax()


def test_editing_equals_transformers():
    logits = random_logits(1)
    bias = {3: 2.5, 11: -4.0}
    params = SamplingParams(
        repetition_penalty=1.7,
        logit_bias=bias,
        min_new_tokens=6,
        eos_token_ids=frozenset({5, 8}),
    )
    history = torch.LongTensor([PROMPT + OUTPUT])
    expected = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
            RepetitionPenaltyLogitsProcessor(1.7),
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, torch.tensor([5, 8])),
        ]
    )(history, torch.FloatTensor(logits.clone()))
    processors.edit_logits(logits, plans_for([params]))
    assert torch.equal(logits, expected)


# Penalties and masks


def test_presence_and_frequency_follow_the_published_formula():
    logits = random_logits(1)
    expected = logits.clone()
    for token in set(OUTPUT):
        expected[0, token] -= 0.5 * OUTPUT.count(token) + 0.25
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    processors.penalise(logits, plans_for([params]))
    torch.testing.assert_close(logits, expected)
    assert logits[0, 3] == expected[0, 3]  # in the prompt only


def test_a_removed_token_stays_removed():
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 0] = 1.0
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=-3.0, logit_bias={4: 9.0})
    processors.edit_logits(logits, plans_for([params]))
    assert logits[0, 4] == -math.inf


@pytest.mark.parametrize(
    ("num_output", "is_masked"), [(0, True), (3, True), (4, False), (9, False)]
)
def test_ends_are_masked_until_the_minimum(num_output, is_masked):
    logits = torch.zeros(1, VOCAB)
    params = SamplingParams(
        min_new_tokens=4, eos_token_ids=frozenset({1}), stop_token_ids=frozenset({2})
    )
    processors.edit_logits(logits, plans_for([params], output=[7] * num_output))
    masked = (logits[0] == -math.inf).nonzero()[:, 0].tolist()
    assert masked == ([1, 2] if is_masked else [])


# Rows


MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.6),
    SamplingParams(min_p=0.2),
]


def test_a_row_that_asks_for_nothing_keeps_its_bits():
    logits = random_logits(5)
    shaped = shaped_together(logits, MIXED)
    assert torch.equal(shaped[0], logits[0])
    assert not torch.equal(shaped[1:], logits[1:])


def test_rows_together_are_shaped_as_each_alone():
    logits = random_logits(5)
    together = shaped_together(logits, MIXED)
    for row, params in enumerate(MIXED):
        assert torch.equal(together[row], shaped_together(logits[row : row + 1], [params])[0])


def test_edits_touch_the_rows_that_ask_for_them_only():
    logits = random_logits(4)
    edited = logits.clone()
    rows = [
        SamplingParams(),
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(),
        SamplingParams(logit_bias={0: 1.0}),
    ]
    processors.edit_logits(edited, plans_for(rows))
    changed = (edited != logits).any(dim=-1).tolist()
    assert changed == [False, True, False, True]
    assert (edited[3] != logits[3]).nonzero()[:, 0].tolist() == [0]


def test_an_empty_prompt_with_penalties_is_no_error():
    logits = random_logits(1)
    before = logits.clone()
    plans = plans_for([SamplingParams(repetition_penalty=2.0)], prompt=[], output=[])
    processors.edit_logits(logits, plans)
    assert torch.equal(logits, before)


def test_shaping_does_not_change_its_input():
    logits = random_logits(1)
    before = logits.clone()
    params = SamplingParams(temperature=0.5, top_k=5, top_p=0.5, min_p=0.1)
    shaped_together(logits, [params])
    shape_row(logits[0].numpy(), params)
    assert torch.equal(logits, before)


# Finding the largest


@given(
    st.integers(1, 2000),
    st.integers(1, 120),
    st.integers(0, 10**6),
    st.sampled_from([2, 50, 10**6]),
)
@settings(deadline=None)
def test_places_of_largest_are_those_a_sort_finds(size, count, seed, num_levels):
    scores = np.random.default_rng(seed).integers(0, num_levels, size).astype(np.float32)
    floor = np.sort(scores)[-min(count, size)]
    assert places_of_largest(scores, count).tolist() == np.flatnonzero(scores >= floor).tolist()


# Planning


@pytest.mark.parametrize(
    ("params", "prompt"),
    [
        (SamplingParams(logit_bias={VOCAB: 1.0}), PROMPT),
        (SamplingParams(logit_bias={-1: 1.0}), PROMPT),
        (SamplingParams(logit_bias={1: math.nan}), PROMPT),
        (SamplingParams(min_new_tokens=9, eos_token_ids=frozenset({VOCAB})), PROMPT),
        (SamplingParams(repetition_penalty=1.5), [VOCAB]),
        (SamplingParams(presence_penalty=1.5), [-1]),
    ],
)
def test_ids_outside_the_row_are_found_before_any_tensor_is_touched(params, prompt):
    with pytest.raises(ValueError, match=r"outside|finite"):
        plans_for([params], prompt=prompt)
