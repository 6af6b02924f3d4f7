"""Packed linear layers: right, and bitwise the same for a row whatever it is batched with."""

import pytest
import torch
from torch.nn import functional

from engine.kernels.cpu import build as kernel_build
from engine.kernels.cpu.build import GENERIC
from engine.kernels.cpu.library import load_library
from engine.kernels.cpu.linear import PackedLinear

SHAPES = [(1, 1), (7, 3), (31, 5), (32, 64), (33, 193), (100, 37), (576, 200), (96, 1024)]


def random_layer(library, columns, depth, *, bias=True):
    generator = torch.Generator().manual_seed(columns * 1000 + depth)
    weight = torch.randn(columns, depth, generator=generator)
    offset = torch.randn(columns, generator=generator) if bias else None
    return weight, offset, PackedLinear(library, weight, offset)


def test_the_native_kernels_are_what_is_tested():
    assert load_library() is not None


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 12, 13, 40])
def test_it_computes_what_torch_computes_in_double(library, columns, depth, rows):
    weight, bias, layer = random_layer(library, columns, depth)
    x = torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows))
    exact = functional.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-6 * depth
    torch.testing.assert_close(layer(x).double(), exact, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize(("columns", "depth"), [(33, 193), (576, 576)])
def test_a_row_is_bitwise_the_same_in_any_batch_and_with_any_threads(library, columns, depth):
    _, _, layer = random_layer(library, columns, depth)
    rows = torch.randn(259, depth, generator=torch.Generator().manual_seed(1))
    alone = [layer(rows[i : i + 1])[0] for i in range(len(rows))]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for size in (1, 2, 5, 8, 12, 13, 67, 259):
                together = layer(rows[:size])
                for row in range(size):
                    assert torch.equal(together[row], alone[row]), (count, size, row)
    finally:
        torch.set_num_threads(threads)


def test_leading_dimensions_and_strides_are_kept(library):
    weight, _, layer = random_layer(library, 40, 24, bias=False)
    x = torch.randn(3, 48, 5, generator=torch.Generator().manual_seed(2)).transpose(1, 2)[..., ::2]
    assert x.shape == (3, 5, 24)
    torch.testing.assert_close(layer(x), functional.linear(x, weight), atol=1e-4, rtol=1e-5)


def test_no_rows_give_no_rows(library):
    _, _, layer = random_layer(library, 40, 24)
    assert layer(torch.empty(0, 24)).shape == (0, 40)


def test_without_a_compiler_nothing_is_built_and_one_line_says_so(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(kernel_build, "BUILD_FOLDER", tmp_path / "build")
    monkeypatch.setattr(kernel_build, "COMPILERS", ("no-such-compiler",))
    assert kernel_build.build(GENERIC) is None
    assert "no C++ compiler" in caplog.text


def test_a_compiler_that_fails_is_survived(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(kernel_build, "BUILD_FOLDER", tmp_path / "build")
    monkeypatch.setattr(kernel_build, "COMPILERS", ("false",))
    assert kernel_build.build(GENERIC) is None
    assert "were not built" in caplog.text
