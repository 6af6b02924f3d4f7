"""Stop strings in the text of the last tokens: where they are found, and what costs nothing."""

import copy
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from engine.errors import InvalidRequestError
from engine.sampling.options import SamplingLimits
from engine.sampling.parameters import resolve_sampling
from engine.sampling.stop_strings import StopStrings, own_copy

PIECES = ["s", "to", "st", "op", "stop", "opera", "las", "topper", "p", " ", "\n", "x", "é"]


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer whose first tokens are single bytes, and the others the pieces above."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(alphabet)}
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    for piece in PIECES:
        vocab.setdefault("".join(part for part, _ in encode(piece)), len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, [], fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


@pytest.fixture(scope="module")
def ids(tokenizer):
    """A function from pieces to their token ids."""
    table = {tokenizer.decode([token]): token for token in range(len(tokenizer))}
    return lambda *pieces: [table[piece] for piece in pieces]


def found(tokenizer, strings, prompt, answer):
    """What each token of an answer is found to complete, up to the first."""
    stops = StopStrings(strings, tokenizer)
    for count in range(1, len(answer) + 1):
        string = stops.find(prompt, answer[:count])
        if string is not None:
            return count, string
    return None


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        (("st", "op"), 2),
        (("stop",), 1),
        (("st", "opera"), 2),
        (("las", "topper"), 2),
        (("s", "to", "p", "x"), 3),
        (("x", "x", "s", "to", "x"), None),
        (("st", "x", "op"), None),
    ],
)
def test_a_string_is_found_however_tokens_cut_it(tokenizer, ids, pieces, count):
    expected = None if count is None else (count, "stop")
    assert found(tokenizer, ["stop"], ids("x"), ids(*pieces)) == expected


def test_it_may_begin_in_the_prompt_but_not_end_there(tokenizer, ids):
    assert found(tokenizer, ["stop"], ids("x", "st"), ids("op")) == (1, "stop")
    assert found(tokenizer, ["stop"], ids("stop"), ids("x", "x")) is None
    assert found(tokenizer, ["\n\n"], ids("x", "\n", "\n"), ids("x", "\n", "\n")) == (3, "\n\n")


def test_a_character_of_several_tokens_is_found_when_it_is_whole(tokenizer):
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("a。b")
    answer = tokenizer.convert_tokens_to_ids([byte for piece, _ in pieces for byte in piece])
    assert tokenizer.decode(answer) == "a。b"
    assert found(tokenizer, ["。"], [], answer) == (4, "。")


def test_of_several_the_one_that_begins_first_is_named(tokenizer, ids):
    assert found(tokenizer, ["op", "stop", "p"], [], ids("stop")) == (1, "stop")
    assert found(tokenizer, ["sto", "stop"], [], ids("stop")) == (1, "sto")


def test_an_old_string_does_not_hide_a_new_one(tokenizer, ids):
    """One stands in the prompt already, in what is decoded."""
    assert found(tokenizer, ["stop"], ids("stop"), ids("stop")) == (1, "stop")


def test_it_equals_a_search_through_the_whole_text(tokenizer):
    source = random.Random(3)
    strings = ["stop", "ss", "p x", "é\n"]
    size = len(tokenizer)
    for _ in range(300):
        pool = [source.randrange(size) for _ in range(5)] + list(range(size - 8, size))
        answer = [source.choice(pool) for _ in range(40)]
        stops = StopStrings(strings, tokenizer)
        for count in range(1, len(answer) + 1):
            text = tokenizer.decode(answer[:count])
            expected = any(string in text for string in strings)
            assert (stops.find([], answer[:count]) is not None) == expected
            if expected:
                break


def test_only_the_tail_is_decoded(tokenizer, ids):
    class Counting:
        longest = 0

        def decode(self, token_ids, **options):
            self.longest = max(self.longest, len(token_ids))
            return tokenizer.decode(token_ids, **options)

    counting = Counting()
    assert StopStrings(["stop"], counting).find(ids("x") * 500, ids("x") * 500) is None
    assert counting.longest <= 8


def test_a_tokenizer_is_copied_once(tokenizer):
    assert own_copy(tokenizer) is own_copy(tokenizer) is not tokenizer
    assert own_copy(copy.deepcopy(tokenizer)) is not own_copy(tokenizer)


LIMITS = SamplingLimits(vocab_size=100, max_model_tokens=64, seed=1)


def resolve(config=None, **options):
    config = config or GenerationConfig()
    return resolve_sampling(config, LIMITS, options, num_prompt_tokens=3).stop_strings


def test_they_come_from_the_request_or_the_configuration(tokenizer):
    config = GenerationConfig(stop_strings=["a", "b"])
    assert resolve(tokenizer=tokenizer) is None
    assert resolve(config, tokenizer=tokenizer).strings == ("a", "b")
    assert resolve(config, stop_strings="c", tokenizer=tokenizer).strings == ("c",)
    assert resolve(config, stop_strings=[], tokenizer=tokenizer) is None


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stop_strings": ["x"]}, "stop_strings"),
        ({"stop_strings": [""]}, "stop_strings"),
        ({"stop_strings": [3]}, "stop_strings"),
        ({"stop_strings": {"x": 1}}, "stop_strings"),
        ({"stop_strings": ["x"], "tokenizer": 3}, "tokenizer"),
    ],
)
def test_what_is_wrong_with_them_is_named(options, param):
    with pytest.raises(InvalidRequestError, match=param) as caught:
        resolve(**options)
    assert caught.value.param == param
