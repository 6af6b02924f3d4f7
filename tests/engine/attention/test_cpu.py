"""Our own attention kernel equals the formula, and a query's numbers depend on nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.cpu import CpuBackend
from engine.attention.interface import AttentionOptions
from engine.kernels.cpu.build import build, instruction_set
from engine.kernels.cpu.kv_rows import KV_FORMATS
from engine.kernels.cpu.library import open_library
from tests.engine.attention.cases import Shape, Step, naive_attention
from tests.engine.attention.cases import make_step as make_any_step
from tests.engine.attention.test_torch_reference import OPTIONS, RAGGED, SCALING, SHAPES
from tests.engine.kernels.instruction_sets import runnable

# More than one piece of 32 keys, and widths that fill vectors and that do not.
LONG = [(0, 70), (63, 1), (64, 9), (31, 2), (90, 40)]
WIDE = {"wide": Shape(key_dim=64, value_dim=64), "odd": Shape(key_dim=20, value_dim=36)}


def make_step(
    requests: list[tuple[int, int]],
    shape: Shape,
    page_size: int,
    *,
    scattered: bool,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Step:
    """Return a random step over blocks that lie as the kernel reads them, in rows of a dtype."""
    step = make_any_step(requests, shape, page_size, scattered=scattered, seed=seed)
    return step.stored_as(dtype).heads_first()


@pytest.fixture(params=runnable(), ids=lambda target: target.name, scope="module")
def library(request):
    path = build(request.param)
    assert path is not None
    return open_library(path)


def check(step: Step, options: AttentionOptions, library) -> None:
    output = step.attend(CpuBackend(step.page_size, library), options)
    exact = naive_attention(step, options)
    torch.testing.assert_close(output.double(), exact, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("scattered", [False, True], ids=["neighbours", "scattered"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("requests", [RAGGED, LONG], ids=["short", "long"])
def test_every_option_over_every_layout(library, requests, options, scattered):
    check(make_step(requests, Shape(), 4, scattered=scattered), options, library)


@pytest.mark.parametrize("shape", [*SHAPES.values(), *WIDE.values()], ids=[*SHAPES, *WIDE])
@pytest.mark.parametrize("name", ["full", "window of 5", "softcap", "sinks"])
def test_every_shape(library, name, shape):
    options = OPTIONS[name]
    if options.sinks is not None:
        options = replace(options, sinks=options.sinks[: shape.num_heads])
    check(make_step(RAGGED, shape, 16, scattered=True), options, library)


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("shape", [*SHAPES.values(), *WIDE.values()], ids=[*SHAPES, *WIDE])
@pytest.mark.parametrize("name", ["full", "window of 5", "softcap", "sinks"])
def test_every_format_of_rows(library, name, shape, dtype):
    options = OPTIONS[name]
    if options.sinks is not None:
        options = replace(options, sinks=options.sinks[: shape.num_heads])
    for page_size in (5, 32):
        check(make_step(LONG, shape, page_size, scattered=True, dtype=dtype), options, library)


@pytest.mark.parametrize("dtype", KV_FORMATS)
def test_every_number_of_a_format(library, dtype):
    """Also those that have no exponent of their own, and the largest."""
    step = make_any_step([(0, 60)], Shape(value_dim=42), 32, scattered=False)
    sizes = 2.0 ** torch.arange(-27, 15)
    step = replace(step, values=(1.0 + torch.rand_like(step.values)) * sizes)
    stored = step.stored_as(dtype)
    exact = naive_attention(stored, OPTIONS["full"])
    output = stored.heads_first().attend(CpuBackend(32, library), OPTIONS["full"])
    torch.testing.assert_close(output.double(), exact, atol=1e-9, rtol=2e-5)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 40)), min_size=1, max_size=5),
    page_size=st.sampled_from([4, 5, 8, 32, 64]),
    window=st.none() | st.integers(1, 70),
    softcap=st.none() | st.just(2.0),
    dtype=st.sampled_from(list(KV_FORMATS)),
    seed=st.integers(0, 1000),
)
def test_any_step(requests, page_size, window, softcap, dtype, seed):
    options = AttentionOptions(SCALING, sliding_window=window, softcap=softcap)
    path = build(instruction_set())
    assert path is not None
    step = make_step(requests, Shape(), page_size, scattered=True, seed=seed, dtype=dtype)
    check(step, options, open_library(path))


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("name", ["full", "window of 9", "softcap", "sinks"])
def test_a_query_has_the_same_numbers_however_its_prompt_is_cut(library, name, dtype):
    """Bit for bit: as one chunk, and as its last tokens alone."""
    shape = Shape(key_dim=20, value_dim=20)
    whole = make_step([(0, 100)], shape, 8, scattered=True, dtype=dtype)
    check_parts(whole, OPTIONS[name], library, (1, 3, 8, 37, 99))


@pytest.mark.parametrize("window", [None, 300, 700])
def test_a_long_prompt_has_the_same_numbers_whoever_computes_its_spans(library, window):
    """As a whole one thread takes all spans of a query; the last few queries' are shared out."""
    whole = make_step([(0, 1300)], Shape(num_heads=4), 8, scattered=True)
    options = AttentionOptions(SCALING, sliding_window=window)
    check(whole, options, library)
    check_parts(whole, options, library, (1, 5, 16, 17, 600))


