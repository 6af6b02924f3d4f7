"""A model of packed weights says what its rounded weights say; what cannot be packed is refused."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

import engine
from engine.errors import UnsupportedConfigError, UnsupportedModelError
from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.quantized_linear import has_tile_unit
from engine.models import weight_formats
from engine.models.quantized_modules import QuantizedEmbedding, QuantizedLinear, QuantizedModule
from engine.models.weight_formats import FORMATS, has_int8_activations, store_weights
from engine.models.weights import WeightWatch

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
CONFIGS = {
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    # An MLP whose parts end within a panel, and biases on query, key and value.
    "untied": Qwen2Config(**{**SIZES, "intermediate_size": 80}, tie_word_embeddings=False),
}
# bf16x3 needs a tile unit; that it is refused without one is tested below.
HAS_TILE_UNIT = has_tile_unit(kernels())
HERE = [name for name in FORMATS if name != "bf16x3" or HAS_TILE_UNIT]
PROMPTS = [[5, 17, 3, 88], [90, 1], [7, 7, 7, 2, 11, 40]]


def make(config, *, scale=0.2):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=scale)
    return model.requires_grad_(False)


def unpacked_copy(packed, config):
    """The same model with ordinary layers, holding the numbers that the packed weights mean."""
    model = make(config)
    modules = dict(packed.named_modules())
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(modules[name], QuantizedModule):
                module.weight.copy_(modules[name].numbers())
    return model


def generate(model, inputs=PROMPTS, **options):
    outputs = model.generate_batch(inputs, max_new_tokens=12, do_sample=False, **options)
    return [output.generated_tokens for output in outputs.values()]


@pytest.mark.parametrize("weights", HERE)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_engine_answers_what_the_unpacked_model_generates(name, weights):
    packed = make(CONFIGS[name])
    model = engine.wrap(packed, weights=weights)
    assert model.self_check_error < 1e-5
    # Layers whose parts end within a panel cannot be one product, nor all layers one call.
    kinds = {type(replacement).__name__ for replacement in model.causal_lm.in_place}
    assert ("FusedDecoder" in kinds) == (name == "tied")
    plain = unpacked_copy(packed, CONFIGS[name])
    expected = [
        plain.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        for prompt in PROMPTS
    ]
    assert generate(model) == [
        output[0, len(prompt) :].tolist() for prompt, output in zip(PROMPTS, expected, strict=True)
    ]
    # Not merely the same tokens: the same numbers, bit by bit, as with float32 weights packed.
    assert generate(engine.wrap(plain)) == generate(model)


@pytest.mark.parametrize("weights", HERE)
def test_no_float32_matrix_is_left(weights):
    model = make(CONFIGS["tied"])
    engine.wrap(model, weights=weights)
    assert all(parameter.dim() == 1 for parameter in model.parameters())
    assert isinstance(model.get_input_embeddings(), QuantizedEmbedding)
    assert isinstance(model.get_output_embeddings(), QuantizedLinear)
    # Tied: one matrix. Query, key and value are parts of one tensor, too.
    tensors = {tensor.untyped_storage().data_ptr() for tensor in model.buffers()}
    rotations = 2
    assert len(tensors) <= 1 + 2 * (1 + 1 + 2 + 1) + rotations
    assert model.get_input_embeddings().panels is model.get_output_embeddings().panels


def test_auto_takes_bf16_only_where_it_loses_nothing(tmp_path):
    exact, inexact = make(CONFIGS["tied"]), make(CONFIGS["tied"])
    exact.to(torch.bfloat16).float()
    for model, kind in ((exact, QuantizedLinear), (inexact, torch.nn.Linear)):
        expected = generate(engine.wrap(copy.deepcopy(model)))
        folder = tmp_path / kind.__name__
        model.save_pretrained(folder)
        loaded = engine.load(folder, dtype="float32")
        assert type(loaded.hf_model.get_output_embeddings()) is kind
        assert generate(loaded) == expected


def test_auto_leaves_a_model_alone_that_kernels_cannot_compute(monkeypatch):
    for dtype, use_kernels in ((torch.bfloat16, True), (torch.float32, False)):
        model = make(CONFIGS["tied"]).to(torch.bfloat16).to(dtype)
        store_weights(model, "auto", use_kernels=use_kernels)
        assert type(model.lm_head) is torch.nn.Linear
    monkeypatch.setattr(weight_formats, "load_library", lambda: None)
    model = make(CONFIGS["tied"]).to(torch.bfloat16).float()
    store_weights(model, "auto", use_kernels=True)
    assert type(model.lm_head) is torch.nn.Linear


def test_what_cannot_be_had_is_refused_by_name(monkeypatch):
    llama = CONFIGS["tied"]
    refusals: list[tuple[Any, dict[str, Any], str]] = [
        (make(llama), {"use_kernels": False}, "use_kernels is False"),
        (make(llama).to(torch.bfloat16), {}, "dtype is torch.bfloat16"),
        (make(llama).to("meta"), {}, "the model is on meta"),
    ]
    for model, options, reason in refusals:
        with pytest.raises(UnsupportedConfigError, match=reason) as refusal:
            engine.wrap(model, weights="int8", **options)
        assert refusal.value.field == "weights"
    with pytest.raises(UnsupportedConfigError, match="'int3'; use auto, fp32"):
        engine.wrap(make(llama), weights="int3")
    monkeypatch.setattr(weight_formats, "load_library", lambda: None)
    with pytest.raises(UnsupportedConfigError, match="install a C\\+\\+ compiler"):
        engine.wrap(make(llama), weights="bf16")


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", CONFIGS)
def test_activations_of_eight_bits_answer_what_the_model_itself_generates(name, weights):
    """The packed model by itself, which computes module by module, is the reference."""
    packed = make(CONFIGS[name])
    model = engine.wrap(packed, weights=weights, activations="int8")
    assert has_int8_activations(packed)
    kinds = {type(replacement).__name__ for replacement in model.causal_lm.in_place}
    assert ("FusedDecoder" in kinds) == (name == "tied")
    assert model.self_check_error < 1e-2
    plain = unpacked_copy(packed, CONFIGS[name])
    ids = torch.tensor([PROMPTS[2]])
    exact, rounded = plain(ids).logits, packed(ids).logits
    assert 0 < float((exact - rounded).abs().max() / exact.abs().max()) < 0.1
    # One after another and together: the same answers, by the same numbers.
    alone = [generate(model, inputs=[prompt])[0] for prompt in PROMPTS]
    assert alone == generate(model)


@pytest.mark.parametrize(
    ("weights", "activations"), [("fp32", "fp32"), ("int8", "fp32"), ("int4", "int8")]
)
def test_without_fusion_a_model_says_the_same_by_its_own_modules(weights, activations):
    options: Any = {"weights": weights, "activations": activations}
    fused = engine.wrap(make(CONFIGS["tied"]), **options)
    plain = engine.wrap(make(CONFIGS["tied"]), use_fusion=False, **options)
    assert fused.causal_lm.in_place
    assert plain.causal_lm.replacements == list(plain.causal_lm.in_place) == []
    assert plain.causal_lm.checked_attention == {"torch"}
    kind = torch.nn.Linear if weights == "fp32" else QuantizedLinear
    assert type(plain.hf_model.get_output_embeddings()) is kind
    assert has_int8_activations(plain.hf_model) == (activations == "int8")
    assert generate(plain) == generate(fused)


@pytest.mark.parametrize("weights", ["auto", "fp32", "bf16"])
def test_activations_of_eight_bits_need_weights_of_as_few(weights):
    with pytest.raises(UnsupportedConfigError, match="needs weights of 8 or 4 bits") as refusal:
        engine.wrap(make(CONFIGS["tied"]), weights=weights, activations="int8")
    assert refusal.value.field == "activations"
    with pytest.raises(UnsupportedConfigError, match="activations is 'int4'; use fp32, int8"):
        engine.load("there/is/nothing/here", activations="int4")


def test_a_format_of_the_tile_unit_is_refused_without_one(monkeypatch):
    monkeypatch.setattr(weight_formats, "has_tile_unit", lambda library: False)
    with pytest.raises(UnsupportedConfigError, match="needs a processor with a tile unit"):
        engine.wrap(make(CONFIGS["tied"]), weights="bf16x3")


def test_a_model_that_is_packed_stays_as_it_is_or_is_refused():
    model = make(CONFIGS["tied"])
    expected = generate(engine.wrap(model, weights="int4"))
    for weights in ("int4", "auto", "fp32"):
        assert generate(engine.wrap(model, weights=weights)) == expected
    with pytest.raises(UnsupportedConfigError, match="packed already, as INT8"):
        engine.wrap(model, weights="bf16")
    with pytest.raises(UnsupportedConfigError, match="packed already, as INT8"):
        engine.wrap(model, weights="int4", activations="int8")


def test_an_unknown_format_is_refused_before_anything_is_loaded():
    with pytest.raises(UnsupportedConfigError, match="weights is 'int9'"):
        engine.load("there/is/nothing/here", weights="int9")


def test_a_model_without_linear_layers_is_refused():
    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    model = make(config)
    model.set_output_embeddings(None)
    model._modules.pop("lm_head", None)
    with pytest.raises(UnsupportedModelError, match="no linear layers to store as int8"):
        store_weights(model, "int8", use_kernels=True)


def test_weights_that_are_no_numbers_are_refused_with_the_name_of_their_layer():
    model = make(CONFIGS["untied"])
    model.model.layers[1].mlp.up_proj.weight[3, 3] = float("nan")
    with pytest.raises(UnsupportedModelError, match=r"layers.1.mlp.up_proj cannot be stored as"):
        engine.wrap(model, weights="int8")


class TestNewWeights:
    """Packed weights are not changed in place; new ones are rounded, packed and noticed."""

    @pytest.fixture
    def model(self):
        return engine.wrap(make(CONFIGS["tied"]), weights="int8")

    def test_reading_a_weight_says_why_there_is_none(self, model):
        with pytest.raises(AttributeError, match="packed as INT8: give new ones to set_weight"):
            _ = model.hf_model.model.layers[0].mlp.up_proj.weight

    @pytest.mark.parametrize("way", ["set_weight", "assign", "state_dict"])
    def test_new_weights_are_followed(self, model, way):
        layers = model.hf_model.model.layers
        before = generate(model)
        watch = WeightWatch(model.hf_model)
        watch.remember()
        assert not watch.have_changed()
        other = make(CONFIGS["tied"], scale=0.4)
        if way == "state_dict":
            model.hf_model.load_state_dict(other.state_dict())
        for layer, source in zip(layers, other.model.layers, strict=True):
            for name in ("gate_proj", "up_proj", "down_proj"):
                new = getattr(source.mlp, name).weight
                if way == "set_weight":
                    getattr(layer.mlp, name).set_weight(new)
                elif way == "assign":
                    setattr(getattr(layer.mlp, name), "weight", torch.nn.Parameter(new))  # noqa: B010
        assert watch.have_changed()
        after = generate(model)
        assert after != before
        plain = unpacked_copy(model.hf_model, CONFIGS["tied"])
        with torch.no_grad():
            for ours, theirs in zip(model.hf_model.parameters(), _vectors(plain), strict=True):
                theirs.copy_(ours)
        assert after == generate(engine.wrap(plain))

    def test_a_weight_of_another_shape_is_refused(self, model):
        with pytest.raises(ValueError, match=r"\(3, 3\) instead of \(96, 64\)"):
            model.hf_model.model.layers[0].mlp.up_proj.set_weight(torch.zeros(3, 3))

    def test_a_state_that_was_saved_is_loaded(self, model):
        expected = generate(model)
        other = engine.wrap(make(CONFIGS["tied"], scale=0.4), weights="int8")
        other.hf_model.load_state_dict(model.hf_model.state_dict())
        assert generate(other) == expected

    def test_a_state_of_another_kind_of_processor_is_refused_before_anything_changes(self, model):
        state = model.hf_model.state_dict()
        extra = "model.layers.0.mlp.down_proj._extra_state"
        expected = generate(model)
        with pytest.raises(RuntimeError, match="another kind of processor"):
            model.hf_model.load_state_dict(state | {extra: state[extra] + 1})
        assert generate(model) == expected

    def test_a_copy_is_a_model_of_its_own(self, model):
        other = copy.deepcopy(model.hf_model)
        other.model.layers[0].mlp.up_proj.set_weight(torch.zeros(96, 64))
        assert model.hf_model.model.layers[0].mlp.up_proj.numbers().any()


def _vectors(model):
    return [parameter for parameter in model.parameters() if parameter.dim() == 1]
