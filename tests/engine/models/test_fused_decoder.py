"""A decoder in one call: where it is used, that it says the same, and that rows stay strangers."""

import logging

import pytest
import torch

from engine.attention.torch_reference import TorchReferenceBackend
from engine.kernels.cpu import build as kernel_build
from engine.kernels.cpu.decoder import Decoder
from engine.kernels.cpu.library import open_library
from engine.models import fused_decoder, fusion
from engine.models.causal_lm import CausalLM
from engine.models.weight_formats import store_weights
from tests.engine.kernels.instruction_sets import runnable
from tests.engine.models.decoders import (
    JOINED,
    LEFT_ALONE,
    STEPS,
    TABLES,
    decoder_of,
    make,
    make_attention,
    make_hf_model,
    make_inputs,
    run,
    run_all,
)

# Between them they have every part that a layer may have.
SEVERAL = (
    "qwen3", "gemma2", "gemma3", "phi3_partly_turned", "olmo2", "granite", "smollm3", "stablelm",
    "mixtral", "qwen2_moe", "qwen3_moe_partly_dense",
)  # fmt: skip
# Sizes with which layers can be joined when they are packed.
EVEN = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip


def run_layers(model, attention, inputs):
    """Compute a step layer by layer, each of their parts replaced."""
    with model.in_use(attention, model.replacements):
        attention.begin_step(inputs)
        return model.compute_logits(inputs.input_ids, inputs.position_ids, inputs.sample_indices)


@pytest.mark.parametrize("family", JOINED)
def test_a_decoder_in_one_call_gives_what_its_layers_give(family):
    model = make(family)
    assert decoder_of(model) is not None
    whole, single = make_attention(model), make_attention(model)
    for spans in STEPS:
        inputs = make_inputs(spans, TABLES)
        ours, layers = run(model, whole, inputs), run_layers(model, single, inputs)
        scale = float(layers.abs().max())
        assert (ours - layers).abs().max() <= 1e-5 * scale


@pytest.mark.parametrize("family", JOINED)
def test_a_step_is_one_call_and_says_what_the_unmodified_model_says(family, monkeypatch):
    calls: list[None] = []
    right = Decoder.run
    monkeypatch.setattr(Decoder, "run", lambda *arguments: calls.append(right(*arguments)))
    model = make(family)
    attention, inputs = make_attention(model), make_inputs([(0, 14)], TABLES[:1])
    calls.clear()
    ours = run(model, attention, inputs)[-1]
    assert len(calls) == 1
    own = model.own_logits(inputs.input_ids)[-1]
    assert (ours - own).abs().max() <= 2e-5 * own.abs().max()


@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("family", SEVERAL)
def test_every_build_of_the_kernels_gives_the_same(monkeypatch, target, family):
    path = kernel_build.build(target)
    assert path is not None
    library = open_library(path)
    own = run_all(make(family))
    for module in (fusion, fused_decoder):
        monkeypatch.setattr(module, "load_library", lambda: library)
    model = make(family)
    assert decoder_of(model).library is library
    other = run_all(model)
    assert (own - other).abs().max() <= 1e-5 * own.abs().max()


