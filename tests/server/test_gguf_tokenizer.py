"""Tokenizers of GGUF files: text is split as their families split it, anything else is refused."""

import pytest
from transformers import AutoTokenizer

from server.gguf_tokenizer import write_tokenizer

# The bytes that are needed, then what merges lead to, then added tokens.
BYTES = [*"abcdefghijklmnopqrstuvwxyzI'!123456789", "Ġ", "Ċ", "Ã", "©", "Ì", "ģ"]
MERGES = ["Ġ a", "1 2", "12 3", "' m", "Ã ©"]
ADDED = ["<|begin|>", "<|end|>", "<think>"]
TOKENS = [*BYTES, *(merge.replace(" ", "") for merge in MERGES), "qqq", *ADDED]


def fields(splitter, **changes):
    content = {
        "general.architecture": "llama",
        "llama.context_length": 128,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": splitter,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 3) + [3, 3, 4],
        "tokenizer.ggml.bos_token_id": len(TOKENS) - 3,
        "tokenizer.ggml.eos_token_id": len(TOKENS) - 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    return {**content, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}


@pytest.fixture
def make(tmp_path):
    def make_tokenizer(splitter, **changes):
        write_tokenizer(fields(splitter, **changes), tmp_path)
        return AutoTokenizer.from_pretrained(tmp_path)

    return make_tokenizer


@pytest.mark.parametrize(
    ("splitter", "text", "tokens"),
    [
        # Digits: one by one, in threes, one by one.
        ("smollm", "12345", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", "12345", ["123", "4", "5"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        # A word takes its space with it; contractions stand alone.
        ("llama-bpe", "I'm a!", ["I", "'m", "Ġa", "!"]),
        ("qwen2", "I'm a!", ["I", "'m", "Ġa", "!"]),
        # A word of the vocabulary that no merge leads to.
        ("llama-bpe", "qqq", ["qqq"]),
        ("qwen2", "qqq", ["q", "q", "q"]),
        # A letter and its accent are one character, in one family.
        ("qwen2", "e\u0301", ["Ã©"]),
        ("llama-bpe", "e\u0301", ["e", "Ì", "ģ"]),
        ("qwen2", "a<|end|><think>b", ["a", "<|end|>", "<think>", "b"]),
    ],
)
def test_text_is_split_as_the_family_does(make, splitter, text, tokens):
    tokenizer = make(splitter)
    assert tokenizer.tokenize(text) == tokens
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == tokens


def test_special_tokens_are_left_out_of_text_and_added_ones_are_not(make):
    tokenizer = make("qwen2")
    ids = tokenizer.encode("a<|end|><think>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>"
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "b"}], tokenize=False) == "b"


@pytest.mark.parametrize(
    ("splitter", "says", "adds"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("qwen2", None, False),
        ("qwen2", True, True),
    ],
)
def test_a_text_begins_with_a_token_of_its_own_where_the_file_says_so(make, splitter, says, adds):
    changes = {} if says is None else {"add_bos_token": says}
    tokens = make(splitter, **changes)("a").tokens()
    assert tokens == (["<|begin|>", "a"] if adds else ["a"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama"}, "of the kind llama qwen2; known are gpt2 with smollm, llama-bpe"),
        ({"pre": "deepseek-llm"}, "of the kind gpt2 deepseek-llm"),
        ({"bos_token_id": 1000}, "incomplete"),
    ],
)
def test_another_kind_is_refused_by_name(make, changes, reason):
    with pytest.raises(ValueError, match=reason):
        make("qwen2", **changes)


def test_a_tokenizer_without_merges_is_refused(tmp_path):
    content = fields("qwen2")
    del content["tokenizer.ggml.merges"]
    with pytest.raises(ValueError, match=r"incomplete: 'tokenizer.ggml.merges'"):
        write_tokenizer(content, tmp_path)
