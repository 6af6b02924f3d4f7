"""Tiny random models of each family that the engine serves, with weights that make mistakes show.

Initialised as transformers does it, a tiny model repeats itself and attends to everything alike,
so that wrong keys would go unnoticed. Here scores are spread and logits lie wide apart.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCAB_SIZE = 199
MAX_POSITIONS = 512
WINDOW = 8

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
ALTERNATING = ["sliding_attention", "full_attention"]
HALF_TURNED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


def _gpt2() -> hf.PretrainedConfig:
    return hf.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=False,
        scale_attn_by_inverse_layer_idx=True,
    )


def _gpt_oss() -> hf.PretrainedConfig:
    return hf.GptOssConfig(
        **SHAPE,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        layer_types=ALTERNATING,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def _deepseek_v3() -> hf.PretrainedConfig:
    return hf.DeepseekV3Config(
        **SHAPE | {"num_key_value_heads": 4},
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=6,
    )


FAMILIES: dict[str, Callable[[], hf.PretrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**SHAPE),
    "qwen2": lambda: hf.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: hf.Qwen3Config(**SHAPE, head_dim=16),
    "gemma2": lambda: hf.Gemma2Config(
        **SHAPE,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=ALTERNATING,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=1.0,
        final_logit_softcapping=30.0,
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **SHAPE,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=ALTERNATING,
        query_pre_attn_scalar=8,
    ),
    "mistral": lambda: hf.MistralConfig(**SHAPE, sliding_window=WINDOW),
    "phi3": lambda: hf.Phi3Config(**SHAPE, rope_parameters=HALF_TURNED),
    "gpt2": _gpt2,
    "gpt_neox": lambda: hf.GPTNeoXConfig(
        **{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}
    ),
    "mixtral": lambda: hf.MixtralConfig(**SHAPE, num_local_experts=4),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "gpt_oss": _gpt_oss,
    "stablelm": lambda: hf.StableLmConfig(**SHAPE, use_parallel_residual=True),
    "olmo2": lambda: hf.Olmo2Config(**SHAPE),
    "granite": lambda: hf.GraniteConfig(
        **SHAPE, attention_multiplier=0.5, embedding_multiplier=2.0, residual_multiplier=0.5
    ),
    "smollm3": lambda: hf.SmolLM3Config(**SHAPE, no_rope_layers=[1, 0]),
    "cohere": lambda: hf.CohereConfig(**SHAPE, logit_scale=0.5),
    "deepseek_v3": _deepseek_v3,
}
SLIDING_FAMILIES = ("qwen2", "gemma2", "gemma3", "mistral", "gpt_oss")


def make_family(name: str, **changes: Any) -> hf.PreTrainedModel:
    """Return a random model of one family in fp32; equal calls make equal models.

    Args:
        name: A key of `FAMILIES`.
        **changes: Fields of its configuration to set.
    """
    config = FAMILIES[name]()
    for field, value in changes.items():
        setattr(config, field, value)
    return make_random_model(config)


def make_random_model(config: hf.PretrainedConfig, seed: int = 1) -> hf.PreTrainedModel:
    """Return a model of this configuration, with weights that spread scores and logits."""
    # The eager attention is the only one of transformers' own that honours softcap and sinks.
    # What is added to below was drawn by it.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval()
    generator = torch.Generator().manual_seed(seed)

    def normal(weight: torch.Tensor, std: float) -> torch.Tensor:
        return torch.empty_like(weight).normal_(0, std, generator=generator)

    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(normal(weight, 0.2))
            else:
                weight.copy_(normal(weight, 0.25))
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
            embedding.weight.copy_(normal(embedding.weight, 1.0))
    made: hf.PreTrainedModel = model
    return made
