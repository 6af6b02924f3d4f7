"""A model's own attention over keys and values rounded as a cache of some format does it.

What an engine with such a cache computes, without an engine: rows are rounded when they are stored,
each by itself, and everything that reads them reads what they mean then.
"""

import sys
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from engine.cache.row_formats import choose_rows, decode_rows, encode_rows


def round_keys_and_values(model: PreTrainedModel, kv_cache_dtype: str) -> None:
    """Let a model attend as over a cache of this format, by the attention that it has.

    Args:
        model: Changed; its attention is "eager" or "sdpa".
        kv_cache_dtype: As in the engine's configuration.
    """
    rows = choose_rows(kv_cache_dtype, model.dtype, model.device)
    base = str(model.config._attn_implementation).removeprefix("rounded_").partition(" ")[0]
    known: Any = AttentionInterface()

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **options: Any,
    ) -> Any:
        own: Any = sys.modules[type(module).__module__]
        attention = own.eager_attention_forward if base == "eager" else known[base]
        rounded = (decode_rows(encode_rows(x, rows), x.dtype) for x in (key, value))
        return attention(module, query, *rounded, mask, **options)

    name = f"rounded_{base} {kv_cache_dtype}"
    AttentionInterface.register(name, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
    model.set_attn_implementation(name)
