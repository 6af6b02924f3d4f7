"""Writes GGUF files of small models, as the format's own tools lay them out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import PreTrainedModel

TENSOR_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def permute_heads(weight: np.ndarray, num_heads: int) -> np.ndarray:
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def tensor_name(name: str) -> str:
    """The file's name for `model.layers.3.mlp.up_proj.weight` and its like."""
    module, _, suffix = name.rpartition(".")
    parts = module.split(".")
    if "layers" in parts:
        return f"blk.{parts[2]}.{TENSOR_NAMES['.'.join(parts[3:])]}.{suffix}"
    return f"{TENSOR_NAMES[module]}.{suffix}"


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    kinds: Mapping[str, Kind] | None = None,
    fields: Mapping[str, Any] | None = None,
    factors: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Write a model and return what its tensors mean, by transformers' names.

    Args:
        model: A Llama, Qwen2 or Qwen3.
        path: The file.
        kinds: How matrices are stored, by a part of their name in the file; F32 where none fits.
        fields: More metadata: strings, numbers, and lists of either.
        factors: By which rotary frequencies are divided.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    for name, value in (fields or {}).items():
        add: Any = writer.add_array if isinstance(value, list) else writer.add_string
        add = writer.add_uint32 if isinstance(value, int) else add
        add = writer.add_float32 if isinstance(value, float) else add
        add(name, value)
    meaning = _add_tensors(writer, model, kinds or {})
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meaning


def _add_tensors(
    writer: gguf.GGUFWriter, model: PreTrainedModel, kinds: Mapping[str, Kind]
) -> dict[str, torch.Tensor]:
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    meaning = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        file_name = tensor_name(name)
        part = file_name.split(".")[-2]
        is_matrix = tensor.dim() == 2
        kind = next((kind for key, kind in kinds.items() if is_matrix and key in part), Kind.F32)
        data = gguf.quantize(tensor.numpy(), kind)
        meaning[name] = torch.from_numpy(gguf.dequantize(data, kind).astype(np.float32))
        if config.model_type == "llama" and part in heads and is_matrix:
            # Of what is stored in bytes, too: a row moves as it is.
            data = permute_heads(data, heads[part])
        writer.add_tensor(file_name, data, raw_dtype=kind)
    return meaning
