"""Norms, gated activations and rotary positions, row by row; all fp32 on the CPU.

Each is a function on the kernels and, for the length of a compilation, an operator of torch.
"""

import ctypes
import enum
from dataclasses import dataclass

import torch

from engine.kernels.cpu.library import kernels
from engine.kernels.operators import define_operator


class Activation(enum.IntEnum):
    """What a gate lets pass: the numbers of rows.h."""

    SILU = 0
    # Gaussian error linear unit, by its approximation with a hyperbolic tangent.
    GELU_TANH = 1


class NormStructure(ctypes.Structure):
    """A norm as rows.h has it: eight bytes a field."""

    _fields_ = (
        ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("width", ctypes.c_int64),
        ("centres", ctypes.c_int64), ("epsilon", ctypes.c_double),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm of rows [W].

    Attributes:
        weight: [W] fp32.
        epsilon: Added to the mean square.
        bias: [W] fp32, added in the end, or None.
        centres: Whether a row's mean is taken away first (a layer norm; if not, a
            root-mean-square norm).
    """

    weight: torch.Tensor
    epsilon: float
    bias: torch.Tensor | None = None
    centres: bool = False

    def structure(self) -> NormStructure:
        """Return what the kernels read; it points into the tensors."""
        bias = None if self.bias is None else self.bias.data_ptr()
        width = self.weight.numel()
        return NormStructure(self.weight.data_ptr(), bias, width, self.centres, self.epsilon)


def norm_rows(library: ctypes.CDLL, x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """Return each row of x [..., W] normed."""
    if torch.compiler.is_dynamo_compiling():
        return _norm_rows(x, norm.weight, norm.bias, norm.epsilon, norm.centres)
    x = x.contiguous()
    y = torch.empty_like(x)
    rows = x.numel() // x.shape[-1]
    structure = ctypes.byref(norm.structure())
    library.norm_rows(structure, x.data_ptr(), y.data_ptr(), rows, torch.get_num_threads())
    return y


def gate_mul(library: ctypes.CDLL, x: torch.Tensor, activation: int) -> torch.Tensor:
    """Return activation(gate) * up for x = [..., gate | up]: [..., W] from [..., 2 W].

    Args:
        library: The kernels.
        x: Contiguous.
        activation: Of `Activation`; a plain number, for operators of torch.
    """
    if torch.compiler.is_dynamo_compiling():
        return _gate_mul(x, activation)
    width = x.shape[-1] // 2
    y = torch.empty(*x.shape[:-1], width)
    rows = x.numel() // (2 * width)
    library.gate_mul(activation, x.data_ptr(), y.data_ptr(), rows, width, torch.get_num_threads())
    return y


def rotate(
    library: ctypes.CDLL, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> torch.Tensor:
    """Turn each head by its row's angles (rotary positions, Su et al. 2021, halves layout).

    Args:
        library: The kernels.
        heads: [T, H, D]; a row's heads lie side by side, rows may be apart.
        cosines: [T, W], W even and at most D: the first W of each head are turned.
        sines: [T, W].

    Returns:
        [T, H, D] contiguous.

    Raises:
        ValueError: The angles are not those of these rows' heads.
    """
    if torch.compiler.is_dynamo_compiling():
        return _rotate(heads, cosines, sines)
    rows, count, width = heads.shape
    assert heads.stride()[1:] == (width, 1)
    turned = cosines.shape[-1]
    fits = cosines.shape == sines.shape == (rows, turned) and turned <= width
    if not fits or turned % 2:
        raise ValueError(
            f"{rows} rows of heads {width} wide are turned by angles of the shapes "
            f"{tuple(cosines.shape)} and {tuple(sines.shape)}"
        )
    if cosines.stride() != sines.stride() or cosines.stride(1) != 1:
        cosines, sines = cosines.contiguous(), sines.contiguous()
    y = torch.empty(rows, count, width)
    sizes = (heads.stride(0), cosines.stride(0), rows, count, turned, width)
    library.rotate(
        heads.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        y.data_ptr(),
        (ctypes.c_int64 * 7)(*sizes, torch.get_num_threads()),
    )
    return y


_norm_rows = define_operator(
    "norm_rows(Tensor x, Tensor weight, Tensor? bias, float epsilon, bool centres) -> Tensor",
    lambda x, weight, bias, epsilon, centres: norm_rows(
        kernels(), x, Norm(weight, epsilon, bias, centres)
    ),
    lambda x, weight, bias, epsilon, centres: x.new_empty(x.shape),
)
_gate_mul = define_operator(
    "gate_mul(Tensor x, int activation) -> Tensor",
    lambda x, activation: gate_mul(kernels(), x, activation),
    lambda x, activation: x.new_empty(*x.shape[:-1], x.shape[-1] // 2),
)
_rotate = define_operator(
    "rotate(Tensor heads, Tensor cosines, Tensor sines) -> Tensor",
    lambda heads, cosines, sines: rotate(kernels(), heads, cosines, sines),
    lambda heads, cosines, sines: heads.new_empty(heads.shape),
)
