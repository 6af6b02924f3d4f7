"""Token histories: counted once, kept while the request lives, dropped when it ends."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.requests import FinishReason, RequestState, RequestStatus
from engine.sampling.history import HistoryCache, TokenHistory, TokenSequence
from engine.sampling.parameters import SamplingParams

VOCAB = 500
# Also long runs, so that the arrays grow.
tokens = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), max_size=20),
    st.builds(lambda start, length: [*range(start, start + length)], *[st.integers(0, 250)] * 2),
)


def state(request_id="a", prompt=(1, 2), output=()):
    return RequestState(request_id, list(prompt), SamplingParams(), generated_tokens=list(output))


def as_dict(history):
    return dict(
        zip(history.token_ids.tolist(), history.output_counts.astype(int).tolist(), strict=True)
    )


@given(tokens, st.lists(tokens, max_size=4))
def test_counts_are_those_of_a_recount_after_every_step(prompt, steps):
    request = state(prompt=prompt)
    history = TokenHistory(request, VOCAB)
    for step in steps:
        request.generated_tokens.extend(step)
        history.catch_up()
        counted = Counter(request.generated_tokens)
        assert as_dict(history) == {
            token: counted[token] for token in {*prompt, *request.generated_tokens}
        }
        assert len(history.token_ids) == len(set(history.token_ids.tolist()))


def test_growing_keeps_what_was_counted():
    request = state(output=[7, 7])
    history = TokenHistory(request, VOCAB)
    history.catch_up()
    request.generated_tokens.extend(range(10, 400))
    history.catch_up()
    assert as_dict(history) == {1: 0, 2: 0, 7: 2, **dict.fromkeys(range(10, 400), 1)}


@given(tokens, st.lists(tokens, max_size=4))
def test_a_sequence_is_all_tokens_after_every_step(prompt, steps):
    request = state(prompt=prompt, output=(3,))
    sequence = TokenSequence(request)
    for step in steps:
        request.generated_tokens.extend(step)
        sequence.catch_up()
        assert sequence.token_ids.tolist() == [*prompt, *request.generated_tokens]


def test_a_sequence_is_kept_and_dropped_as_a_history_is():
    cache, request = HistoryCache(), state(output=[7])
    assert cache.sequence(request).tolist() == [1, 2, 7]
    assert cache.sequence(state(output=[8])).tolist() == [1, 2, 8]
    cache.get(request, VOCAB)
    assert len(cache) == 1
    cache.sequence(request)
    request.finish(RequestStatus.FINISHED, FinishReason.STOP)
    cache.drop_ended()
    assert len(cache) == 0


def test_a_history_is_built_once_and_caught_up():
    cache, request = HistoryCache(), state()
    first = cache.get(request, VOCAB)
    request.generated_tokens.append(7)
    assert cache.get(request, VOCAB) is first
    assert as_dict(first)[7] == 1


def test_a_reused_id_does_not_inherit_a_history():
    cache = HistoryCache()
    cache.get(state(output=[7, 7]), VOCAB)
    assert as_dict(cache.get(state(output=[8]), VOCAB)) == {1: 0, 2: 0, 8: 1}


def test_ended_requests_are_dropped_and_others_kept():
    cache, ends, goes_on = HistoryCache(), state("a"), state("b")
    cache.get(ends, VOCAB)
    kept = cache.get(goes_on, VOCAB)
    ends.finish(RequestStatus.FINISHED, FinishReason.STOP)
    cache.drop_ended()
    assert len(cache) == 1
    assert cache.get(goes_on, VOCAB) is kept


@pytest.mark.parametrize("prompt", [[-1], [VOCAB], [0, VOCAB + 5]])
def test_a_prompt_outside_the_vocabulary_is_refused(prompt):
    with pytest.raises(ValueError, match="outside"):
        TokenHistory(state(prompt=prompt), VOCAB)
