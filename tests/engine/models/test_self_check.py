"""The self-check judges what will run, and kernels that go wrong cost speed and not the model."""

import logging
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import engine
from engine import ContinuousBatchingConfig, UnsupportedModelError, resolve
from engine.attention.cpu import CpuBackend
from engine.attention.select_backend import BackendChoice
from engine.attention.torch_reference import TorchReferenceBackend
from engine.kernels.cpu.library import load_library
from engine.models import causal_lm
from engine.models.fused_layers import SingleLinear
from tests.engine.models.test_fusion import SIZES, make
from tests.engine.parity.comparison import reference_tokens

pytestmark = pytest.mark.skipif(load_library() is None, reason="there is no compiler for kernels")

CONFIG = ContinuousBatchingConfig(num_blocks=64, page_size=16)
PROMPTS = [[1, 2, 3, 4, 5, 6], [7, 8]]


class WrongLinear(SingleLinear):
    """A replacement that was right when it was made."""

    def build(self):
        compute = super().build()
        return lambda x: compute(x) * 1.5


class RaisingLinear(SingleLinear):
    """A replacement that does not take what the model hands it."""

    def build(self):
        def forward(x: torch.Tensor) -> torch.Tensor:
            raise KeyError("an argument that nobody gave")

        return forward


def wrongly(compute):
    return lambda *arguments: compute(*arguments) * 1.5


def break_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "attend", wrongly(CpuBackend.attend))


def break_replacements(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    library = load_library()

    def find(model: Any, _: Any) -> list[SingleLinear]:
        return [kind(model.lm_head, library)]

    monkeypatch.setattr(causal_lm, "find_replacements", find)


BREAKS = {
    "attention": break_attention,
    "a replacement": lambda patch: break_replacements(patch, WrongLinear),
    "a replacement that raises": lambda patch: break_replacements(patch, RaisingLinear),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_model_that_kernels_get_wrong_is_served_without_them(what, monkeypatch, caplog):
    BREAKS[what](monkeypatch)
    model = make(LlamaConfig(**SIZES)).eval()
    with caplog.at_level(logging.WARNING):
        wrapped = engine.wrap(model)
    assert [record.message for record in caplog.records if "kernels" in record.message] == [
        caplog.messages[0]
    ]
    assert len(caplog.messages) == 1
    assert not wrapped.causal_lm.use_kernels
    outputs = wrapped.generate_batch(
        PROMPTS, continuous_batching_config=CONFIG, max_new_tokens=8, warmup=False
    )
    tokens = [output.generated_tokens for output in outputs.values()]
    assert tokens == reference_tokens(model, PROMPTS, 8)


def test_a_model_that_fails_without_kernels_too_is_refused_without_a_warning(monkeypatch, caplog):
    break_attention(monkeypatch)
    monkeypatch.setattr(TorchReferenceBackend, "attend", wrongly(TorchReferenceBackend.attend))
    with pytest.raises(UnsupportedModelError, match="differ by"):
        engine.wrap(make(LlamaConfig(**SIZES)))
    assert caplog.messages == []


def test_without_kernels_the_attention_of_torch_is_checked(monkeypatch):
    break_attention(monkeypatch)
    wrapped = engine.wrap(make(LlamaConfig(**SIZES)), use_kernels=False)
    assert wrapped.causal_lm.checked_attention == {"torch"}


def test_an_attention_that_only_a_configuration_chooses_is_checked_with_the_manager(monkeypatch):
    wrapped = engine.wrap(make(LlamaConfig(**SIZES)))
    assert wrapped.causal_lm.checked_attention == {"cpu"}
    choice = BackendChoice("torch", "for the test")
    monkeypatch.setattr(resolve, "choose_backend", lambda *_, **__: choice)
    with monkeypatch.context() as patches:
        patches.setattr(TorchReferenceBackend, "attend", wrongly(TorchReferenceBackend.attend))
        with pytest.raises(UnsupportedModelError, match="differ by"):
            wrapped.init_continuous_batching(continuous_batching_config=CONFIG)
    wrapped.init_continuous_batching(continuous_batching_config=CONFIG).destroy()
    assert wrapped.causal_lm.checked_attention == {"cpu", "torch"}
