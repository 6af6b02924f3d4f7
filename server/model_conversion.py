"""Turn the default model's GGUF file into an ordinary model folder, once.

Runs as a child process (`python -m server.model_conversion SOURCE TARGET`), so that its memory is
gone before the cache of the server is sized. It needs numpy only: the quantised blocks are unpacked
to fp32, without loss against the file, and written under the names of a Llama model. It never
touches a folder other than TARGET.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from server.console import error_console, progress_bar

TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # the token type of <|im_start|> and its like


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Write config, tokenizer and fp32 weights of a Llama-shaped GGUF file into a folder.

    Args:
        source: The GGUF file.
        target: An existing, empty folder.
        progress: Where the bar is drawn.

    Raises:
        ValueError: The file holds another architecture or another kind of tokenizer.
    """
    reader = gguf.GGUFReader(source)
    fields = _Fields(reader)
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"{source.name} is not the model this conversion was written for")
    config = model_config(fields)
    write_tokenizer(fields, target)
    _write_json(target / "config.json", config)
    _write_json(
        target / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    weights = dict(_weights(reader, config, progress))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)  # it is made readable for its owner only


def model_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json that describes the file's model."""
    num_heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        # Stored as fp32, in which 1e-5 is 9.9999997e-06: the shortest decimal is meant.
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {
            "rope_theta": fields["llama.rope.freq_base"],
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def write_tokenizer(fields: Mapping[str, Any], target: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    # "smollm": every digit stands alone, then the byte-level pattern of GPT-2.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    tokenizer.save(str(target / "tokenizer.json"))
    special = {
        f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    _write_json(
        target / "tokenizer_config.json",
        {
            **special,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
        },
    )
    template: str = fields["tokenizer.chat_template"]
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")


def model_tensor_name(name: str) -> str:
    """Return a Llama model's name for a tensor of the file, `blk.3.attn_q.weight` for one."""
    *prefix, kind, suffix = name.split(".")
    layer = f"model.layers.{prefix[1]}." if prefix else ""
    return f"{layer}{TENSOR_NAMES[kind]}.{suffix}"


def unpermute_heads(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo the row order that GGUF gives to queries and keys for its rotary embedding.

    Args:
        weight: [num_heads * head_dim, hidden], each head's rows as (pair, half).
        num_heads: Query heads, or key heads.

    Returns:
        The same shape, each head's rows as (half, pair).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


class _Fields(dict[str, Any]):
    """The metadata of a GGUF file as plain values."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        super().__init__((name, field.contents()) for name, field in reader.fields.items())


def _weights(
    reader: gguf.GGUFReader, config: Mapping[str, Any], progress: Progress
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in progress.track(reader.tensors, description="Converting the weights"):
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = unpermute_heads(weight, heads[kind])
        yield model_tensor_name(tensor.name), weight


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Convert the file named on the command line."""
    source, target = map(Path, sys.argv[1:])
    with progress_bar(error_console()) as progress:
        convert(source, target, progress)


if __name__ == "__main__":
    main()
