"""The tokenizer and the chat template of a GGUF file, written as an ordinary tokenizer's folder.

Pure, but for the files it writes. Only vocabularies are understood whose splitting of text is
written down here: a tokenizer that is almost right gives answers that are almost right.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

# Token types of the format: <|im_start|> and its like, and what was added but is ordinary text.
CONTROL_TOKEN, USER_TOKEN = 3, 4
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ROLES = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


# tokenizer.ggml.pre -> how text is split before merges are looked for.
SPLITTERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _digits,
    "llama-bpe": lambda: _split(WORDS % "{1,3}"),
    "qwen2": lambda: _split(WORDS % ""),
}


def write_tokenizer(fields: Mapping[str, Any], target: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template.

    Args:
        fields: The metadata of the file.
        target: An existing folder.

    Raises:
        ValueError: The file's tokenizer is of another kind, or incomplete.
    """
    kind, splitter = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or splitter not in SPLITTERS:
        raise ValueError(
            f"its tokenizer is of the kind {kind} {splitter}; known are gpt2 with "
            f"{', '.join(SPLITTERS)}"
        )
    try:
        _tokenizer(fields, splitter).save(str(target / "tokenizer.json"))
        config = _tokenizer_config(fields)
    except (KeyError, IndexError) as error:
        raise ValueError(f"its tokenizer is incomplete: {error}") from error
    content = json.dumps(config, indent=2, sort_keys=True)
    (target / "tokenizer_config.json").write_text(content + "\n", encoding="utf-8")
    template = fields.get("tokenizer.chat_template")
    if template:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")


def _tokenizer(fields: Mapping[str, Any], splitter: str) -> Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            # Llama 3 has words that no merge leads to.
            ignore_merges=splitter == "llama-bpe",
        )
    )
    tokenizer.pre_tokenizer = SPLITTERS[splitter]()
    if splitter == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL_TOKEN, USER_TOKEN):
            special = kind == CONTROL_TOKEN
            added = AddedToken(token, special=special, normalized=False)
            add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
            add([added])
    first = tokens[fields["tokenizer.ggml.bos_token_id"]] if _adds_bos(fields, splitter) else None
    if first is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A",
            pair=f"{first} $A {first} $B",
            special_tokens=[(first, fields["tokenizer.ggml.bos_token_id"])],
        )
    return tokenizer


def _adds_bos(fields: Mapping[str, Any], splitter: str) -> bool:
    """Return whether a text begins with a token of its own; Llama 3's files need not say so."""
    return bool(fields.get("tokenizer.ggml.add_bos_token", splitter == "llama-bpe"))


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    architecture = fields["general.architecture"]
    ids = {role: fields.get(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES}
    return {
        **{f"{role}_token": tokens[index] for role, index in ids.items() if index is not None},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields[f"{architecture}.context_length"],
        "clean_up_tokenization_spaces": False,
    }
