"""Rounding a matrix to a format: how far off it may be, and what is kept exactly."""

import pytest
import torch

from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.quantized_linear import GROUP, Format
from engine.models.quantization import is_exact, quantize

SHAPES = [(1, 1), (5, 31), (4, 64), (7, 100)]


def matrix(rows: int, depth: int) -> torch.Tensor:
    return torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows + depth))


def largest_error(weight: torch.Tensor, kind: Format) -> torch.Tensor:
    """What rounding to the nearest code may be off by, for each number."""
    if kind is Format.BF16:
        return weight.abs() / 2**8
    if kind is Format.INT8_ROWS:
        return (weight.abs().amax(dim=1, keepdim=True) / 254).expand_as(weight)
    groups = torch.zeros_like(weight)
    for begin in range(0, weight.shape[1], GROUP):
        part = weight[:, begin : begin + GROUP]
        span = part.amax(dim=1) - part.amin(dim=1)
        half_step = part.abs().amax(dim=1) / 254 if kind is Format.INT8 else span / 30
        groups[:, begin : begin + GROUP] = half_step[:, None]
    # Scales and minima are rounded to 11 bits.
    return groups + 4 * weight.abs().amax() / 2**11


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize(("rows", "depth"), SHAPES)
def test_no_number_is_further_off_than_half_a_step(kind, rows, depth):
    weight = matrix(rows, depth)
    numbers = quantize(weight, kind).numbers()
    assert ((numbers - weight).abs() <= 1.001 * largest_error(weight, kind)).all()


@pytest.mark.parametrize("kind", Format)
def test_rounding_what_was_rounded_changes_nothing(kind):
    once = quantize(matrix(6, 70), kind).numbers()
    torch.testing.assert_close(quantize(once, kind).numbers(), once, atol=3e-3, rtol=0)
    if kind in (Format.BF16, Format.INT8_ROWS):
        torch.testing.assert_close(quantize(once, kind).numbers(), once, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", Format)
def test_equal_numbers_and_zeros_are_kept(kind):
    weight = torch.zeros(3, 40)
    weight[1] = 0.5
    weight[2, :GROUP] = -2.0
    torch.testing.assert_close(quantize(weight, kind).numbers(), weight, atol=0, rtol=1e-3)


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused(kind, value):
    weight = matrix(3, 40)
    weight[1, 35] = value
    with pytest.raises(ValueError, match=r"finite|no such form"):
        quantize(weight, kind)


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
def test_what_a_float16_scale_cannot_reach_is_refused(kind):
    with pytest.raises(ValueError, match="no such form"):
        quantize(torch.tensor([[1e9, -1e9, 0.0]]), kind)


@pytest.mark.parametrize("kind", Format)
def test_rows_are_selected_with_their_scales(kind):
    stored = quantize(matrix(7, 70), kind)
    order = torch.tensor([6, 0, 3])
    assert torch.equal(stored.select(order).numbers(), stored.numbers()[order])


@pytest.mark.parametrize("kind", Format)
def test_the_kernels_read_the_numbers_that_are_meant(kind):
    stored = quantize(matrix(40, 70), kind)
    packed = stored.pack(kernels())
    assert packed.format is kind
    assert torch.equal(packed.rows(torch.arange(40)), stored.numbers())


def test_bfloat16_holds_what_it_made():
    weight = matrix(4, 50)
    assert not is_exact(weight)
    assert is_exact(weight.bfloat16().float())
    assert not is_exact(torch.tensor([float("nan")]))
