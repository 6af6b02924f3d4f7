"""Weights of 16, 8 and 4 bits mean exact numbers, and compute bitwise what these numbers do.

As processors without dot products compute with them; `test_wide_linear` has the others.
"""

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.kernels.cpu.linear import PackedLinear
from engine.kernels.cpu.quantized_linear import (
    GROUP,
    Format,
    QuantizedWeight,
    pack_bf16,
    pack_int4,
    pack_int8,
)
from tests.engine.kernels.layers import by_group, check_that_rows_do_not_depend_on_the_batch

SHAPES = [(1, 1), (7, 3), (31, 33), (64, 64), (65, 193), (100, 37), (96, 416)]
Layer = tuple[QuantizedWeight, torch.Tensor]


def random_scales(columns: int, depth: int, generator: torch.Generator) -> torch.Tensor:
    scales = torch.randn(columns, -(-depth // GROUP), generator=generator).half()
    # Numbers without an exponent of their own, the largest one, zero.
    special = torch.tensor([6e-8, -3e-6, 65504.0, 0.0]).half()
    flat = scales.view(-1)
    flat[: min(4, len(flat) - 1)] = special[: min(4, len(flat) - 1)]
    return scales


def bf16(library, columns: int, depth: int, generator: torch.Generator) -> Layer:
    weight = torch.randn(columns, depth, generator=generator).bfloat16()
    return pack_bf16(library, weight), weight.float()


def int8_rows(library, columns: int, depth: int, generator: torch.Generator) -> Layer:
    codes = torch.randint(-128, 128, (columns, depth), generator=generator, dtype=torch.int8)
    scales = torch.randn(columns, generator=generator)
    return pack_int8(library, Format.INT8_ROWS, codes, scales), codes.float() * scales[:, None]


def int8(library, columns: int, depth: int, generator: torch.Generator) -> Layer:
    codes = torch.randint(-128, 128, (columns, depth), generator=generator, dtype=torch.int8)
    scales = random_scales(columns, depth, generator)
    packed = pack_int8(library, Format.INT8, codes, scales)
    return packed, codes.float() * by_group(scales, depth)


def int4(library, columns: int, depth: int, generator: torch.Generator) -> Layer:
    codes = torch.randint(0, 16, (columns, depth), generator=generator, dtype=torch.uint8)
    scales = torch.randn(columns, -(-depth // GROUP), generator=generator).half()
    minima = random_scales(columns, depth, generator)
    weight = codes.float() * by_group(scales, depth) + by_group(minima, depth)
    return pack_int4(library, Format.INT4, codes, scales, minima), weight


@pytest.fixture(autouse=True)
def without_dot_products(library) -> Iterator[None]:
    used = library.use_wide_products(0)
    yield
    library.use_wide_products(used)


@pytest.fixture(params=[bf16, int8_rows, int8, int4], ids=lambda make: make.__name__)
def make(request, library) -> Callable[[int, int], Layer]:
    def make_layer(columns: int, depth: int) -> Layer:
        generator = torch.Generator().manual_seed(columns * 1000 + depth)
        return request.param(library, columns, depth, generator)

    return make_layer


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_every_weight_means_exactly_one_number(make, columns, depth):
    packed, weight = make(columns, depth)
    assert torch.equal(packed.rows(torch.arange(columns)), weight)


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_computes_bitwise_what_float32_weights_compute(library, make, columns, depth, with_bias):
    packed, weight = make(columns, depth)
    generator = torch.Generator().manual_seed(3)
    bias = torch.randn(columns, generator=generator) if with_bias else None
    plain = PackedLinear(library, weight, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 40, 259):
        x = torch.randn(rows, depth, generator=generator)
        assert torch.equal(packed.linear(x, bias), plain(x)), rows


def test_a_row_is_bitwise_the_same_in_any_batch_and_with_any_threads(make):
    packed, _ = make(161, 416)
    check_that_rows_do_not_depend_on_the_batch(packed, (1, 2, 5, 12, 13, 31))


def test_leading_dimensions_and_strides_are_kept(make):
    packed, weight = make(40, 24)
    x = torch.randn(3, 48, 5, generator=torch.Generator().manual_seed(2)).transpose(1, 2)[..., ::2]
    expected = torch.nn.functional.linear(x.double(), weight.double())
    scale = float(expected.abs().max())
    torch.testing.assert_close(packed.linear(x).double(), expected, atol=1e-6 * scale, rtol=1e-5)


def test_no_rows_give_no_rows(make):
    packed, _ = make(40, 24)
    assert packed.linear(torch.empty(0, 24)).shape == (0, 40)
    assert packed.rows(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0, 24)


def test_rows_are_found_by_any_shape_of_indices(make):
    packed, weight = make(70, 24)
    indices = torch.tensor([[69, 0], [33, 33]])
    assert torch.equal(packed.rows(indices), weight[indices])


@pytest.mark.parametrize("index", [-1, 40])
def test_a_row_that_is_not_there_is_refused(make, index):
    packed, _ = make(40, 24)
    with pytest.raises(IndexError, match="outside of 40 rows"):
        packed.rows(torch.tensor([0, index]))


def test_numbers_of_the_wrong_shape_never_reach_the_kernels(library):
    codes = torch.zeros(4, 40, dtype=torch.uint8)
    scales = torch.ones(4, 2).half()
    with pytest.raises(AssertionError):
        pack_int4(library, Format.INT4, codes, scales, torch.ones(4, 1).half())
    with pytest.raises(AssertionError):
        pack_int4(library, Format.INT4, codes, scales.float(), scales)
    with pytest.raises(AssertionError):
        pack_int8(library, Format.INT8_ROWS, codes.view(torch.int8), torch.ones(5))