def check_parts(whole: Step, options: AttentionOptions, library, lengths: Sequence[int]) -> None:
    """Compare the last queries of a step of one request with what they are in the step."""
    size = whole.page_size
    expected = whole.attend(CpuBackend(size, library), options)
    for length in lengths:
        part = replace(
            whole,
            query=whole.query[-length:].contiguous(),
            inputs=replace(whole.inputs, query_starts=[0, length]),
        )
        assert torch.equal(part.attend(CpuBackend(size, library), options), expected[-length:])


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("page_size", [5, 32, 96])
@pytest.mark.parametrize("window", [None, 9, 40])
def test_what_no_request_holds_is_never_used(library, page_size, window, dtype):
    """Nor what a request has written where no query looks any more."""
    options = AttentionOptions(SCALING, sliding_window=window)
    step = make_step(LONG, Shape(), page_size, scattered=True, dtype=dtype)
    expected = step.attend(CpuBackend(page_size, library), options)
    seen = set()
    for row, length in enumerate(step.inputs.context_lengths):
        start, stop = step.inputs.query_starts[row : row + 2]
        first = 0 if window is None else max(0, length - (stop - start) - window + 1)
        table = step.inputs.block_table[row].tolist()
        seen |= {(table[p // page_size], p % page_size) for p in range(first, length)}
    for block, offset in set(np.ndindex(*step.keys.shape[:2])) - seen:
        # Bytes of which every format makes something that is not a number.
        step.keys[block, offset].view(torch.int8).fill_(-1)
        step.values[block, offset].view(torch.int8).fill_(-1)
    assert torch.equal(step.attend(CpuBackend(page_size, library), options), expected)


@pytest.mark.parametrize("window", [None, 40])
def test_the_numbers_do_not_depend_on_the_size_of_pages(library, window):
    """Bit for bit: pieces that are copied together are read like those that lie in one block."""
    options = AttentionOptions(SCALING, sliding_window=window)
    whole = make_step([(0, 192)], Shape(), 192, scattered=False)
    outputs = []
    for page_size in (5, 16, 32, 96):
        pages = -(-192 // page_size)
        table = torch.arange(pages, dtype=torch.int32)[None]
        parts = [
            torch.zeros(pages * page_size, *cached.shape[2:])
            for cached in (whole.keys, whole.values)
        ]
        for part, cached in zip(parts, (whole.keys, whole.values), strict=True):
            part[:192] = cached[1]
        keys, values = (part.view(pages, page_size, *part.shape[1:]) for part in parts)
        step = replace(
            whole,
            inputs=replace(whole.inputs, block_table=table),
            keys=keys,
            values=values,
            page_size=page_size,
        )
        outputs.append(step.heads_first().attend(CpuBackend(page_size, library), options))
    for output in outputs[1:]:
        assert torch.equal(output, outputs[0])


def test_numbers_that_are_not_finite_stay_in_their_row(library):
    step = make_step(RAGGED, Shape(), 4, scattered=True)
    clean = step.attend(CpuBackend(4, library), OPTIONS["full"])
    poisoned = replace(step, query=step.query.clone())
    poisoned.query[0] = float("nan")
    output = poisoned.attend(CpuBackend(4, library), OPTIONS["full"])
    assert torch.isnan(output[0]).all()
    assert torch.equal(output[1:], clean[1:])
