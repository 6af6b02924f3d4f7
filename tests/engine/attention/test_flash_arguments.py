"""What flash-attn is called with, checked by a stand-in that computes from these arguments."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.attention.interface import AttentionOptions
from engine.attention.select_backend import BackendChoice, make_backend
from tests.engine.attention.cases import Shape, make_step, naive_attention

PAGE_SIZE = 256
RAGGED = [(0, 9), (0, 1), (300, 1), (255, 2), (256, 4), (511, 1)]


def varlen_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: Any
) -> torch.Tensor:
    """flash_attn_varlen_func in plain torch, by its documentation."""
    query_starts = options["cu_seqlens_q"].tolist()
    key_starts = options["cu_seqlens_k"].tolist()
    assert options["causal"]
    assert options["cu_seqlens_q"].dtype == options["cu_seqlens_k"].dtype == torch.int32
    assert options["block_table"].dtype == torch.int32
    assert options["max_seqlen_q"] == max(stop - start for start, stop in pairwise(query_starts))
    output = []
    for row, table in enumerate(options["block_table"].long()):
        length = key_starts[row + 1] - key_starts[row]
        assert length <= options["max_seqlen_k"]
        rows = query[query_starts[row] : query_starts[row + 1]]
        groups = query.shape[1] // keys.shape[2]
        own_keys = keys[table].flatten(0, 1)[:length].repeat_interleave(groups, 1)
        own_values = values[table].flatten(0, 1)[:length].repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", rows, own_keys) * options["softmax_scale"]
        if options["softcap"]:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        distance = torch.arange(length) - (torch.arange(len(rows)) + length - len(rows))[:, None]
        left, right = options["window_size"]
        hidden = distance > 0
        if left >= 0:
            assert right == 0
            hidden |= distance < -left
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        output.append(torch.einsum("hqk,khd->qhd", weights, own_values))
    return torch.cat(output)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package: Any = ModuleType("flash_attn")
    package.flash_attn_varlen_func = varlen_attention
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    sys.modules.pop("engine.attention.flash", None)
    yield
    sys.modules.pop("engine.attention.flash", None)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    "options",
    [
        AttentionOptions(0.5),
        AttentionOptions(0.5, sliding_window=5),
        AttentionOptions(0.5, sliding_window=300),
        AttentionOptions(0.5, softcap=1.5),
    ],
)
def test_the_arguments_mean_what_the_layer_asks_for(options):
    step = make_step(RAGGED, Shape(), PAGE_SIZE, scattered=True)
    output = step.attend(make_backend(BackendChoice("flash", "a test"), PAGE_SIZE), options)
    torch.testing.assert_close(
        output.double(), naive_attention(step, options), atol=1e-5, rtol=1e-5
    )
