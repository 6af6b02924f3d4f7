"""A model written in another format: the same values and the same metadata."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.gguf_formats import FORMATS, write_format
from tests.gguf_writer import write_gguf

FIELDS = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1, 1]}
# Of the largest value: half a step of a format.
ERRORS = {"f32": 0.0, "bf16": 2**-8, "q8_0": 0.5 / 127}


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    path = tmp_path / "source.gguf"
    kinds = {"ffn": GGMLQuantizationType.Q4_1}
    write_gguf(LlamaForCausalLM(config), path, kinds=kinds, fields=FIELDS)
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_the_sources_up_to_the_rounding_of_the_format(source, tmp_path, name):
    write_format(source, tmp_path / "target.gguf", name)
    before, after = GGUFReader(source), GGUFReader(tmp_path / "target.gguf")
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]
    for old, new in zip(before.tensors, after.tensors, strict=True):
        want = dequantize(old.data, old.tensor_type)
        got = dequantize(new.data, new.tensor_type)
        is_vector = want.ndim == 1
        assert new.tensor_type == (GGMLQuantizationType.F32 if is_vector else FORMATS[name][0])
        error = 0.0 if is_vector else ERRORS[name]
        # A scale of blocks is itself rounded to fp16.
        assert np.abs(got - want).max() <= error * 1.01 * np.abs(want).max()


def test_metadata_is_the_sources_but_for_the_format(source, tmp_path):
    write_format(source, tmp_path / "target.gguf", "bf16")
    before, after = (
        {
            name: field.contents()
            for name, field in GGUFReader(path).fields.items()
            if not name.startswith("GGUF.")
        }
        for path in (source, tmp_path / "target.gguf")
    )
    assert after.pop("general.file_type") == FORMATS["bf16"][1]
    before.pop("general.file_type", None)
    assert after == before
