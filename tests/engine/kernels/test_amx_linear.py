"""Linear layers on the tile unit: close to double precision, and no row knows of another."""

from collections.abc import Callable

import pytest
import torch

from engine.kernels.cpu.quantized_linear import (
    Format,
    QuantizedWeight,
    has_tile_unit,
    pack_amx_bf16,
)

SHAPES = [(1, 1), (7, 3), (31, 33), (32, 32), (64, 64), (65, 193), (100, 37), (96, 416)]
# Rows of none, one and several tiles, the last one full or not.
ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 48, 70)
Layer = tuple[QuantizedWeight, torch.Tensor]


@pytest.fixture(params=[Format.AMX_BF16, Format.AMX_BF16X3], ids=lambda kind: kind.name)
def make(request, library) -> Callable[[int, int], Layer]:
    if not has_tile_unit(library):
        # No other processor has the instructions; that the format is refused there is tested in
        # tests/engine/models/test_weight_formats.py.
        pytest.skip("needs a processor with a tile unit, and a build that uses it")

    def make_layer(columns: int, depth: int) -> Layer:
        generator = torch.Generator().manual_seed(columns * 1000 + depth)
        weight = torch.randn(columns, depth, generator=generator) / depth**0.5
        meant = weight.bfloat16().float()
        if request.param is Format.AMX_BF16X3:
            meant = meant + (weight - meant).bfloat16().float()
        return pack_amx_bf16(library, request.param, weight), meant

    return make_layer


def random_rows(count: int, depth: int) -> torch.Tensor:
    return torch.randn(count, depth, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_every_weight_means_exactly_one_number(make, columns, depth):
    packed, meant = make(columns, depth)
    assert torch.equal(packed.rows(torch.arange(columns)), meant)


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_little_is_lost_of_numbers_taken_in_two_parts(make, columns, depth, with_bias):
    packed, meant = make(columns, depth)
    bias = torch.arange(columns).float() if with_bias else None
    for rows in ROWS:
        x = random_rows(rows, depth)
        exact = x.double() @ meant.double().T
        # What each factor may lose, over the sum of all magnitudes.
        bound = 2**-15 * (x.abs().double() @ meant.abs().double().T) + 1e-7 * columns
        ours = packed.linear(x, bias).double() - (0 if bias is None else bias)
        assert ((ours - exact).abs() <= bound).all(), rows


def test_a_row_is_bitwise_the_same_in_any_batch_and_with_any_threads(make):
    packed, _ = make(161, 416)
    rows = random_rows(70, 416)
    alone = [packed.linear(rows[i : i + 1])[0] for i in range(len(rows))]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for size in ROWS:
                together = packed.linear(rows[:size])
                for row in range(size):
                    assert torch.equal(together[row], alone[row]), (count, size, row)
    finally:
        torch.set_num_threads(threads)


def test_large_and_small_numbers_keep_their_precision(make):
    packed, meant = make(64, 96)
    x = random_rows(3, 96) * torch.tensor([[1e-20], [1.0], [1e20]])
    exact = x.double() @ meant.double().T
    scale = exact.abs().amax(dim=1, keepdim=True)
    assert ((packed.linear(x).double() - exact).abs() / scale).max() < 1e-4


def test_a_row_that_is_not_finite_spoils_no_other(make):
    packed, _ = make(64, 96)
    x = random_rows(20, 96)
    clean = packed.linear(x)
    x[3, 5] = float("nan")
    spoilt = packed.linear(x)
    others = [row for row in range(20) if row != 3]
    assert torch.equal(spoilt[others], clean[others])
    assert spoilt[3].isnan().all()
