"""What rows of each format mean, and how far that is from what was stored."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.row_formats import (
    choose_rows,
    decode_rows,
    dtype_name,
    encode_rows,
    head_width,
    row_width,
)
from engine.errors import UnsupportedConfigError

CPU = torch.device("cpu")
# Half of the last place: relative to the number, but for int8, where it is to the row's largest.
ROUNDING = {
    torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.int8: 0.5 / 127,
}  # fmt: skip


def stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rows = encode_rows(numbers, dtype)
    assert rows.dtype == dtype
    assert rows.shape == (*numbers.shape[:-1], row_width(numbers.shape[-1], dtype))
    assert head_width(rows) == numbers.shape[-1]
    return decode_rows(rows, torch.float32)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_numbers_come_back_rounded(dtype):
    numbers = torch.rand(50, 3, 20, generator=torch.Generator().manual_seed(0)) + 0.1
    numbers[::2] *= -1
    error = (stored(numbers, dtype) - numbers).abs()
    size = numbers.abs()
    if dtype == torch.int8:
        size = size.amax(-1, keepdim=True).expand_as(numbers)
    assert (error <= ROUNDING[dtype] * size * 1.0001).all()
    assert (error > 0).any() == (dtype != torch.float32)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_row_does_not_depend_on_its_neighbours(dtype):
    numbers = torch.randn(6, 2, 9, generator=torch.Generator().manual_seed(1))
    numbers[0] *= 1000
    rows = encode_rows(numbers, dtype)
    for index in range(6):
        assert torch.equal(encode_rows(numbers[index], dtype), rows[index])


@pytest.mark.parametrize("dtype", ROUNDING)
def test_zeros_and_tiny_numbers_stay_finite(dtype):
    assert (stored(torch.zeros(2, 8), dtype) == 0).all()
    tiny = stored(torch.full((1, 8), 1e-39), dtype)
    assert (tiny.abs() <= 1.1e-39).all()


@pytest.mark.parametrize("dtype", ROUNDING)
def test_what_is_not_finite_can_be_told(dtype):
    """So that the request it belongs to is found, and no other is harmed."""
    numbers = torch.ones(3, 8)
    numbers[1, 2] = float("nan")
    decoded = stored(numbers, dtype)
    assert torch.isnan(decoded[1, 2])
    assert torch.equal(decoded[[0, 2]], torch.ones(2, 8))
    if dtype == torch.int8:
        infinite = torch.ones(1, 8)
        infinite[0, 0] = float("inf")
        assert torch.isnan(stored(infinite, dtype)).all()


def test_what_fp16_cannot_hold_becomes_its_largest():
    numbers = torch.tensor([[1e6, -1e6, 65504.0, 65519.9, 1.0]])
    assert stored(numbers, torch.float16).tolist() == [[65504.0, -65504.0, 65504.0, 65504.0, 1.0]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40))
def test_the_largest_of_a_row_of_8_bits_is_exact(numbers):
    """To float32, and no other number becomes larger."""
    row = torch.tensor([numbers])
    decoded = stored(row, torch.int8)
    largest = row.abs().max()
    if largest > 1e-30:
        assert torch.isclose(decoded.abs().max(), largest, rtol=1e-6, atol=0)


def test_other_dtypes_are_kept_as_they_are():
    """A test's model keeps whole numbers in a cache."""
    numbers = torch.arange(6).view(2, 3)
    assert torch.equal(encode_rows(numbers, torch.int64), numbers)


def test_auto_is_the_dtype_of_the_model():
    assert choose_rows("auto", torch.bfloat16, CPU) == torch.bfloat16
    assert choose_rows("fp32", torch.bfloat16, CPU) == torch.float32
    assert choose_rows("int8", torch.float32, CPU) == torch.int8
    assert [dtype_name(dtype) for dtype in ROUNDING] == ["fp32", "bf16", "fp16", "int8"]
    assert dtype_name(torch.float64) == "torch.float64"


def test_another_device_has_no_other_rows():
    gpu = torch.device("cuda")
    assert choose_rows("fp16", torch.float16, gpu) == torch.float16
    with pytest.raises(UnsupportedConfigError, match="kv_cache_dtype is 'int8'") as caught:
        choose_rows("int8", torch.float16, gpu)
    assert caught.value.field == "kv_cache_dtype"
