"""Weights of 8 and 4 bits by dot products: as exact as float32 sums, whatever the batch."""

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.kernels.cpu.quantized_linear import GROUP, Format, pack_int4, pack_int8
from tests.engine.kernels.layers import (
    by_group,
    check_that_rows_do_not_depend_on_the_batch,
    check_that_rows_show_what_is_not_finite,
)
from tests.engine.kernels.test_quantized_linear import SHAPES, Layer, int4, int8


@pytest.fixture(autouse=True)
def with_dot_products(library) -> Iterator[None]:
    used = library.use_wide_products(1)
    if not library.use_wide_products(-1):
        pytest.skip("this processor has no dot products for these instructions")
    yield
    library.use_wide_products(used)


@pytest.fixture(params=[int8, int4], ids=lambda make: make.__name__)
def make(request, library) -> Callable[[int, int], Layer]:
    def make_layer(columns: int, depth: int) -> Layer:
        generator = torch.Generator().manual_seed(columns * 1000 + depth)
        return request.param(library, columns, depth, generator)

    return make_layer


def largest_beside(x: torch.Tensor) -> torch.Tensor:
    """Return, for each of [R, K], the largest of the 32 numbers it has its unit in common with."""
    filled = torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)
    return by_group(filled.abs().amax(-1), x.shape[1])


def check_product(packed, weight, x, bias=None) -> None:
    """Compare with sums in float64: what activations move by, and the last places of the sums."""
    exact = x.double() @ weight.double().T
    exact += 0 if bias is None else bias.double()
    sizes = weight.abs().double().T
    allowed = 2**-22 * largest_beside(x).double() @ sizes + 5e-7 * (x.abs().double() @ sizes + 1)
    assert ((packed.linear(x, bias).double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_every_weight_means_exactly_one_number(make, columns, depth):
    packed, weight = make(columns, depth)
    assert torch.equal(packed.rows(torch.arange(columns)), weight)


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_computes_what_float32_weights_compute(make, columns, depth, with_bias):
    packed, weight = make(columns, depth)
    generator = torch.Generator().manual_seed(3)
    bias = torch.randn(columns, generator=generator) if with_bias else None
    for rows in (1, 2, 3, 4, 5, 8, 9, 40):
        x = torch.randn(rows, depth, generator=generator)
        check_product(packed, weight, x * torch.randn(rows, 1, generator=generator).exp(), bias)


@pytest.mark.parametrize("size", [1.0, 1.99, 2.0, 1e-20, 1e20])
def test_numbers_of_sixteen_bits_are_taken_as_they_are(library, size):
    """Whole numbers of few bits go in and come out, up to the ends of a range of digits."""
    codes = torch.full((40, 64), -128, dtype=torch.int8)
    packed = pack_int8(library, Format.INT8, codes, torch.ones(40, 2).half())
    x = torch.zeros(4, 64)
    x[0, 3], x[1, 3], x[2, :], x[3, :] = size, -size, size, -size
    expected = -128 * x.sum(dim=1, keepdim=True).expand(4, 40)
    torch.testing.assert_close(packed.linear(x), expected, rtol=2e-7, atol=0)
    top = torch.full((40, 64), 15, dtype=torch.uint8)
    packed = pack_int4(
        library, Format.INT4, top, torch.ones(40, 2).half(), torch.zeros(40, 2).half()
    )
    torch.testing.assert_close(packed.linear(x), -15 / 128 * expected, rtol=2e-7, atol=0)


def test_numbers_beside_a_larger_one_keep_what_its_last_place_lets_them(make):
    packed, weight = make(40, 96)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(4))
    x[1, 40], x[2, 95] = 3000.0, -1e30
    check_product(packed, weight, x)


def test_a_row_is_bitwise_the_same_in_any_batch_and_with_any_threads(make):
    packed, _ = make(161, 416)
    check_that_rows_do_not_depend_on_the_batch(packed, (1, 2, 3, 4, 5, 8, 31))


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_show_in_their_row_alone(make, special):
    packed, _ = make(40, 96)
    check_that_rows_show_what_is_not_finite(packed, special)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-31])
def test_numbers_too_small_for_a_unit_count_as_zeros(make, size):
    packed, _ = make(40, 64)
    assert torch.equal(packed.linear(torch.full((2, 64), size)), torch.zeros(2, 40))


def test_no_rows_give_no_rows(make):
    packed, _ = make(40, 24)
    assert packed.linear(torch.empty(0, 24)).shape == (0, 40)
