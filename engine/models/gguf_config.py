"""From what a GGUF file says of its model to a transformers configuration and tensor names.

Pure. A family whose file says more than is understood here is refused by name: a model that is
read almost right would answer almost right.
"""

import re
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from engine.errors import UnsupportedModelError
from engine.models.gguf_file import GGUFFile

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
# blk.3.attn_q.weight, or output.weight
TENSOR_NAME = re.compile(r"(?:blk\.([0-9]{1,6})\.)?([a-z_]+)\.(weight|bias)")
# Factors on the rotary frequencies, of no module's own.
ROPE_FACTORS = "rope_freqs.weight"
ARCHITECTURES = ("llama", "qwen2", "qwen3")
# The queries and keys of these have their rows in another order, pairs side by side.
PERMUTED_ARCHITECTURES = ("llama",)
# What would change the model and is not done: metadata names, behind the architecture's.
FOREIGN_FIELDS = ("expert_count", "attention.sliding_window", "rope.scaling.factor")


def model_config(file: GGUFFile) -> PretrainedConfig:
    """Return the configuration of the file's model.

    Raises:
        UnsupportedModelError: It is of a family that is not known, or asks for something else.
    """
    fields = file.metadata
    architecture = fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path.name} holds a model of the architecture {architecture!r}; GGUF files of "
            f"{', '.join(ARCHITECTURES)} can be served"
        )
    for name in FOREIGN_FIELDS:
        if fields.get(f"{architecture}.{name}"):
            raise UnsupportedModelError(f"{file.path.name} sets {name}, which is not supported")
    try:
        return AutoConfig.for_model(architecture, **_values(file, architecture))
    except KeyError as error:
        raise UnsupportedModelError(f"{file.path.name} does not say {error}") from error
    except (ArithmeticError, TypeError, ValueError, LookupError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(
            f"{file.path.name} describes a model that cannot be: {reason}"
        ) from error


def _values(file: GGUFFile, architecture: str) -> dict[str, Any]:
    own = {
        name.removeprefix(f"{architecture}."): value
        for name, value in file.metadata.items()
        if name.startswith(f"{architecture}.")
    }
    _check_sizes(own, file)
    tokens = {
        f"{role}_token_id": file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        for role, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    num_heads = own["attention.head_count"]
    head_dim = own.get("attention.key_length", own["embedding_length"] // num_heads)
    return {
        **tokens,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": own["embedding_length"],
        "intermediate_size": own["feed_forward_length"],
        "max_position_embeddings": own["context_length"],
        "num_attention_heads": num_heads,
        "num_hidden_layers": own["block_count"],
        "num_key_value_heads": own.get("attention.head_count_kv", num_heads),
        # Stored as fp32, in which 1e-5 is 9.9999997e-06: the shortest decimal is meant.
        "rms_norm_eps": float(f"{own['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_parameters": {
            "rope_theta": own.get("rope.freq_base", 10000.0),
            "rope_type": "default",
        },
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _check_sizes(own: dict[str, Any], file: GGUFFile) -> None:
    """Refuse sizes that the tensors do not have: a model of the claimed ones would be built first.

    Raises:
        KeyError, ValueError: One is missing, or is another.
    """
    num_heads = own["attention.head_count"]
    names = map(TENSOR_NAME.fullmatch, file.tensors)
    layers = {int(found[1]) for found in names if found and found[1]}
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    queries, hidden_size = shapes["blk.0.attn_q.weight"]
    for name, claimed, found in (
        ("block_count", own["block_count"], len(layers)),
        ("embedding_length", own["embedding_length"], hidden_size),
        ("feed_forward_length", own["feed_forward_length"], shapes["blk.0.ffn_up.weight"][0]),
        (
            "head_count times key_length",
            num_heads * own.get("attention.key_length", own["embedding_length"] // num_heads),
            queries,
        ),
    ):
        if claimed != found:
            raise ValueError(f"{name} is {claimed}, and the tensors say {found}")


def parameter_name(name: str) -> str:
    """Return transformers' name for a tensor of the file, `blk.3.attn_q.weight` for one.

    Raises:
        UnsupportedModelError: There is no such parameter.
    """
    found = TENSOR_NAME.fullmatch(name)
    layer, kind, suffix = found.groups() if found else (None, "", "")
    known = OUTER_NAMES if layer is None else LAYER_NAMES
    if kind not in known:
        raise UnsupportedModelError(
            f"the file holds a tensor {name[:80]!r}, which its family should not have"
        )
    prefix = "" if layer is None else f"model.layers.{int(layer)}."
    return f"{prefix}{known[kind]}.{suffix}"
