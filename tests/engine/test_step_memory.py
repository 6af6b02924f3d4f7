"""What a step is said to need is at least what the kernels really take for it."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

import engine
from engine import ContinuousBatchingConfig
from engine.cache_budget import step_bytes

NUM_ROWS = 256
SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    **SIZES,
    "num_experts_per_tok": 4,
    "num_experts": 8,
    "intermediate_size": 32,
}
HEADS: dict[str, Any] = {"head_dim": 16}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, intermediate_size=160),
    "mixtral": MixtralConfig(
        **SIZES, intermediate_size=160, num_experts_per_tok=4, num_local_experts=8
    ),
    "qwen3_moe": Qwen3MoeConfig(**MIXTURE, **HEADS, moe_intermediate_size=32),
    # Beside the others an expert that every row goes to, and that is wider.
    "qwen2_moe": Qwen2MoeConfig(
        **MIXTURE, moe_intermediate_size=32, shared_expert_intermediate_size=224
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_workspace_of_a_step_is_reserved(monkeypatch, name):
    torch.manual_seed(0)
    model = engine.wrap(AutoModelForCausalLM.from_config(CONFIGS[name]))
    assert "FusedDecoder" in {type(one).__name__ for one in model.causal_lm.in_place}
    taken: list[int] = []
    empty = torch.empty

    def note(*size: Any, **options: Any) -> torch.Tensor:
        made = empty(*size, **options)
        if size and isinstance(size[0], int) and len(size) == 1:
            taken.append(made.nbytes)
        return made

    config = ContinuousBatchingConfig(num_blocks=8, page_size=64, max_batch_tokens=NUM_ROWS)
    prompt = [[3 + n % 90 for n in range(NUM_ROWS)]]
    monkeypatch.setattr(torch, "empty", note)
    model.generate_batch(prompt, continuous_batching_config=config, max_new_tokens=1, warmup=False)
    reserved = step_bytes(model.causal_lm, NUM_ROWS, 1)
    assert max(taken) <= reserved < 4 * max(taken)
