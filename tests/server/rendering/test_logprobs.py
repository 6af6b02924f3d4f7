"""Log-probabilities in both forms."""

import json
import math

import pytest

from api_schemas import CompletionLogprobs
from engine import FinishReason, TokenLogprobs
from server.completion_stream import TokenDelta
from server.rendering.logprobs import (
    CompletionLogprobsRenderer,
    TokenNames,
    clamp_logprob,
    render_chat_logprobs,
    render_prompt_logprobs,
)
from server.text_stream import TextAssembler, TextDelta, TextOptions


def render(names: TokenNames, text: str, entry: TokenLogprobs) -> CompletionLogprobs:
    """A piece of one token."""
    rendered = CompletionLogprobsRenderer(names).render(
        TextDelta(text=text, token_ids=[entry.token_id], logprobs=[entry], token_ends=[len(text)])
    )
    assert rendered is not None
    return rendered


@pytest.fixture
def names(vocabulary) -> TokenNames:
    return TokenNames(vocabulary, as_ids=False)


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf, -1e9])
def test_what_json_cannot_say_is_clamped(value):
    assert clamp_logprob(value) == -9999.0
    assert clamp_logprob(-2.5) == -2.5


def test_minus_infinity_is_strict_json_in_both_forms(names):
    entry = TokenLogprobs(300, -math.inf, ((300, -0.1), (301, -math.inf)))
    chat = render_chat_logprobs(names, [entry])[0].model_dump_json()
    old = render(names, "x", entry)
    for text in (chat, old.model_dump_json()):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert "-9999.0" in text


def test_the_chosen_token_joins_the_most_likely(names):
    entry = TokenLogprobs(310, -5.0, ((300, -0.1), (301, -0.2)))
    rendered = render(names, "x", entry)
    assert rendered.top_logprobs is not None
    assert list((rendered.top_logprobs[0] or {}).values()) == [-0.1, -0.2, -5.0]


def test_equal_texts_do_not_collapse(names, byte_level):
    lead, tail = byte_level.convert_tokens_to_ids(["ð", "Ł"])
    entry = TokenLogprobs(lead, -0.1, ((lead, -0.1), (tail, -0.2)))
    rendered = render(names, "", entry)
    assert rendered.top_logprobs == [{"\ufffd": -0.1, f"token_id:{tail}": -0.2}]


def offsets_of(names, text_options, ids) -> list[int]:
    """Offsets of an answer that comes token by token and ends with the last one."""
    assembler = TextAssembler(names.vocabulary, text_options)
    renderer = CompletionLogprobsRenderer(names)
    offsets = []
    for place, token in enumerate(ids, 1):
        delta = TokenDelta([token], [TokenLogprobs(token, -1.0, ())])
        if place == len(ids):
            delta.finish_reason = FinishReason.LENGTH
        piece = assembler.push(delta)
        if piece is not None and (rendered := renderer.render(piece)) is not None:
            offsets += rendered.text_offset
    return offsets


def test_offsets_count_characters_and_not_bytes(names, byte_level):
    ids = byte_level.encode("é🦙a", add_special_tokens=False)
    assert offsets_of(names, TextOptions(), ids) == [0, 0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("stops", [(), ("exyz",), ("ex", "heq"), ("no such text",)])
def test_text_that_waits_for_a_stop_string_moves_no_token(names, byte_level, stops):
    """Text is held where it may begin one, and comes with later tokens, or with none."""
    pieces = ["he", "e", "e", "he", "é", "he", "e", "q"]
    ids = [token for piece in pieces for token in byte_level.encode(piece)]
    assert len(byte_level.encode("he")) == 1
    texts = [byte_level.decode(ids[: place + 1]).rstrip("\ufffd") for place in range(len(ids))]
    assert offsets_of(names, TextOptions(stops=stops), ids) == [0, *map(len, texts[:-1])]


def test_tokens_may_be_named_by_their_ids(vocabulary):
    entry = TokenLogprobs(300, -0.1, ((300, -0.1), (301, -0.2)))
    names = TokenNames(vocabulary, as_ids=True)
    chat = render_chat_logprobs(names, [entry])[0]
    assert (chat.token, chat.top_logprobs[1].token) == ("token_id:300", "token_id:301")
    old = render(names, "x", entry)
    assert old.tokens == ["token_id:300"]
    assert old.top_logprobs == [{"token_id:300": -0.1, "token_id:301": -0.2}]


def test_a_prompts_tokens_are_said_with_their_rank(vocabulary):
    entries = [None, TokenLogprobs(305, -7.0, ((300, -0.1), (301, -0.2)), 40)]
    first, second = render_prompt_logprobs(vocabulary, entries)
    assert first is None
    assert second is not None
    assert {token: (one.logprob, one.rank) for token, one in second.items()} == {
        "300": (-0.1, 1),
        "301": (-0.2, 2),
        "305": (-7.0, 40),
    }
    assert second["305"].decoded_token == vocabulary.token_text(305)


def test_special_tokens_that_an_echo_lacks_take_no_place(names, byte_level):
    prompt = [byte_level.bos_token_id, *byte_level.encode("one two", add_special_tokens=False)]
    entries = [None, *(TokenLogprobs(token, -1.0, (), 1) for token in prompt[1:])]
    whole = CompletionLogprobsRenderer(names).render_prompt("one two", prompt, entries)
    assert whole.text_offset[:2] == [0, 0]
    shown = CompletionLogprobsRenderer(names).render_prompt(
        f"{byte_level.bos_token}one two", prompt, entries
    )
    assert shown.text_offset[:2] == [0, len(byte_level.bos_token)]
    assert shown.token_logprobs[0] is None
