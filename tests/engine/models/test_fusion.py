"""What fits is fused, what does not is left alone, and a model fused or not says the same."""

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    Glm4MoeConfig,
    LlamaConfig,
    NemotronConfig,
    Olmo2Config,
    OlmoConfig,
    PersimmonConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    StableLmConfig,
)

from engine.models import fused_layers
from engine.models.causal_lm import CausalLM
from engine.models.fused_mixture import FusedMixture
from engine.models.probe import probe_geometry, self_check
from engine.models.quantized_experts import is_experts

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
GEMMA = Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=8)
FAMILIES = {
    # name: (configuration, fused norms, attentions, MLPs, linears by themselves)
    "llama": (LlamaConfig(**SIZES), 5, 2, 2, 1),
    "qwen3": (Qwen3Config(**SIZES, head_dim=8), 9, 2, 2, 1),
    # GELU in the MLP; norms store their weight less 1.
    "gemma3": (GEMMA, 13, 2, 2, 1),
    # Norms over all heads at once.
    "olmo2": (Olmo2Config(**SIZES), 9, 2, 2, 1),
    # Projections come joined already.
    "phi3": (Phi3Config(**SIZES), 5, 2, 2, 1),
    # A layer whose heads are not turned.
    "smollm3": (SmolLM3Config(**SIZES, no_rope_layers=[1, 0]), 5, 2, 2, 1),
}


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        # Norms are made with weights that are all alike, which would hide a wrong one.
        torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=0.2)
    return model


def kinds(model: CausalLM) -> tuple[int, ...]:
    count = Counter(type(replacement).__name__ for replacement in model.replacements)
    names = ("FusedNorm", "FusedAttention", "FusedMLP", "SingleLinear")
    return tuple(count[name] for name in names)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_fused_as_far_as_its_structure_is_known(family):
    config, *expected = FAMILIES[family]
    model = CausalLM(make(config))
    assert kinds(model) == tuple(expected)
    assert self_check(model, probe_geometry(model)) < 1e-5


def test_nothing_is_replaced_when_kernels_are_not_wanted():
    assert CausalLM(make(LlamaConfig(**SIZES)), use_kernels=False).replacements == []


def test_nothing_is_replaced_in_half_precision():
    assert CausalLM(make(LlamaConfig(**SIZES)).to(torch.bfloat16)).replacements == []


@pytest.mark.parametrize(("name", "place"), [("gate_mul", 2), ("rotate", 1), ("norm_rows", 0)])
def test_a_replacement_that_computes_something_else_is_left_out(monkeypatch, name, place):
    right = getattr(fused_layers, name)
    monkeypatch.setattr(fused_layers, name, lambda *arguments: right(*arguments) * 1.01)
    model = CausalLM(make(LlamaConfig(**SIZES)))
    assert kinds(model)[place] == 0
    assert self_check(model, probe_geometry(model)) < 1e-5


MOE: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# With whether their projections have names that are known.
PARTLY_TURNED: list[tuple[type[PreTrainedConfig], dict[str, Any], bool]] = [
    (NemotronConfig, {}, True),
    (Glm4MoeConfig, MOE, True),
    (PhiConfig, {}, False),
    (StableLmConfig, {}, True),
    (PersimmonConfig, {}, False),
    (Phi3Config, {}, True),
]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize(
    ("kind", "options", "is_known"), PARTLY_TURNED, ids=[c[0].model_type for c in PARTLY_TURNED]
)
def test_a_rotation_of_a_part_of_a_head_turns_that_part(kind, options, is_known, share):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    model = CausalLM(make(kind(**SIZES, **options, rope_parameters=rope)))
    assert kinds(model)[1] == 2 * is_known
    assert self_check(model, probe_geometry(model)) < 1e-5


def test_an_attention_that_turns_neighbouring_numbers_is_not_fused():
    """The kernel turns halves of a head."""
    model = CausalLM(make(CohereConfig(**SIZES)))
    assert kinds(model)[1] == 0
    assert self_check(model, probe_geometry(model)) < 1e-5


@pytest.mark.parametrize(
    ("name", "is_known"), [("silu", True), ("gelu_pytorch_tanh", True), ("gelu", False)]
)
def test_a_gate_is_fused_if_its_activation_is_one_of_ours(name, is_known):
    """The two kinds of GELU differ by less than an output of many numbers may be off."""
    model = CausalLM(make(LlamaConfig(**SIZES, hidden_act=name)))
    assert kinds(model)[2] == 2 * is_known
    assert self_check(model, probe_geometry(model)) < 1e-5


@pytest.mark.parametrize("limit", [0.5, 8.0, 100.0])
def test_an_attention_that_limits_its_values_is_not_fused(limit):
    """Usual values stay below the limit, so that only large ones tell."""
    assert kinds(CausalLM(make(OlmoConfig(**SIZES, clip_qkv=limit))))[1] == 0
    assert kinds(CausalLM(make(OlmoConfig(**SIZES))))[1] == 2


EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def num_mixtures(model: CausalLM) -> int:
    return sum(isinstance(part, FusedMixture) for part in model.replacements)


@pytest.mark.parametrize("normalises", [False, True])
def test_a_block_of_experts_is_one_replacement(normalises):
    """Its shared expert is a gated MLP like any other, and is not packed a second time."""
    shared: dict[str, Any] = {"shared_expert_intermediate_size": 48}
    config = Qwen2MoeConfig(**SIZES, **EXPERTS, **shared, norm_topk_prob=normalises)
    model = CausalLM(make(config))
    assert num_mixtures(model) == 2
    assert kinds(model) == (5, 2, 0, 1)
    assert self_check(model, probe_geometry(model)) < 1e-5


def test_a_router_that_chooses_otherwise_is_left_alone():
    """By sigmoids and a bias that has no part in what the chosen count."""
    model = make(Glm4MoeConfig(**SIZES, **MOE))
    model.model.layers[1].mlp.gate.e_score_correction_bias.normal_()
    taken = CausalLM(model)
    assert num_mixtures(taken) == 0
    assert self_check(taken, probe_geometry(taken)) < 1e-5


def test_experts_too_large_to_pack_are_left_alone_and_the_rest_is_not(monkeypatch, caplog):
    many = {"num_experts": 64, "head_dim": 8}
    model = make(Qwen3MoeConfig(**SIZES, **EXPERTS | many))
    experts = [m for m in model.modules() if is_experts(m)]
    num_bytes = sum(p.numel() * 4 for m in experts for p in m.parameters())
    monkeypatch.setattr("engine.models.fusion.available_host_bytes", lambda: 4 * num_bytes)
    taken = CausalLM(model)
    assert num_mixtures(taken) == 0
    assert kinds(taken) == (9, 2, 0, 1)
    assert "experts" in caplog.text


def test_a_model_is_left_whole_by_the_search():
    model = make(LlamaConfig(**SIZES))
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    CausalLM(model)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


def test_a_model_too_large_to_pack_keeps_its_own_products(monkeypatch, caplog):
    monkeypatch.setattr("engine.models.fusion.MAX_MEMORY_SHARE", 0.0)
    assert CausalLM(make(LlamaConfig(**SIZES))).replacements == []
    assert "not done" in caplog.text
