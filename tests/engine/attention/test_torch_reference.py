"""Attention over block tables equals the formula, whatever the layer asks for."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.interface import AttentionOptions
from engine.attention.torch_reference import TorchReferenceBackend
from tests.engine.attention.cases import Shape, Step, make_step, naive_attention

# Whole prompts, one token, decoding, chunks behind a past, lengths around a page's end.
RAGGED = [(0, 9), (0, 1), (7, 1), (5, 6), (8, 4), (0, 8), (15, 1), (3, 1)]
SHAPES = {
    "grouped": Shape(),
    "one key head": Shape(num_heads=4, num_kv_heads=1),
    "no groups": Shape(num_heads=3, num_kv_heads=3),
    "other values": Shape(key_dim=12, value_dim=6),
}
SCALING = 0.5
OPTIONS = {
    "full": AttentionOptions(SCALING),
    "window of 1": AttentionOptions(SCALING, sliding_window=1),
    "window of 5": AttentionOptions(SCALING, sliding_window=5),
    "window of 9": AttentionOptions(SCALING, sliding_window=9),
    "window beyond": AttentionOptions(SCALING, sliding_window=100),
    "softcap": AttentionOptions(SCALING, softcap=1.5),
    "softcap and window": AttentionOptions(SCALING, softcap=1.5, sliding_window=5),
    "sinks": AttentionOptions(SCALING, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "sinks and window": AttentionOptions(
        SCALING, sliding_window=5, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])
    ),
}


def check(step: Step, options: AttentionOptions) -> None:
    output = step.attend(TorchReferenceBackend(step.page_size), options)
    torch.testing.assert_close(
        output.double(), naive_attention(step, options), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("scattered", [False, True], ids=["neighbours", "scattered"])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_over_every_layout(options, page_size, scattered):
    check(make_step(RAGGED, Shape(), page_size, scattered=scattered), options)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ["full", "window of 5", "softcap", "sinks"])
def test_every_shape(name, shape):
    options = OPTIONS[name]
    if options.sinks is not None:
        options = replace(options, sinks=options.sinks[: shape.num_heads])
    check(make_step(RAGGED, shape, 4, scattered=True), options)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=5),
    page_size=st.sampled_from([4, 5, 8]),
    scattered=st.booleans(),
    window=st.none() | st.integers(1, 24),
    softcap=st.none() | st.just(2.0),
    seed=st.integers(0, 1000),
)
def test_any_step(requests, page_size, scattered, window, softcap, seed):
    options = AttentionOptions(SCALING, sliding_window=window, softcap=softcap)
    check(make_step(requests, Shape(), page_size, scattered=scattered, seed=seed), options)


@pytest.mark.parametrize("name", ["full", "window of 5", "softcap", "sinks and window"])
def test_a_request_has_the_same_numbers_alone_and_in_a_crowd(name):
    """Bit for bit: it is computed by itself either way."""
    crowd = make_step(RAGGED, Shape(), 4, scattered=True)
    together = crowd.attend(TorchReferenceBackend(4), OPTIONS[name])
    for row, length in enumerate(crowd.inputs.context_lengths):
        start, stop = crowd.inputs.query_starts[row : row + 2]
        inputs = replace(
            crowd.inputs,
            slots=crowd.inputs.slots[start:stop],
            block_table=crowd.inputs.block_table[row : row + 1],
            query_starts=[0, stop - start],
            context_lengths=[length],
        )
        alone = Step(inputs, crowd.query[start:stop], crowd.keys, crowd.values, 4)
        output = alone.attend(TorchReferenceBackend(4), OPTIONS[name])
        assert torch.equal(output, together[start:stop])


def test_what_no_request_holds_is_never_read():
    """Other slots may hold anything, also what is left of requests that failed."""
    step = make_step(RAGGED, Shape(), 4, scattered=True)
    held = {
        int(step.inputs.block_table[row, p // 4]) * 4 + p % 4
        for row, length in enumerate(step.inputs.context_lengths)
        for p in range(length)
    }
    expected = step.attend(TorchReferenceBackend(4), OPTIONS["full"])
    for slot in set(range(step.keys.shape[0] * 4)) - held:
        step.keys[slot // 4, slot % 4] = float("nan")
        step.values[slot // 4, slot % 4] = float("nan")
    assert torch.equal(step.attend(TorchReferenceBackend(4), OPTIONS["full"]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("name", ["full", "window of 5", "softcap", "sinks and window"])
@pytest.mark.parametrize("scattered", [False, True])
def test_rows_of_other_formats_are_what_they_mean(scattered, name, dtype):
    step = make_step(RAGGED, SHAPES["other values"], 4, scattered=scattered)
    check(step.stored_as(dtype), OPTIONS[name])


@pytest.mark.parametrize("name", ["full", "window of 5", "softcap", "sinks"])
def test_half_precision_keeps_its_dtype(name):
    step = make_step(RAGGED, Shape(), 4, scattered=True).to("cpu", torch.bfloat16)
    output = step.attend(TorchReferenceBackend(4), OPTIONS[name])
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(
        output.double(), naive_attention(step, OPTIONS[name]), atol=3e-2, rtol=3e-2
    )
