"""GGUF files: their blocks are kept as they are, and the model answers what its numbers say."""

import dataclasses
import struct
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

import engine
from engine.errors import UnsupportedConfigError, UnsupportedModelError
from engine.kernels.cpu.quantized_linear import Format
from engine.models import gguf_model
from engine.models.gguf_config import parameter_name
from engine.models.gguf_file import GGUFFile
from engine.models.gguf_model import load_gguf_model
from engine.models.quantization import WITH_INT8_ACTIVATIONS
from engine.models.quantized_modules import QuantizedLinear, QuantizedModule
from tests.gguf_writer import write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
}
PROMPTS = [[5, 17, 3, 88], [90, 1], [7, 7, 7, 2, 11, 40]]
FORMATS = {
    Kind.Q4_0: Format.INT4,
    Kind.Q4_1: Format.INT4,
    Kind.Q8_0: Format.INT8,
    Kind.BF16: Format.BF16,
}


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=0.2)
    return model.requires_grad_(False)


def oracle(config, meaning):
    """An ordinary model of the numbers that the file means."""
    model = make(config)
    model.load_state_dict(meaning, strict=False)
    model.tie_weights()
    return model


def reference(model):
    outputs = [
        model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        for prompt in PROMPTS
    ]
    return [output[0, len(p) :].tolist() for output, p in zip(outputs, PROMPTS, strict=True)]


def generate(model):
    outputs = model.generate_batch(PROMPTS, max_new_tokens=12, do_sample=False)
    return [output.generated_tokens for output in outputs.values()]


