"""Token deltas to text deltas: stops, closing tokens and what travels with the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_schemas import FinishReason
from engine import FinishReason as EngineFinishReason
from engine import TokenLogprobs
from server.completion_stream import TokenDelta
from server.text_stream import TextAssembler, TextDelta, TextOptions
from server.vocabulary import Vocabulary
from tests.server.fakes import make_byte_level_tokenizer

TOKENIZER = make_byte_level_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
EOS = TOKENIZER.eos_token_id
TEXT = "one two three four 🦙 five"
IDS = TOKENIZER.encode(TEXT, add_special_tokens=False)


def assemble(
    ids: list[int],
    options: TextOptions,
    *,
    reason: EngineFinishReason = EngineFinishReason.LENGTH,
    stop_reason: int | None = None,
    size: int = 1,
) -> list[TextDelta]:
    """Feed ids in groups of one size; the last group carries the ending."""
    assembler = TextAssembler(VOCABULARY, options)
    groups = [ids[start : start + size] for start in range(0, len(ids), size)]
    pieces = []
    for number, group in enumerate(groups):
        delta = TokenDelta(group, [TokenLogprobs(token, -1.0, ()) for token in group])
        if number == len(groups) - 1:
            delta.finish_reason, delta.stop_reason = reason, stop_reason
        piece = assembler.push(delta)
        if piece is not None:
            pieces.append(piece)
        if assembler.finished:
            break
    return pieces


def joined(pieces: list[TextDelta]) -> str:
    return "".join(piece.text for piece in pieces)


def all_tokens(pieces: list[TextDelta]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]


@given(
    start=st.integers(0, len(TEXT) - 1),
    length=st.integers(1, 8),
    size=st.integers(1, 7),
    include=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_stop_string_cuts_at_the_same_place_however_tokens_arrive(start, length, size, include):
    stop = TEXT[start : start + length]
    pieces = assemble(IDS, TextOptions(stops=(stop,), include_stop=include), size=size)
    end = TEXT.index(stop) + (len(stop) if include else 0)
    assert joined(pieces) == TEXT[:end]
    assert pieces[-1].finish_reason is FinishReason.STOP
    assert pieces[-1].stop_reason == stop
    one_by_one = assemble(IDS, TextOptions(stops=(stop,), include_stop=include))
    assert all_tokens(pieces) == all_tokens(one_by_one)


def test_every_token_travels_exactly_once_though_text_is_held():
    pieces = assemble(IDS, TextOptions(stops=("three four 🦙 five!",)))
    assert joined(pieces) == TEXT
    assert all_tokens(pieces) == IDS
    assert [entry.token_id for piece in pieces for entry in piece.logprobs] == IDS


def test_a_token_whose_text_is_held_waits_for_it():
    shown = TOKENIZER.encode("one two", add_special_tokens=False)
    held = TOKENIZER.encode(" three four", add_special_tokens=False)
    assembler = TextAssembler(VOCABULARY, TextOptions(stops=(" three four!",)))
    first = assembler.push(TokenDelta([*shown, *held]))
    assert first is not None
    assert (first.text, first.token_ids) == ("one two", shown)
    second = assembler.push(TokenDelta(shown))
    assert second is not None
    assert (second.text, second.token_ids) == (" three fourone two", [*held, *shown])


def test_only_the_last_piece_may_be_empty():
    pieces = assemble(IDS, TextOptions(stops=("two t",)))
    assert all(piece.text for piece in pieces[:-1])


def test_eos_is_counted_and_hidden():
    pieces = assemble([*IDS, EOS], TextOptions(), reason=EngineFinishReason.STOP)
    assert joined(pieces) == TEXT
    assert pieces[-1].token_ids == [EOS]
    assert pieces[-1].finish_reason is FinishReason.STOP
    assert pieces[-1].stop_reason is None


def test_eos_shows_without_skip_special_tokens():
    options = TextOptions(skip_special_tokens=False)
    pieces = assemble([*IDS, EOS], options, reason=EngineFinishReason.STOP)
    assert joined(pieces) == TEXT + "<|im_end|>"


@pytest.mark.parametrize(("include", "shown"), [(False, ""), (True, "llo")])
def test_a_stop_tokens_text_is_hidden_unless_asked_for(include, shown):
    ids = TOKENIZER.encode("hello", add_special_tokens=False)
    pieces = assemble(
        ids,
        TextOptions(include_stop=include),
        reason=EngineFinishReason.STOP,
        stop_reason=ids[-1],
    )
    assert joined(pieces) == "he" + shown
    assert pieces[-1].stop_reason == ids[-1]


def test_a_stop_string_that_is_a_special_token_matches():
    ids = [*IDS, EOS, *IDS]
    pieces = assemble(ids, TextOptions(stops=("<|im_end|>",)))
    assert joined(pieces) == TEXT
    assert pieces[-1].stop_reason == "<|im_end|>"
    assert sum(len(piece.token_ids) for piece in pieces) == len(IDS) + 1


def test_held_text_is_released_at_the_end():
    pieces = assemble(IDS, TextOptions(stops=("five!",)))
    assert joined(pieces) == TEXT
    assert pieces[-1].finish_reason is FinishReason.LENGTH


def test_an_unfinished_character_at_the_end_is_one_replacement_character():
    ids = TOKENIZER.encode("a🦙", add_special_tokens=False)[:-1]
    assert joined(assemble(ids, TextOptions())) == "a\ufffd"


def test_stop_strings_are_not_looked_for_before_min_tokens():
    ids = TOKENIZER.encode("one two one two", add_special_tokens=False)
    first = TOKENIZER.encode("one two", add_special_tokens=False)
    options = TextOptions(stops=("two",), min_tokens=len(first))
    assert joined(assemble(ids, options)) == "one two one "
