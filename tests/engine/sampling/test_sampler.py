"""The sampler: right tokens, right odds, rows that do not know of each other, faults kept apart."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.requests import FinishReason, RequestStatus
from engine.sampling import sampler as sampler_module
from engine.sampling.draw import draw, most_likely
from engine.sampling.host_row import draw_place
from engine.sampling.parameters import SamplingParams
from engine.sampling.sampler import Sampler
from tests.engine.sampling.rows import GREEDY, KINDS, VOCAB, logits_for, request, sample

# Greedy rows


def test_greedy_takes_the_maximum_of_each_row():
    logits = logits_for(6)
    result = sample(logits, [request() for _ in range(6)])
    assert result.token_ids == logits.argmax(dim=-1).tolist()
    assert result.logprobs == []
    assert result.token_logprobs == [None] * 6
    assert result.errors == {}


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.0, logit_bias={9: 0.5})])
def test_greedy_takes_the_lowest_index_of_equals(params):
    logits = torch.zeros(2, VOCAB)
    logits[:, 40:60] = 2.0
    assert sample(logits, [request(params), request(params)]).token_ids == [40, 40]


def test_a_greedy_batch_does_not_end_before_its_minimum():
    logits = logits_for(1)
    best, second = logits[0].topk(2).indices.tolist()
    params = SamplingParams(temperature=0.0, min_new_tokens=2, eos_token_ids=frozenset({best}))
    assert sample(logits, [request(params, output=[1])]).token_ids == [second]
    assert sample(logits, [request(params, output=[1, 1])]).token_ids == [best]


def test_a_greedy_batch_computes_no_softmax(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("the fast path was left")

    monkeypatch.setattr(sampler_module._Step, "process", refuse)
    sample(logits_for(3), [request(), request(), request()])
    with pytest.raises(AssertionError):
        sample(logits_for(1), [request(SamplingParams())])


def test_no_rows_give_no_tokens():
    result = sample(torch.empty(0, VOCAB), [])
    assert (result.token_ids, result.logprobs, result.token_logprobs) == ([], [], [])


def test_half_precision_logits_are_taken_as_they_are():
    logits = logits_for(4).to(torch.bfloat16)
    requests = [request(params) for params in (GREEDY, *KINDS[4:7])]
    assert sample(logits, requests) == sample(logits.float(), requests)


def test_logits_that_are_a_strided_view_are_read_right():
    wide = logits_for(len(KINDS), 2 * VOCAB)
    requests = [request(params) for params in KINDS]
    assert sample(wide[:, :VOCAB], requests) == sample(wide[:, :VOCAB].clone(), requests)
    assert sample(wide[:, ::2], requests) == sample(wide[:, ::2].clone(), requests)


def test_logits_that_track_gradients_are_no_error():
    assert sample(logits_for(1).requires_grad_(), [request(SamplingParams())]).errors == {}


# Draws


def test_a_draw_depends_on_seed_and_position_only():
    logits = logits_for(1).expand(200, -1)
    outputs = [[7] * length for length in range(200)]
    drawn = sample(logits, [request(SamplingParams(seed=9), output=out) for out in outputs])
    again = sample(logits, [request(SamplingParams(seed=9), output=out) for out in outputs])
    assert drawn.token_ids == again.token_ids
    assert len(set(drawn.token_ids)) > 5


def test_a_position_counts_the_prompt_and_the_output():
    logits = logits_for(1).expand(30, -1)
    params = [SamplingParams(seed=seed) for seed in range(30)]
    in_prompt = sample(logits, [request(own, prompt=[0] * 5) for own in params])
    in_output = sample(logits, [request(own, prompt=[0], output=[7] * 4) for own in params])
    elsewhere = sample(logits, [request(own, prompt=[0] * 6) for own in params])
    assert in_prompt.token_ids == in_output.token_ids != elsewhere.token_ids


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=2.0, min_p=0.2),
    ],
)
@pytest.mark.parametrize("way", ["alone", "together"])
def test_tokens_come_with_their_probabilities(params, way, together):
    count, vocab = 20_000, 12
    logits = torch.linspace(-1.0, 1.5, vocab)[torch.arange(vocab) * 5 % vocab][None]
    requests = [
        request(SamplingParams(seed=seed, **_shape(params)), prompt=[0]) for seed in range(count)
    ]
    draws = (sample if way == "alone" else together)(logits.expand(count, -1), requests)
    observed = torch.bincount(torch.tensor(draws.token_ids), minlength=vocab).double()
    expected = _exact(params, logits[0]) * count
    possible = expected > 0
    assert observed[~possible].sum() == 0
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum().item()
    freedom = int(possible.sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)  # beyond five standard deviations


def _shape(params):
    return {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}


def _exact(params, logits):
    """Return the distribution, computed in the plainest way in fp64."""
    weights = (logits.double() / params.temperature).softmax(-1)
    order = weights.argsort(descending=True).tolist()
    if params.top_k:
        order = order[: params.top_k]
    mass = sum(weights[token].item() for token in order)
    kept, reached = [], 0.0
    for token in order:
        if reached >= params.top_p * mass or weights[token] < params.min_p * weights[order[0]]:
            break
        kept.append(token)
        reached += weights[token].item()
    exact = torch.zeros_like(weights)
    exact[kept] = weights[kept] / weights[kept].sum()
    return exact


ALMOST_ONE = 1.0 - 2.0**-53


@given(
    st.lists(st.sampled_from([-math.inf, -90.0, -1.0, 0.0, 0.3, 5.0]), min_size=1, max_size=40),
    st.one_of(st.sampled_from([0.0, 0.5, ALMOST_ONE]), st.floats(0.0, ALMOST_ONE)),
)
@settings(deadline=None)
def test_an_impossible_token_is_never_drawn(values, number):
    row = torch.tensor([*values, 1.0])
    for scores in (row, row.flip(0)):
        assert scores[draw_place(scores.numpy(), number)] > -math.inf
        token = draw(scores[None], [number], scores.argmax()[None])
        assert scores[token] > -math.inf


def test_the_ends_of_the_unit_interval_are_the_ends_of_the_possible_tokens():
    scores = torch.tensor([-math.inf, 1.0, 0.0, -math.inf])
    for number, expected in ((0.0, 1), (ALMOST_ONE, 2)):
        assert draw_place(scores.numpy(), number) == expected
        assert draw(scores[None], [number], torch.tensor([1])).tolist() == [expected]


def test_a_number_on_the_border_of_two_tokens_belongs_to_the_second():
    scores = torch.zeros(2)  # each holds exactly half
    for number, expected in ((0.5 - 2.0**-53, 0), (0.5, 1)):
        assert draw_place(scores.numpy(), number) == expected
        assert draw(scores[None], [number], torch.tensor([0])).tolist() == [expected]


def test_a_scan_that_points_at_an_impossible_token_is_caught(monkeypatch):
    # A GPU's parallel scan may be off in the last bit; let the search err by one place.
    search = torch.searchsorted
    monkeypatch.setattr(torch, "searchsorted", lambda *args, **kwargs: search(*args, **kwargs) + 1)
    scores = torch.tensor([[1.0, -math.inf, 0.0]])
    assert draw(scores, [0.0], torch.tensor([0])).tolist() == [0]


def test_most_likely_is_the_same_by_numpy_and_by_torch():
    logits = logits_for(5).round()
    assert torch.equal(most_likely(logits), logits.argmax(dim=-1))


def test_nearly_zero_temperature_is_nearly_greedy():
    logits = logits_for(1, 5000)
    params = SamplingParams(temperature=1e-5, seed=3)
    assert sample(logits, [request(params)]).token_ids == logits.argmax(-1).tolist()


# Rows do not know of each other


@pytest.mark.parametrize("vocab", [VOCAB, 4096])
def test_a_row_is_bitwise_the_same_alone_and_in_a_crowd(vocab):
    logits = logits_for(len(KINDS), vocab)
    requests = [request(params, name=str(i)) for i, params in enumerate(KINDS)]
    crowd = sample(logits, requests, return_logprobs=True)
    for row, own in enumerate(requests):
        alone = sample(logits[row : row + 1], [own], return_logprobs=True)
        assert alone.token_ids[0] == crowd.token_ids[row]
        assert alone.logprobs[0] == crowd.logprobs[row]
        assert alone.token_logprobs[0] == crowd.token_logprobs[row]


@given(st.permutations(range(len(KINDS))), st.integers(0, 1000), st.integers(1, len(KINDS)))
@settings(max_examples=25, deadline=None)
def test_neighbours_and_their_order_do_not_matter(order, seed, size):
    chosen = order[:size]
    logits = logits_for(len(KINDS), seed=seed)
    requests = [request(params, name=str(i)) for i, params in enumerate(KINDS)]
    whole = sample(logits, requests, return_logprobs=True)
    part = sample(logits[chosen], [requests[row] for row in chosen], return_logprobs=True)
    assert part.token_ids == [whole.token_ids[row] for row in chosen]
    assert part.logprobs == [whole.logprobs[row] for row in chosen]
    assert part.token_logprobs == [whole.token_logprobs[row] for row in chosen]


def test_rows_drawn_together_are_those_drawn_alone(together):
    logits = logits_for(len(KINDS), 3000)
    requests = [request(params, name=str(i)) for i, params in enumerate(KINDS)]
    alone, shared = sample(logits, requests, True), together(logits, requests, True)
    assert alone.token_ids == shared.token_ids
    assert alone.logprobs == pytest.approx(shared.logprobs, abs=1e-5)


def test_neither_the_logits_nor_the_requests_are_changed(together):
    logits = logits_for(len(KINDS))
    before = logits.clone()
    requests = [request(params) for params in KINDS]
    sample(logits, requests, return_logprobs=True)
    together(logits, requests)
    for row in range(len(KINDS)):
        together(logits[row : row + 1], requests[row : row + 1])
    assert torch.equal(logits, before)
    assert all(own.generated_tokens == [] and own.prompt_ids == [1, 2, 3] for own in requests)


# Over several steps


def test_penalties_follow_the_output_and_its_end():
    sampler = Sampler(return_logprobs=False)
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    own = request(params, prompt=[0])
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 6] = 2.5, 1.0
    for _ in range(5):
        own.generated_tokens += sampler.sample(logits, [own]).token_ids
    # 2.5, 1.5 -> 5; at 0.5 token 6 leads with 1.0; then 5 with 0.5; then 0 (lowest) of the zeros.
    assert own.generated_tokens == [5, 5, 6, 5, 0]
    own.finish(RequestStatus.FINISHED, FinishReason.STOP)
    sampler.sample(logits, [request()])
    assert len(sampler._histories) == 0


@pytest.mark.gpu
def test_a_gpu_draws_what_the_cpu_draws():
    logits = logits_for(len(KINDS), 5000)
    requests = [request(params, name=str(i)) for i, params in enumerate(KINDS)]
    here, there = sample(logits, requests, True), sample(logits.cuda(), requests, True)
    assert here.token_ids == there.token_ids
    assert here.logprobs == pytest.approx(there.logprobs, abs=1e-4)
    for mine, its in zip(here.token_logprobs, there.token_logprobs, strict=True):
        assert (mine is None) == (its is None)
        if mine is not None:
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in its.top]


@pytest.mark.gpu
def test_a_greedy_gpu_batch_takes_the_maximum():
    logits = logits_for(6)
    assert sample(logits.cuda(), [request()] * 6).token_ids == logits.argmax(-1).tolist()