def make_packed(family, weights, **options):
    hf_model = make_hf_model(JOINED[family](), **EVEN)
    store_weights(hf_model, weights, use_kernels=True, **options)
    return CausalLM(hf_model)


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("family", SEVERAL)
def test_packed_weights_go_through_the_same_call(family, weights):
    model = make_packed(family, weights)
    assert decoder_of(model) is not None
    inputs = make_inputs([(0, 14)], TABLES[:1])
    ours, own = (
        run(model, make_attention(model), inputs)[-1],
        model.own_logits(inputs.input_ids)[-1],
    )
    assert (ours - own).abs().max() <= 1e-4 * own.abs().max()


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("family", SEVERAL)
def test_rounded_activations_give_bitwise_what_the_layers_give(family, weights):
    """One bit more or less would let a later layer round the other way, and so on."""
    model = make_packed(family, weights, activations="int8")
    assert decoder_of(model) is not None
    whole, single = make_attention(model), make_attention(model)
    for spans in STEPS:
        inputs = make_inputs(spans, TABLES)
        assert torch.equal(run(model, whole, inputs), run_layers(model, single, inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("family", SEVERAL)
def test_rounded_keys_and_values_are_those_that_the_layers_keep(family, dtype):
    """But for one that lies between two codes now and then: sums are rounded elsewhere."""
    model = make(family)
    attentions = [make_attention(model, dtype=rows) for rows in (dtype, dtype, torch.float32)]
    to_layers = to_plain = 0.0
    for spans in STEPS:
        inputs = make_inputs(spans, TABLES)
        ours = run(model, attentions[0], inputs)
        to_layers += float((ours - run_layers(model, attentions[1], inputs)).abs().mean())
        to_plain += float((ours - run(model, attentions[2], inputs)).abs().mean())
    assert to_layers < 0.05 * to_plain


@pytest.mark.parametrize("family", LEFT_ALONE)
def test_a_decoder_of_another_structure_is_left_alone(family):
    assert decoder_of(make(family)) is None


@pytest.mark.parametrize("family", JOINED)
def test_a_row_is_bitwise_the_same_in_any_batch_and_chunk(family):
    model = make(family)
    crowd, alone = make_attention(model), make_attention(model)
    together = [run(model, crowd, make_inputs(spans, TABLES)) for spans in STEPS]
    for row, table in enumerate(TABLES):
        length = STEPS[0][row][1]
        # The same positions, one at a time where the crowd took a chunk.
        for position in range(length):
            inputs = make_inputs([(0, 0)] * row + [(position, 1)], [[0] * 5] * row + [table])
            logits = run(model, alone, inputs)[-1]
        assert torch.equal(logits, together[0][row])


@pytest.mark.parametrize("family", JOINED)
def test_a_row_is_bitwise_the_same_with_any_number_of_threads(family):
    model = make(family)
    num_threads = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run_all(model))
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_another_attention_gets_its_calls():
    model = make("llama")
    ours, reference = make_attention(model), make_attention(model, TorchReferenceBackend)
    inputs = make_inputs(STEPS[0], TABLES)
    difference = run(model, ours, inputs) - run(model, reference, inputs)
    assert 0 < difference.abs().max() < 1e-3


def test_changed_weights_are_used_from_then_on():
    model = make("llama")
    inputs = make_inputs(STEPS[0], TABLES)
    before = run(model, make_attention(model), inputs)
    with torch.no_grad():
        model.hf_model.model.layers[1].mlp.down_proj.weight.mul_(2.0)
    after = run(model, make_attention(model), inputs)
    fresh = run(CausalLM(model.hf_model), make_attention(model), inputs)
    assert not torch.equal(before, after)
    assert torch.equal(after, fresh)


def test_the_model_is_its_own_again_after_a_step():
    model = make("llama")
    run(model, make_attention(model), make_inputs(STEPS[0], TABLES))
    assert "forward" not in model.hf_model.model.__dict__
    assert all("forward" not in module.__dict__ for module in model.hf_model.modules())


def _wrong(right):
    def run(self, x, rotations, step):
        right(self, x, rotations, step)
        x.mul_(1.01).add_(0.01)

    return run


def _failing(_):
    def run(self, x, rotations, step):
        raise ValueError("no such thing")

    return run


@pytest.mark.parametrize("make_run", [_wrong, _failing])
def test_a_call_that_computes_something_else_is_not_used(make_run, monkeypatch, caplog):
    monkeypatch.setattr(Decoder, "run", make_run(Decoder.run))
    with caplog.at_level(logging.INFO):
        assert decoder_of(make("llama")) is None
    assert "LlamaModel compute one after another" in caplog.text


def test_nothing_is_said_of_a_decoder_that_is_one_call_or_of_another_structure(caplog):
    with caplog.at_level(logging.INFO):
        make("llama")
        make("cohere")
    assert caplog.text == ""


@pytest.mark.parametrize("shape", [(14, 12), (14, 5), (1, 10)])
def test_angles_that_are_not_those_of_the_heads_are_refused(shape, monkeypatch):
    """The kernel would read beyond them, or write beyond a head."""
    model = make("llama")
    right = Decoder.run

    def run_with_others(self, x, rotations, step):
        right(self, x, [(torch.ones(shape), torch.zeros(shape))], step)

    monkeypatch.setattr(Decoder, "run", run_with_others)
    attention, inputs = make_attention(model), make_inputs([(0, 14)], TABLES[:1])
    with pytest.raises(ValueError, match="angles of the shapes"):
        run(model, attention, inputs)
