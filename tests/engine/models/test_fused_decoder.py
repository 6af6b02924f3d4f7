"""A decoder in one call: where it is used, that it says the same, and that rows stay strangers."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from engine.attention.cpu import CpuBackend
from engine.attention.paged_attention import PagedAttention
from engine.attention.torch_reference import TorchReferenceBackend
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache
from engine.kernels.cpu import build as kernel_build
from engine.kernels.cpu.decoder import Decoder
from engine.kernels.cpu.library import load_library, open_library
from engine.models import fused_decoder, fusion
from engine.models.causal_lm import CausalLM
from engine.models.fused_decoder import FusedDecoder
from engine.models.probe import probe_geometry
from tests.engine.kernels.instruction_sets import runnable

PAGE = 4
SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "head_dim": 10,
}  # fmt: skip
NO_HEAD_DIM = {name: size for name, size in SIZES.items() if name != "head_dim"}
JOINED = {
    "llama": LlamaConfig(**SIZES),
    "llama_biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=False),
    "mistral_windowed": MistralConfig(**SIZES, sliding_window=5),
    "qwen2": Qwen2Config(**NO_HEAD_DIM),
    "qwen3": Qwen3Config(**SIZES),
    "granite_plain": GraniteConfig(**NO_HEAD_DIM),
}
LEFT_ALONE = {
    "granite": GraniteConfig(**NO_HEAD_DIM, residual_multiplier=0.22, embedding_multiplier=12.0),
    "granite_embedding": GraniteConfig(**NO_HEAD_DIM, embedding_multiplier=12.0),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=8),
    "olmo2": Olmo2Config(**NO_HEAD_DIM),
    "phi3": Phi3Config(**NO_HEAD_DIM),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
    ),
}


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=0.2)
    return CausalLM(model)


def decoder_of(model):
    found = [part for part in model.in_place if isinstance(part, FusedDecoder)]
    assert len(found) <= 1
    return found[0] if found else None


def make_inputs(spans, tables):
    """Return a step of these (first position, count) of requests with these block tables."""
    positions = [p for first, count in spans for p in range(first, first + count)]
    rows = [row for row, (_, count) in enumerate(spans) for _ in range(count)]
    starts = [0]
    for _, count in spans:
        starts.append(starts[-1] + count)

    def integers(values):
        return torch.tensor(list(values), dtype=torch.int64)

    return BatchInputs(
        input_ids=integers((31 * p + 7 * row) % 97 for p, row in zip(positions, rows, strict=True))[
            None
        ],
        position_ids=integers(positions)[None],
        slots=integers(
            tables[row][p // PAGE] * PAGE + p % PAGE for p, row in zip(positions, rows, strict=True)
        ),
        block_table=torch.tensor(tables, dtype=torch.int32),
        query_starts=starts,
        context_lengths=[first + count for first, count in spans],
        sample_indices=integers(stop - 1 for stop in starts[1:]),
    )


def make_attention(model, backend_type=CpuBackend):
    geometry = probe_geometry(model)
    cache = PagedCache(geometry.layers, 64, PAGE, dtype=torch.float32, device=torch.device("cpu"))
    library = load_library()
    assert library is not None
    backend = CpuBackend(PAGE, library) if backend_type is CpuBackend else backend_type(PAGE)
    return PagedAttention(cache, backend, geometry.layer_indices)


def run(model, attention, inputs):
    attention.begin_step(inputs)
    return model.forward(inputs.input_ids, inputs.position_ids, inputs.sample_indices, attention)


# One request's blocks lie among the others'.
TABLES = [[3, 17, 40, 5, 6], [8, 2, 33, 9, 60], [50, 1, 0, 30, 31]]
STEPS = [
    [(0, 9), (0, 1), (0, 14)],
    [(9, 1), (1, 1), (14, 1)],
    [(10, 1), (2, 13), (15, 1)],
    [(11, 1), (15, 1), (16, 1)],
]


def run_all(model):
    attention = make_attention(model)
    return torch.cat([run(model, attention, make_inputs(spans, TABLES)) for spans in STEPS])


@pytest.mark.parametrize("family", JOINED)
def test_a_decoder_in_one_call_gives_what_its_layers_give(family):
    model = make(JOINED[family])
    assert decoder_of(model) is not None
    whole, single = make_attention(model), make_attention(model)
    for spans in STEPS:
        inputs = make_inputs(spans, TABLES)
        ours = run(model, whole, inputs)
        with model.in_use(single, model.replacements):
            single.begin_step(inputs)
            layers = model.compute_logits(
                inputs.input_ids, inputs.position_ids, inputs.sample_indices
            )
        scale = float(layers.abs().max())
        assert (ours - layers).abs().max() <= 1e-5 * scale


@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
def test_every_build_of_the_kernels_gives_the_same(monkeypatch, target):
    path = kernel_build.build(target)
    assert path is not None
    library = open_library(path)
    own = run_all(make(JOINED["qwen3"]))
    for module in (fusion, fused_decoder):
        monkeypatch.setattr(module, "load_library", lambda: library)
    model = make(JOINED["qwen3"])
    assert decoder_of(model).library is library
    other = run_all(model)
    assert (own - other).abs().max() <= 1e-5 * own.abs().max()


@pytest.mark.parametrize("family", LEFT_ALONE)
def test_a_decoder_of_another_structure_is_left_alone(family):
    assert decoder_of(make(LEFT_ALONE[family])) is None


def test_a_row_is_bitwise_the_same_in_any_batch_and_chunk():
    model = make(JOINED["qwen3"])
    crowd, alone = make_attention(model), make_attention(model)
    together = [run(model, crowd, make_inputs(spans, TABLES)) for spans in STEPS]
    for row, table in enumerate(TABLES):
        length = STEPS[0][row][1]
        # The same positions, one at a time where the crowd took a chunk.
        for position in range(length):
            inputs = make_inputs([(0, 0)] * row + [(position, 1)], [[0] * 5] * row + [table])
            logits = run(model, alone, inputs)[-1]
        assert torch.equal(logits, together[0][row])


def test_a_row_is_bitwise_the_same_with_any_number_of_threads():
    model = make(JOINED["llama"])
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
    model = make(JOINED["llama"])
    ours, reference = make_attention(model), make_attention(model, TorchReferenceBackend)
    inputs = make_inputs(STEPS[0], TABLES)
    difference = run(model, ours, inputs) - run(model, reference, inputs)
    assert 0 < difference.abs().max() < 1e-3


def test_changed_weights_are_used_from_then_on():
    model = make(JOINED["llama"])
    inputs = make_inputs(STEPS[0], TABLES)
    before = run(model, make_attention(model), inputs)
    with torch.no_grad():
        model.hf_model.model.layers[1].mlp.down_proj.weight.mul_(2.0)
    after = run(model, make_attention(model), inputs)
    fresh = run(CausalLM(model.hf_model), make_attention(model), inputs)
    assert not torch.equal(before, after)
    assert torch.equal(after, fresh)


def test_the_model_is_its_own_again_after_a_step():
    model = make(JOINED["llama"])
    run(model, make_attention(model), make_inputs(STEPS[0], TABLES))
    assert "forward" not in model.hf_model.model.__dict__
    assert all("forward" not in module.__dict__ for module in model.hf_model.modules())


def test_a_call_that_computes_something_else_is_not_used(monkeypatch):
    right = Decoder.run

    def wrong(self, x, cosines, sines, step):
        right(self, x, cosines, sines, step)
        x.mul_(1.01).add_(0.01)

    monkeypatch.setattr(Decoder, "run", wrong)
    assert decoder_of(make(JOINED["llama"])) is None
