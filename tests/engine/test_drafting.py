"""Guesses against a plain search, and how many of them are made."""

import random

import pytest

from engine import drafting
from engine.drafting import NGRAM_SIZES, READ_TOKENS, RETRY_TOKENS, Drafting, PromptLookup

LEAST = 0.1


def searched(tokens: list[int], count: int) -> list[int]:
    """Return what `propose` should, from all tokens: the longest match, the latest of equals."""
    for size in NGRAM_SIZES:
        for stop in range(len(tokens) - 1, size - 1, -1):
            if tokens[stop - size : stop] == tokens[-size:] and size < len(tokens):
                seen = list(tokens)
                for number in range(count):
                    seen.append(seen[stop + number])
                return seen[len(tokens) :]
    return []


@pytest.mark.parametrize("seed", range(40))
def test_guesses_are_those_of_a_search_through_everything(seed):
    source = random.Random(seed)
    vocab_size = source.choice([1, 2, 4, 30])

    def token() -> int:
        return source.randrange(vocab_size)

    prompt = [token() for _ in range(source.randrange(30))]
    generated: list[int] = []
    lookup = PromptLookup(prompt)
    num_found = 0
    for _ in range(60):
        generated.extend(token() for _ in range(source.choice([0, 1, 1, 1, 5])))
        lookup.catch_up(generated)
        count = source.randint(1, 8)
        expected = searched(prompt + generated, count)
        assert lookup.propose(count) == expected
        num_found += bool(expected)
    assert num_found > 0


def test_a_long_prompt_is_read_in_parts_and_nothing_is_guessed_before_its_end():
    prompt = [1, 2, 3] * READ_TOKENS
    lookup = PromptLookup(prompt)
    whole = [lookup.catch_up([]) for _ in range(4)]
    assert whole == [False, False, True, True]
    drafting = Drafting(prompt)
    drafts = [drafting.draft([], 4, LEAST) for _ in range(3)]
    assert [len(draft) > 0 for draft in drafts] == [False, False, True]


class Read(list):
    """A list that knows where reading it began."""

    first = 0

    def __getitem__(self, key):
        if isinstance(key, slice):
            self.first = key.start
        return super().__getitem__(key)


def test_each_token_is_read_once():
    lookup = PromptLookup([1, 2, 3] * 100)
    generated = Read()
    for length in range(1, 200):
        generated.append(length % 3)
        lookup.catch_up(generated)
        assert generated.first == length - 1
        entries = len(lookup._place_after)
        lookup.propose(8)
        assert len(lookup._place_after) == entries <= 3 * (300 + length)


def test_an_answer_that_goes_round_is_guessed_to_go_on():
    lookup = PromptLookup([])
    lookup.catch_up([9, 4, 5, 4, 5])
    assert lookup.propose(5) == [4, 5, 4, 5, 4]
    lookup.catch_up([9, 4, 5, 4, 5, 5, 5, 5])
    assert lookup.propose(3) == [5, 5, 5]


def repeating() -> Drafting:
    return Drafting([1, 2] * 10)


def test_drafts_grow_with_what_is_accepted_and_shrink_with_what_is_not():
    drafts = repeating()
    lengths = [len(drafts.draft([], 8, LEAST))]
    for _ in range(4):
        drafts.learn(lengths[-1], lengths[-1])
        lengths.append(len(drafts.draft([], 8, LEAST)))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] == 8
    while drafts.draft([], 8, LEAST):
        drafts.learn(8, 0)
        lengths.append(len(drafts.draft([], 8, LEAST)))
        assert len(lengths) < 40
    assert lengths[5:] == sorted(lengths[5:], reverse=True)


def test_the_less_a_guess_can_save_the_fewer_there_are():
    drafts = repeating()
    drafts.learn(6, 6)
    lengths = [len(drafts.draft([], 20, least)) for least in (0.1, 0.3, 0.5, 0.9, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-2]
    assert lengths[-1] == 0


def test_after_failing_one_is_tried_now_and_then_and_success_brings_more():
    drafts = repeating()
    generated: list[int] = []
    while drafts.draft(generated, 8, LEAST):
        drafts.learn(1, 0)
    tried = []
    for _ in range(3 * RETRY_TOKENS):
        generated.append(1 + len(generated) % 2)
        draft = drafts.draft(generated, 8, LEAST)
        if draft:
            tried.append(len(generated))
            assert len(draft) == 1
            drafts.learn(1, 0)
    assert tried == [RETRY_TOKENS, 2 * RETRY_TOKENS, 3 * RETRY_TOKENS]
    for _ in range(8):
        drafts.learn(1, 1)
    assert len(drafts.draft(generated, 8, LEAST)) == 8


def test_without_a_match_nothing_is_tried():
    drafts = Drafting([1, 2, 3, 4, 5])
    assert drafts.draft([6, 7], 8, LEAST) == []
    assert drafts.acceptance == drafting.FIRST_ACCEPTANCE
