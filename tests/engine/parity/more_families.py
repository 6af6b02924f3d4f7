"""Families beside the main ones: learned positions, parallel blocks, shared keys, odd heads."""

from collections.abc import Callable
from typing import Any

import transformers as hf

from tests.engine.parity.families import ALTERNATING, MAX_POSITIONS, SHAPE, VOCAB_SIZE, WINDOW

GPT_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": MAX_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
SLIDING: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ALTERNATING}
WITHOUT_GROUPS = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}


def _opt() -> hf.PretrainedConfig:
    return hf.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        ffn_dim=64,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        word_embed_proj_dim=32,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=False,
    )


def _gemma4() -> hf.PretrainedConfig:
    return hf.Gemma4TextConfig(
        **SHAPE,
        **SLIDING,
        head_dim=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=8,
    )


MORE_FAMILIES: dict[str, Callable[[], hf.PretrainedConfig]] = {
    "opt": _opt,
    "gptj": lambda: hf.GPTJConfig(**GPT_SHAPE, rotary_dim=4),
    "gpt_bigcode": lambda: hf.GPTBigCodeConfig(**GPT_SHAPE, multi_query=True),
    "bert as a decoder": lambda: hf.BertConfig(**WITHOUT_GROUPS, is_decoder=True),
    "biogpt": lambda: hf.BioGptConfig(**WITHOUT_GROUPS),
    "phi": lambda: hf.PhiConfig(**SHAPE),
    "starcoder2": lambda: hf.Starcoder2Config(**SHAPE, sliding_window=WINDOW),
    "olmo3": lambda: hf.Olmo3Config(**SHAPE, **SLIDING),
    "exaone4": lambda: hf.Exaone4Config(**SHAPE, **SLIDING),
    "cohere2": lambda: hf.Cohere2Config(**SHAPE, **SLIDING),
    "gemma": lambda: hf.GemmaConfig(**SHAPE, head_dim=8),
    "gemma4": _gemma4,
    "glm4": lambda: hf.Glm4Config(**SHAPE, head_dim=8),
    "helium": lambda: hf.HeliumConfig(**SHAPE, head_dim=8),
    "nemotron": lambda: hf.NemotronConfig(**SHAPE),
    "olmoe": lambda: hf.OlmoeConfig(**SHAPE, **EXPERTS, num_experts=4),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **SHAPE,
        **EXPERTS,
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "glm4_moe": lambda: hf.Glm4MoeConfig(
        **SHAPE, **EXPERTS, n_routed_experts=4, moe_intermediate_size=16
    ),
    "granite_moe": lambda: hf.GraniteMoeConfig(**SHAPE, **EXPERTS, num_local_experts=4),
}
