"""Layers with activations of 8 bits: exact sums of integers, group by group, whatever the batch."""

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.kernels.cpu.quantized_linear import (
    GROUP,
    Format,
    QuantizedWeight,
    pack_int4,
    pack_int8,
)
from tests.engine.kernels.layers import (
    by_group,
    check_that_rows_do_not_depend_on_the_batch,
    check_that_rows_show_what_is_not_finite,
)
from tests.engine.kernels.test_quantized_linear import SHAPES

Layer = tuple[QuantizedWeight, torch.Tensor]


@pytest.fixture(params=[1, 0], ids=["dot products", "bytes"], autouse=True)
def way(request, library) -> Iterator[None]:
    """Each way to multiply bytes that this processor has."""
    used = library.use_dot_products(request.param)
    if library.use_dot_products(-1) != request.param:
        pytest.skip("this processor has no dot products for these instructions")
    yield
    library.use_dot_products(used)


def w8a8(library, columns: int, depth: int, generator: torch.Generator) -> Layer:
    codes = torch.randint(-128, 128, (columns, depth), generator=generator, dtype=torch.int8)
    scales = torch.randn(columns, -(-depth // GROUP), generator=generator).half()
    packed = pack_int8(library, Format.W8A8, codes, scales)
    return packed, codes.float() * by_group(scales, depth)


def w4a8(library, columns: int, depth: int, generator: torch.Generator) -> Layer:
    codes = torch.randint(0, 16, (columns, depth), generator=generator, dtype=torch.uint8)
    scales, minima = torch.randn(2, columns, -(-depth // GROUP), generator=generator).half()
    packed = pack_int4(library, Format.W4A8, codes, scales, minima)
    return packed, codes.float() * by_group(scales, depth) + by_group(minima, depth)


@pytest.fixture(params=[w8a8, w4a8], ids=lambda make: make.__name__)
def make(request, library) -> Callable[[int, int], Layer]:
    def make_layer(columns: int, depth: int) -> Layer:
        generator = torch.Generator().manual_seed(columns * 1000 + depth)
        return request.param(library, columns, depth, generator)

    return make_layer


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What the layers make of activations [R, K]: 8 bits and a scale for 32 neighbours."""
    filled = torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP))
    groups = filled.view(len(x), -1, GROUP)
    highest = groups.abs().amax(-1, keepdim=True)
    # A number over a tensor is that times its reciprocal for torch, rounded twice.
    inverse = torch.where(highest > 0, torch.full_like(highest, 127) / highest, 0.0)
    return ((groups * inverse).round() * (highest / 127)).view(len(x), -1)[:, : x.shape[1]]


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_every_weight_means_exactly_one_number(make, columns, depth):
    packed, weight = make(columns, depth)
    assert torch.equal(packed.rows(torch.arange(columns)), weight)


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_computes_what_rounded_activations_give(make, columns, depth, with_bias):
    packed, weight = make(columns, depth)
    generator = torch.Generator().manual_seed(3)
    bias = torch.randn(columns, generator=generator) if with_bias else None
    for rows in (1, 2, 3, 4, 5, 9, 33):
        x = torch.randn(rows, depth, generator=generator)
        x *= torch.randn(rows, 1, generator=generator).exp()
        exact = rounded(x).double() @ weight.double().T
        exact += 0 if bias is None else bias.double()
        scale = float((rounded(x).abs().double() @ weight.abs().double().T).max()) + 1
        torch.testing.assert_close(
            packed.linear(x, bias).double(), exact, atol=1e-6 * scale, rtol=0
        )


def test_the_largest_numbers_do_not_overflow(library):
    """Products of one sign, as large as they can be, in every place of a group."""
    x = torch.ones(3, 64)
    for sign in (1, -1):
        codes = torch.full((40, 64), -128, dtype=torch.int8)
        packed = pack_int8(library, Format.W8A8, codes, torch.ones(40, 2).half())
        assert (packed.linear(sign * x) == sign * -128 * 64).all()
        top = torch.full((40, 64), 15, dtype=torch.uint8)
        ones, none = torch.ones(40, 2).half(), torch.zeros(40, 2).half()
        packed = pack_int4(library, Format.W4A8, top, ones, none)
        assert (packed.linear(sign * x) == sign * 15 * 64).all()


def test_a_row_is_bitwise_the_same_in_any_batch_and_with_any_threads(make):
    packed, _ = make(161, 416)
    check_that_rows_do_not_depend_on_the_batch(packed, (1, 2, 3, 4, 5, 17, 31))


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_show_in_their_row_alone(make, special):
    packed, _ = make(40, 96)
    check_that_rows_show_what_is_not_finite(packed, special)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-31])
def test_numbers_too_small_for_a_scale_count_as_zeros(make, size):
    packed, _ = make(40, 64)
    x = torch.full((2, 64), size)
    assert torch.equal(packed.linear(x), torch.zeros(2, 40))


def test_zeros_give_the_bias(make):
    packed, _ = make(40, 24)
    bias = torch.randn(40)
    assert torch.equal(packed.linear(torch.zeros(2, 24), bias), bias.expand(2, 40))


def test_no_rows_give_no_rows(make):
    packed, _ = make(40, 24)
    assert packed.linear(torch.empty(0, 24)).shape == (0, 40)


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("rows", [7, 17, 33])
def test_both_ways_to_multiply_give_the_same_bits(make, library, columns, depth, rows):
    packed, _ = make(columns, depth)
    x = torch.randn(rows, depth, generator=torch.Generator().manual_seed(5)) * 3
    used = library.use_dot_products(0)
    by_bytes = packed.linear(x)
    library.use_dot_products(used)
    assert torch.equal(packed.linear(x), by_bytes)
