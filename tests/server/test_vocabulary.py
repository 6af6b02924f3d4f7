"""Tokens as bytes and texts."""

from server.vocabulary import Vocabulary, byte_characters
from tests.server.fakes import ids_of, make_metaspace_tokenizer, make_wordpiece_tokenizer


def test_the_byte_alphabet_is_a_bijection():
    assert sorted(byte_characters().values()) == list(range(256))


def test_byte_level_tokens_have_their_true_bytes(byte_level, vocabulary):
    for text in (" hello", "é🦙", "\n"):
        ids = byte_level.encode(text, add_special_tokens=False)
        assert b"".join(map(vocabulary.token_bytes, ids)) == text.encode()


def test_special_tokens_are_those_the_tokenizer_skips(byte_level, vocabulary):
    for token_id in range(len(byte_level)):
        skipped = byte_level.decode([token_id], skip_special_tokens=True) == ""
        assert vocabulary.is_special(token_id) == skipped
    assert "<|im_end|>" in vocabulary.special_texts


def test_a_number_beyond_the_vocabulary_has_no_bytes(byte_level, vocabulary):
    assert vocabulary.token_bytes(len(byte_level) + 1) == b""


def test_metaspace_and_byte_tokens():
    tokenizer = make_metaspace_tokenizer(byte_fallback=True)
    vocabulary = Vocabulary(tokenizer)
    ids = ids_of(tokenizer, ["▁hello", "<0xF0>"])
    assert [vocabulary.token_bytes(token) for token in ids] == [b" hello", b"\xf0"]
    assert vocabulary.token_text(ids[1]) == "\ufffd"


def test_wordpiece_tokens():
    tokenizer = make_wordpiece_tokenizer()
    vocabulary = Vocabulary(tokenizer)
    ids = ids_of(tokenizer, ["hello", "##ing", "<|im_end|>"])
    assert [vocabulary.token_text(token) for token in ids] == [" hello", "ing", "<|im_end|>"]
