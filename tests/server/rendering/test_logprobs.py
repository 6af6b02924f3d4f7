"""Log-probabilities in both forms."""

import json
import math

import pytest

from engine import TokenLogprobs
from server.rendering.logprobs import (
    CompletionLogprobsRenderer,
    clamp_logprob,
    render_chat_logprobs,
)
from server.text_stream import TextDelta


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf, -1e9])
def test_what_json_cannot_say_is_clamped(value):
    assert clamp_logprob(value) == -9999.0
    assert clamp_logprob(-2.5) == -2.5


def test_minus_infinity_is_strict_json_in_both_forms(vocabulary):
    entry = TokenLogprobs(300, -math.inf, ((300, -0.1), (301, -math.inf)))
    chat = render_chat_logprobs(vocabulary, [entry])[0].model_dump_json()
    old = CompletionLogprobsRenderer(vocabulary).render(
        TextDelta(text="x", token_ids=[300], logprobs=[entry])
    )
    for text in (chat, old.model_dump_json()):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert "-9999.0" in text


def test_the_chosen_token_joins_the_most_likely(vocabulary):
    entry = TokenLogprobs(310, -5.0, ((300, -0.1), (301, -0.2)))
    rendered = CompletionLogprobsRenderer(vocabulary).render(
        TextDelta(text="x", token_ids=[310], logprobs=[entry])
    )
    assert rendered.top_logprobs is not None
    assert list(rendered.top_logprobs[0].values()) == [-0.1, -0.2, -5.0]


def test_equal_texts_do_not_collapse(vocabulary, byte_level):
    lead, tail = byte_level.convert_tokens_to_ids(["ð", "Ł"])
    entry = TokenLogprobs(lead, -0.1, ((lead, -0.1), (tail, -0.2)))
    rendered = CompletionLogprobsRenderer(vocabulary).render(
        TextDelta(text="", token_ids=[lead], logprobs=[entry])
    )
    assert rendered.top_logprobs == [{"\ufffd": -0.1, f"token_id:{tail}": -0.2}]


def test_offsets_count_characters_and_not_bytes(vocabulary, byte_level):
    text = "é🦙a"
    ids = byte_level.encode(text, add_special_tokens=False)
    entries = [TokenLogprobs(token, -1.0, ()) for token in ids]
    rendered = CompletionLogprobsRenderer(vocabulary).render(
        TextDelta(text=text, token_ids=ids, logprobs=entries)
    )
    assert rendered.text_offset == [0, 0, 1, 1, 1, 1, 2]
