"""What a layer does to its rows: rotary positions and gates, against torch."""

import pytest
import torch
from torch.nn import functional

from engine.kernels.cpu.rows import Activation, Norm, gate_mul, norm_rows, rotate


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def turned(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    halves = torch.cat((-second, first), dim=-1)
    return heads * cosines[:, None] + halves * sines[:, None]


@pytest.mark.parametrize("width", [2, 6, 64, 80])
def test_heads_are_turned_by_their_rows_angles(width, library):
    heads, angles = random(5, 3, width), random(5, width)
    cosines, sines = angles.cos(), angles.sin()
    expected = turned(heads, cosines, sines)
    torch.testing.assert_close(rotate(library, heads, cosines, sines), expected)
    wide = torch.cat((sines, cosines), dim=1)  # angles that lie in one tensor, rows apart
    strided = rotate(library, heads, wide[:, width:], sines)
    torch.testing.assert_close(strided, expected)
    flipped = rotate(library, heads, cosines.T.contiguous().T, sines.T.contiguous().T)
    torch.testing.assert_close(flipped, expected)


@pytest.mark.parametrize("turned_width", [2, 6, 40])
def test_what_angles_do_not_reach_of_a_head_stays(turned_width, library):
    heads, angles = random(5, 3, 80), random(5, turned_width)
    cosines, sines = angles.cos(), angles.sin()
    expected = torch.cat(
        (turned(heads[..., :turned_width], cosines, sines), heads[..., turned_width:]), dim=-1
    )
    torch.testing.assert_close(rotate(library, heads, cosines, sines), expected)


@pytest.mark.parametrize(
    ("heads", "cosines", "sines"),
    [
        ((5, 3, 8), (5, 10), (5, 10)),  # more than a head
        ((5, 3, 8), (5, 4), (5, 8)),
        ((5, 3, 8), (5, 8), (5, 4)),
        ((5, 3, 8), (5, 16), (5, 16)),
        ((5, 3, 8), (1, 8), (1, 8)),  # angles for one row
        ((5, 3, 8), (8,), (8,)),
        ((5, 3, 7), (5, 7), (5, 7)),  # no halves
        ((5, 3, 8), (5, 5), (5, 5)),
    ],
    ids=str,
)
def test_angles_that_are_not_those_of_these_heads_are_refused(heads, cosines, sines, library):
    """The kernel would read beyond them, or leave what it does not turn unwritten."""
    with pytest.raises(ValueError, match="angles of the shapes"):
        rotate(library, random(*heads), random(*cosines), random(*sines))


@pytest.mark.parametrize("width", [1, 7, 16, 100])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 100.0])
def test_a_norm_is_what_torch_computes(magnitude, width, library):
    x = magnitude * (random(5, width) + 1)
    weight, bias = random(width), 1 - random(width)
    for ours, expected in (
        (Norm(weight, 1e-5), functional.rms_norm(x, (width,), weight, 1e-5)),
        (Norm(weight, 1e-5, bias), functional.rms_norm(x, (width,), weight, 1e-5) + bias),
        (Norm(weight, 1e-5, None, True), functional.layer_norm(x, (width,), weight, None, 1e-5)),
        (Norm(weight, 1e-5, bias, True), functional.layer_norm(x, (width,), weight, bias, 1e-5)),
    ):
        torch.testing.assert_close(norm_rows(library, x, ours), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("width", [1, 7, 16, 100])
def test_a_gate_lets_pass_what_its_activation_says(width, library):
    x = 6 * random(5, 2 * width)
    x[0, 0], x[1, 0] = 300.0, -300.0
    gate, up = x.chunk(2, dim=-1)
    for activation, expected in (
        (Activation.SILU, functional.silu(gate)),
        (Activation.GELU_TANH, functional.gelu(gate, approximate="tanh")),
    ):
        ours = gate_mul(library, x, activation)
        torch.testing.assert_close(ours, expected * up, rtol=1e-5, atol=1e-5)
