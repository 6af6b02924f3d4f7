"""Models whose state is not keys and values by position are refused, with a text that says why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

import engine
from engine import UnsupportedModelError
from engine.attention.torch_reference import TorchReferenceBackend
from tests.engine.parity.families import SHAPE, VOCAB_SIZE, make_family

BERT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
T5: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
}
MAMBA_HEADS: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}


def from_config(config: hf.PretrainedConfig) -> hf.PreTrainedModel:
    model: hf.PreTrainedModel = hf.AutoModelForCausalLM.from_config(config)
    return model


def jamba() -> hf.PretrainedConfig:
    return hf.JambaConfig(
        **SHAPE,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=2,
        use_mamba_kernels=False,
    )


def bart() -> hf.PretrainedConfig:
    return hf.BartConfig(
        vocab_size=VOCAB_SIZE,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
    )


# What it is -> (how to make it, what the refusal has to say).
REFUSED: dict[str, tuple[Callable[[], hf.PreTrainedModel], str]] = {
    "recurrent": (
        lambda: from_config(
            hf.MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2)
        ),
        "MambaForCausalLM has layers of type linear_attention",
    ),
    "recurrent without layer types": (
        lambda: from_config(
            hf.RwkvConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2)
        ),
        "RwkvForCausalLM does not use transformers' AttentionInterface",
    ),
    "attention biased by distance": (
        lambda: from_config(
            hf.BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4)
        ),
        "BloomForCausalLM does not use transformers' AttentionInterface",
    ),
    "attention of its own": (
        lambda: from_config(hf.FalconConfig(**{k: BERT[k] for k in list(BERT)[:4]})),
        "FalconForCausalLM does not use transformers' AttentionInterface",
    ),
    "hybrid": (
        lambda: from_config(jamba()),
        "JambaForCausalLM has layers of type linear_attention",
    ),
    "hybrid inside one layer": (
        lambda: from_config(hf.FalconH1Config(**SHAPE, **MAMBA_HEADS, mamba_d_ssm=64)),
        "FalconH1ForCausalLM has layers of type hybrid",
    ),
    "convolutions": (
        lambda: from_config(hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"])),
        "Lfm2ForCausalLM has layers of type conv",
    ),
    "chunked attention": (
        lambda: from_config(
            hf.Llama4TextConfig(**SHAPE, head_dim=8, num_local_experts=2, intermediate_size_mlp=64)
        ),
        "Llama4ForCausalLM has layers of type chunked_attention",
    ),
    "two attentions in a layer": (
        lambda: from_config(hf.DiffLlamaConfig(**SHAPE)),
        "layer 0 attends more than once",
    ),
    "encoder": (lambda: from_config(hf.BertConfig(**BERT)), "BertSelfAttention is not causal"),
    "encoder without a head": (
        lambda: hf.BertModel(hf.BertConfig(**BERT)),
        "BertSelfAttention is not causal",
    ),
    "encoder and decoder": (
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5, d_kv=8)),
        "T5Attention is not causal",
    ),
    "positions counted by the model itself": (
        lambda: from_config(bart()),
        "BartForCausalLM gives other logits over a paged cache than by itself",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_what_cannot_be_served_is_refused(kind):
    make, text = REFUSED[kind]
    with pytest.raises(UnsupportedModelError, match=text) as caught:
        engine.wrap(make())
    assert "\n" not in str(caught.value)


class NeighbourBackend(TorchReferenceBackend):
    """Attends to the keys that lie one slot further: those of another position or request."""

    def attend(self, query, keys, values, options):
        return super().attend(query, keys.roll(1, 0), values.roll(1, 0), options)


MODELS_WITH_NEIGHBOURS: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "spread logits": lambda: make_family("llama"),
    "soft-capped": lambda: make_family("gemma2"),
    "just initialised": lambda: from_config(hf.LlamaConfig(**SHAPE)),
    "tiny logits": lambda: from_config(hf.CohereConfig(**SHAPE, logit_scale=1e-3)),
}


@pytest.mark.parametrize("kind", MODELS_WITH_NEIGHBOURS)
def test_the_self_check_sees_a_neighbours_keys(kind, monkeypatch):
    torch.manual_seed(0)
    model = MODELS_WITH_NEIGHBOURS[kind]()
    engine.wrap(model)
    monkeypatch.setattr("engine.models.probe.make_backend", lambda _, page: NeighbourBackend(page))
    with pytest.raises(UnsupportedModelError, match="differ by"):
        engine.wrap(model)


class NotANumberBackend(TorchReferenceBackend):
    """Answers with NaN, as reading what was never written may do."""

    def attend(self, query, keys, values, options):
        return super().attend(query, keys, values, options) * float("nan")


def test_the_self_check_sees_what_is_not_a_number(monkeypatch):
    monkeypatch.setattr("engine.models.probe.make_backend", lambda _, page: NotANumberBackend(page))
    with pytest.raises(UnsupportedModelError, match="differ by nan"):
        engine.wrap(make_family("llama"))


def test_a_refused_model_is_left_as_it_was():
    model = from_config(bart())
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        before = model.eval()(input_ids=ids).logits
    implementation = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError):
        engine.wrap(model)
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, before)
    assert model.config._attn_implementation == implementation