@pytest.mark.parametrize("kind", [*FORMATS, Kind.F32, Kind.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_answers_what_its_numbers_say(tmp_path, family, kind):
    config, path = CONFIGS[family], tmp_path / "model.gguf"
    # As quantised files are: the embedding with more bits than the rest.
    small = {"token_embd": Kind.Q8_0, "output": Kind.Q8_0} if kind in FORMATS else {}
    meaning = write_gguf(make(config), path, kinds={**small, "": kind})
    model = engine.load(path)
    assert model.self_check_error < 1e-5
    modules = dict(model.hf_model.named_modules())
    if kind in FORMATS:
        assert modules["model.layers.1.mlp.up_proj"].format is FORMATS[kind]
        assert modules["lm_head"].format is Format.INT8
    for name, numbers in meaning.items():
        module = modules[name.removesuffix(".weight").removesuffix(".bias")]
        if isinstance(module, QuantizedModule) and name.endswith(".weight"):
            assert torch.equal(module.numbers(), numbers), name
    expected = oracle(config, meaning)
    assert generate(model) == reference(expected)
    assert generate(model) == generate(engine.wrap(expected))


def test_other_blocks_are_rounded_to_eight_bits(tmp_path):
    path = tmp_path / "model.gguf"
    meaning = write_gguf(make(CONFIGS["llama"]), path, kinds={"ffn": Kind.Q5_1})
    layer = engine.load(path).hf_model.model.layers[0]
    assert layer.mlp.up_proj.format is Format.INT8
    numbers = meaning["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(layer.mlp.up_proj.numbers(), numbers, atol=1 / 254, rtol=0)
    assert type(layer.self_attn.q_proj) is torch.nn.Linear


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_blocks_of_few_bits_take_activations_of_eight(tmp_path, kind):
    path = tmp_path / "model.gguf"
    write_gguf(make(CONFIGS["llama"]), path, kinds={"token_embd": Kind.Q8_0, "": kind})
    model = engine.load(path, activations="int8")
    modules = dict(model.hf_model.named_modules())
    expected = WITH_INT8_ACTIVATIONS.get(FORMATS[kind], FORMATS[kind])
    assert modules["model.layers.1.mlp.up_proj"].format is expected
    assert modules["lm_head"].format is Format.W8A8
    assert torch.equal(modules["lm_head"].numbers(), engine.load(path).hf_model.lm_head.numbers())
    assert model.self_check_error < 1e-2


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_another_format_is_made_of_the_unpacked_numbers(tmp_path, weights):
    path = tmp_path / "model.gguf"
    meaning = write_gguf(make(CONFIGS["llama"]), path, kinds={"": Kind.Q4_1})
    model = engine.load(path, weights=weights)
    expected = engine.wrap(oracle(CONFIGS["llama"], meaning), weights=weights)
    assert generate(model) == generate(expected)
    packed = any(isinstance(module, QuantizedLinear) for module in model.hf_model.modules())
    assert packed == (weights == "int8")


def test_without_kernels_all_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    meaning = write_gguf(make(CONFIGS["qwen3"]), path, kinds={"": Kind.Q4_0})
    expected = reference(oracle(CONFIGS["qwen3"], meaning))
    assert generate(engine.load(path, use_kernels=False)) == expected
    monkeypatch.setattr(gguf_model, "load_library", lambda: None)
    model = engine.load(path)
    assert type(model.hf_model.lm_head) is torch.nn.Linear
    assert model.hf_model.lm_head.weight is model.hf_model.model.embed_tokens.weight
    assert generate(model) == expected


def test_factors_on_the_rotation_are_kept(tmp_path):
    """Llama 3.1 and later turn slow frequencies slower; the file holds the factors."""
    scaling = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    }  # fmt: skip
    scaled = make(LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=scaling))
    plain = make(CONFIGS["llama"])
    factors = plain.model.rotary_emb.inv_freq / scaled.model.rotary_emb.inv_freq
    assert factors.max() > 2
    write_gguf(scaled, tmp_path / "model.gguf", factors=factors)
    model = engine.load(tmp_path / "model.gguf")
    torch.testing.assert_close(
        model.hf_model.model.rotary_emb.inv_freq, scaled.model.rotary_emb.inv_freq
    )
    assert generate(model) == reference(scaled)


class TestRefusals:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "model.gguf"
        write_gguf(make(CONFIGS["llama"]), path)
        return path

    @pytest.mark.parametrize("count", [0, 3, 20, 100, 1000, -1000])
    def test_a_file_that_ends_early_is_refused(self, path, count):
        path.write_bytes(path.read_bytes()[:count])
        with pytest.raises(UnsupportedModelError, match="cannot be read as a GGUF file"):
            engine.load(path)

    def test_lengths_that_are_lies_are_refused(self, path):
        head = path.read_bytes()[:16]
        path.write_bytes(head + struct.pack("<QQ", 2**60, 2**40))
        with pytest.raises(UnsupportedModelError, match="it ends too early"):
            engine.load(path)

    @pytest.mark.parametrize(
        ("field", "reason"),
        [
            # Arrays in arrays, deeper than the interpreter goes; an alignment to nothing.
            (struct.pack("<QcII", 1, b"x", 9, 9) + struct.pack("<QI", 1, 9) * 5000, "of arrays"),
            (struct.pack("<Q17sII", 17, b"general.alignment", 4, 0), "division"),
            (struct.pack("<Q17sIIQB", 17, b"general.alignment", 9, 0, 1, 8), "list"),
            (struct.pack("<QcI", 1, b"x", 99), "99"),
        ],
    )
    def test_metadata_that_mean_nothing_are_refused(self, path, field, reason):
        path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + field)
        with pytest.raises(UnsupportedModelError, match=reason):
            engine.load(path)

    def test_another_version_and_another_file_are_refused(self, path):
        content = path.read_bytes()
        path.write_bytes(b"GGUF" + struct.pack(">I", 3) + content[8:])
        with pytest.raises(UnsupportedModelError, match="version 50331648"):
            engine.load(path)
        path.write_bytes(b"PK" + content)
        with pytest.raises(UnsupportedModelError, match="does not begin with GGUF"):
            engine.load(path)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda f: f.metadata.update({"general.architecture": "mamba"}), "'mamba'"),
            (lambda f: f.metadata.update({"llama.expert_count": 8}), "sets expert_count"),
            (lambda f: f.metadata.pop("llama.block_count"), "does not say 'block_count'"),
            (
                lambda f: f.metadata.update({"llama.attention.head_count": 0}),
                "describes a model that cannot be",
            ),
            (
                lambda f: f.metadata.update({"llama.attention.head_count": 2**23}),
                "head_count times key_length is 134217728, and the tensors say 64",
            ),
            (lambda f: f.metadata.update({"llama.block_count": 2**22}), "block_count is 4194304"),
            (lambda f: f.metadata.update({"llama.embedding_length": 32}), "the tensors say 64"),
            (lambda f: f.metadata.update({"llama.feed_forward_length": 2**31}), "tensors say 96"),
            (
                lambda f: f.metadata.update({"llama.attention.key_length": 0}),
                "describes a model that cannot be",
            ),
            (
                lambda f: f.metadata.update({"llama.embedding_length": "many"}),
                "describes a model that cannot be",
            ),
            (lambda f: f.tensors.pop("blk.1.ffn_up.weight"), "holds no model.layers.1.mlp.up_proj"),
            (
                lambda f: f.tensors.update({"blk.1.zzz.weight": f.tensors["output_norm.weight"]}),
                "a tensor 'blk.1.zzz.weight'",
            ),
            (
                lambda f: f.tensors.update(
                    {"blk.7.ffn_up.weight": f.tensors["output_norm.weight"]}
                ),
                "block_count is 2, and the tensors say 3",
            ),
            (
                lambda f: f.tensors.update(
                    {"blk.1.ffn_up.weight": f.tensors["output_norm.weight"]}
                ),
                r"blk.1.ffn_up.weight is \(64,\) instead of \(96, 64\)",
            ),
        ],
    )
    def test_what_is_not_understood_is_refused_by_name(self, path, monkeypatch, change, reason):
        def read(path):
            file = GGUFFile(path)
            change(file)
            return file

        monkeypatch.setattr(gguf_model, "GGUFFile", read)
        with pytest.raises(UnsupportedModelError, match=reason):
            engine.load(path)

    @pytest.mark.parametrize("kind", [Kind.Q8_1, Kind.I8, Kind.Q8_K])
    @pytest.mark.parametrize("keep_packed", [True, False])
    def test_blocks_that_nobody_reads_are_refused_by_their_name(
        self, path, monkeypatch, kind, keep_packed
    ):
        def read(path):
            file = GGUFFile(path)
            norm = file.tensors["output_norm.weight"]
            file.tensors["output_norm.weight"] = dataclasses.replace(norm, kind=kind)
            return file

        monkeypatch.setattr(gguf_model, "GGUFFile", read)
        with pytest.raises(UnsupportedModelError, match=f"stored as {kind.name}, which is not"):
            load_gguf_model(path, keep_packed=keep_packed)

    @pytest.mark.parametrize(
        "name",
        ["", "output", "output.", ".weight", "output.scales", "attn_q.weight", "blk.attn_q.bias",
         "x.1.attn_q.weight", "blk.-1.attn_q.weight", "blk.1.1.attn_q.weight",
         "blk.1.output.weight", "blk.\N{ARABIC-INDIC DIGIT ONE}.attn_q.weight"],
    )  # fmt: skip
    def test_a_tensor_of_another_name_is_no_parameter(self, name):
        with pytest.raises(UnsupportedModelError, match="which its family should not have"):
            parameter_name(name)

    def test_a_format_that_cannot_be_had_is_refused(self, path):
        with pytest.raises(UnsupportedConfigError, match=r"dtype is torch.bfloat16"):
            engine.load(path, dtype="bfloat16", weights="int4")

    def test_a_file_that_is_not_there_is_no_gguf_file(self, tmp_path):
        with pytest.raises(OSError, match=r"model.gguf"):
            engine.load(tmp_path / "model.gguf")


def test_a_folder_with_one_file_is_that_file(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(make(CONFIGS["llama"]), path)
    assert gguf_model.find_gguf(tmp_path) == path
    (tmp_path / "other.gguf").touch()
    assert gguf_model.find_gguf(tmp_path) is None
    (tmp_path / "other.gguf").rename(tmp_path / "model.safetensors")
    assert gguf_model.find_gguf(tmp_path) is None
