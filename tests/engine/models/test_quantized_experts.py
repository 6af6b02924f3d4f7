"""Experts with packed weights: a model with them says what its rounded weights say."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig

import engine
from engine.errors import UnsupportedModelError
from engine.models.causal_lm import CausalLM
from engine.models.fused_decoder import FusedDecoder
from engine.models.quantized_experts import QuantizedExperts, QuantizedStack, is_experts
from engine.models.quantized_modules import QuantizedModule
from engine.models.weight_formats import has_int8_activations, store_weights

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "num_experts_per_tok": 2,
}  # fmt: skip
CONFIGS = {
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
    "qwen2_moe": Qwen2MoeConfig(
        **SIZES, num_experts=6, moe_intermediate_size=32, shared_expert_intermediate_size=64
    ),
}
PROMPTS = [[5, 17, 3, 88], [90, 1], [7, 7, 7, 2, 11, 40]]


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=0.2)
    return model.requires_grad_(False).eval()


def unpacked_copy(packed, config):
    """The same model with ordinary modules, holding the numbers that the packed weights mean."""
    model = make(config)
    modules = dict(packed.named_modules())
    for name, module in model.named_modules():
        if isinstance(modules[name], QuantizedExperts):
            for matrices, stack in (
                (module.gate_up_proj, modules[name].gate_up_proj),
                (module.down_proj, modules[name].down_proj),
            ):
                matrices.copy_(stack.numbers().view(matrices.shape))
        elif isinstance(modules[name], QuantizedModule):
            module.weight.copy_(modules[name].numbers())
    return model


def generate(model):
    outputs = model.generate_batch(PROMPTS, max_new_tokens=12, do_sample=False)
    return [output.generated_tokens for output in outputs.values()]


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_engine_answers_what_the_unpacked_model_generates(name, weights):
    packed = make(CONFIGS[name])
    model = engine.wrap(packed, weights=weights)
    assert model.self_check_error < 1e-4
    assert any(isinstance(part, FusedDecoder) for part in model.causal_lm.in_place)
    assert not any(is_experts(module) for module in packed.modules())
    plain = unpacked_copy(packed, CONFIGS[name])
    expected = [
        plain.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        for prompt in PROMPTS
    ]
    assert generate(model) == [
        output[0, len(prompt) :].tolist() for prompt, output in zip(PROMPTS, expected, strict=True)
    ]


def test_the_model_is_one_by_itself():
    packed = make(CONFIGS["qwen2_moe"])
    store_weights(packed, "int8", use_kernels=True)
    ids = torch.tensor(PROMPTS[2:])
    own = packed(ids).logits
    expected = unpacked_copy(packed, CONFIGS["qwen2_moe"])(ids).logits
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)


def test_activations_of_8_bits_are_known_to_be_rounded():
    packed = make(CONFIGS["mixtral"])
    store_weights(packed, "int4", use_kernels=True, activations="int8")
    block = packed.model.layers[0].mlp
    assert has_int8_activations(block)
    assert not has_int8_activations(block.gate)
    model = CausalLM(packed)
    assert any(isinstance(part, FusedDecoder) for part in model.in_place)


def test_an_ordinary_checkpoint_is_rounded_as_it_is_loaded():
    packed, other = make(CONFIGS["mixtral"]), make(CONFIGS["mixtral"])
    store_weights(packed, "int8", use_kernels=True)
    for parameter in other.parameters():
        parameter.mul_(0.5)
    packed.load_state_dict(other.state_dict())
    store_weights(other, "int8", use_kernels=True)
    stacks = [(n, m) for n, m in packed.named_modules() if isinstance(m, QuantizedStack)]
    assert len(stacks) == 4
    for name, stack in stacks:
        assert torch.equal(stack.panels, other.get_submodule(name).panels)


def test_changed_experts_are_used_from_then_on():
    packed = make(CONFIGS["mixtral"])
    model = engine.wrap(packed, weights="int8")
    before = generate(model)
    stack = packed.model.layers[1].mlp.experts.down_proj
    stack.set_weight(stack.numbers().flip(0))
    assert generate(model) != before
    assert generate(model) == generate(engine.wrap(packed))


def test_experts_that_end_within_a_panel_stay_as_they_are():
    config = MixtralConfig(**SIZES | {"intermediate_size": 40}, num_local_experts=4)
    packed = make(config)
    model = engine.wrap(packed, weights="int8")
    assert sum(is_experts(module) for module in packed.modules()) == 2
    assert model.self_check_error < 1e-5


def test_auto_looks_at_experts_too():
    exact = make(CONFIGS["mixtral"]).bfloat16().float()
    inexact = make(CONFIGS["mixtral"]).bfloat16().float()
    inexact.model.layers[1].mlp.experts.down_proj[3, 2, 1] = 0.1234567
    for model, is_packed in ((exact, True), (inexact, False)):
        store_weights(model, "auto", use_kernels=True)
        assert any(isinstance(m, QuantizedExperts) for m in model.modules()) == is_packed


def test_experts_that_a_format_cannot_hold_are_named():
    model = make(CONFIGS["mixtral"])
    model.model.layers[1].mlp.experts.down_proj[3, 2, 1] = float("inf")
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.experts"):
        store_weights(model, "int8", use_kernels=True)
