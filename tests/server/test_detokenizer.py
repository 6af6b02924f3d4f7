"""Text from tokens: joined pieces equal what the tokenizer makes of all tokens at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.detokenizer import IncrementalDetokenizer, ends_inside_character
from server.vocabulary import Vocabulary
from tests.server.fakes import (
    ids_of,
    make_byte_level_tokenizer,
    make_metaspace_tokenizer,
    make_wordpiece_tokenizer,
)

BYTE_LEVEL = make_byte_level_tokenizer()
TOKENIZERS = {
    "byte-level": BYTE_LEVEL,
    "metaspace": make_metaspace_tokenizer(),
    "wordpiece": make_wordpiece_tokenizer(),
}
VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in TOKENIZERS.items()}
FALLBACK = make_metaspace_tokenizer(byte_fallback=True)


def pieces(vocabulary: Vocabulary, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_joined_pieces_are_the_tokenizers_own_text(name, skip, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=24))
    text = "".join(pieces(VOCABULARIES[name], ids, skip=skip))
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back_and_no_piece_holds_half_a_character(text):
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False, split_special_tokens=True)
    got = pieces(VOCABULARIES["byte-level"], ids, skip=False)
    assert "".join(got) == BYTE_LEVEL.decode(ids)
    assert "".join(got).count("\ufffd") == text.count("\ufffd")


def test_an_unfinished_character_is_held_until_its_last_byte(byte_level, vocabulary):
    ids = byte_level.encode("🦙", add_special_tokens=False)
    assert len(ids) > 1
    assert pieces(vocabulary, ids) == [*[""] * (len(ids) - 1), "🦙", ""]


def test_an_unfinished_character_at_the_end_becomes_one_replacement(byte_level, vocabulary):
    ids = byte_level.encode("a🦙", add_special_tokens=False)[:-1]
    assert "".join(pieces(vocabulary, ids)) == "a\ufffd"


def test_a_genuine_replacement_character_is_not_held(byte_level, vocabulary):
    ids = byte_level.encode("\ufffd", add_special_tokens=False)
    assert pieces(vocabulary, ids)[len(ids) - 1] == "\ufffd"


def test_a_genuine_replacement_token_is_not_held_by_the_window():
    token = ids_of(TOKENIZERS["metaspace"], ["\ufffd"])[0]
    assert pieces(VOCABULARIES["metaspace"], [token, token]) == ["\ufffd", "\ufffd", ""]


def test_byte_fallback_tokens_are_held_until_the_character_is_complete():
    ids = ids_of(FALLBACK, [f"<0x{byte:02X}>" for byte in "🦙é".encode()])
    got = pieces(Vocabulary(FALLBACK), ids)
    assert got == ["", "", "", "🦙", "", "é", ""]


def test_byte_fallback_keeps_the_blank_between_words():
    ids = ids_of(FALLBACK, ["▁hello", "▁world", "▁", "hello"])
    got = pieces(Vocabulary(FALLBACK), ids)
    assert got == ["hello", " world", " ", "hello", ""]
    assert "".join(got) == FALLBACK.decode(ids)


def test_a_number_beyond_the_vocabulary_has_no_text(vocabulary, byte_level):
    assert pieces(vocabulary, [len(byte_level) + 5]) == ["", ""]


@pytest.mark.parametrize("character", ["é", "你", "🦙", "\u07ff", "\ud7ff", "\U0010ffff"])
def test_every_beginning_of_a_character_is_recognised(character):
    data = character.encode()
    for length in range(1, len(data)):
        assert ends_inside_character(b"a" + data[:length])
    assert not ends_inside_character(data)


@pytest.mark.parametrize("data", [b"", b"a", b"\x80", b"\xff", b"\xc0", b"\xe0\x80", b"\xf5\x80"])
def test_bytes_that_begin_no_character_are_not_waited_for(data):
    assert not ends_inside_character(data)
