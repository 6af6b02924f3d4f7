"""A mixture of experts in one call; see mixture.h.

Engine thread, on torch's own thread team. The structure repeats that of the C++ side, eight bytes a
field; the tensors behind the pointers are held by the object that fills them in.
"""

import ctypes
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.kernels.cpu.linear import LinearStructure, LinearView
from engine.kernels.cpu.rows import Activation
from engine.kernels.operators import define_operator

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NUMBERS = itertools.count()


class _Mixture(ctypes.Structure):
    _fields_ = (
        ("router", LinearStructure), ("gate_up", _P), ("down", _P), ("experts", _I), ("chosen", _I),
        ("normalises", _I), ("shares", _I), ("activation", _I),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Routing:
    """Where rows go.

    Attributes:
        chosen: Experts that a row goes to, those with the highest logits.
        normalises: Whether what they count adds up to 1; if not, each counts its share of all.
        shares: Whether every row goes to one expert more, the last one.
    """

    chosen: int
    normalises: bool
    shares: bool


class Mixture:
    """Gated MLPs of which each row goes to a few."""

    def __init__(
        self,
        library: ctypes.CDLL,
        router: LinearView,
        experts: Sequence[tuple[LinearView, LinearView]],
        routing: Routing,
        activation: Activation,
    ) -> None:
        """Lay out the experts for the kernel.

        Args:
            library: The kernels.
            router: A row for each expert that can be chosen; one more for the gate of the shared
                expert, without which it counts 1.
            experts: Gate and up, and down, of each expert; of one format.
            routing: Where rows go.
            activation: Of the gates.
        """
        self._library = library
        # What the structure points at.
        self._held = (router, list(experts))
        count = len(experts)
        self._gate_up = (LinearStructure * count)(*(first.structure() for first, _ in experts))
        self._down = (LinearStructure * count)(*(second.structure() for _, second in experts))
        self._structure = _Mixture(
            router=router.structure(),
            gate_up=ctypes.addressof(self._gate_up),
            down=ctypes.addressof(self._down),
            experts=count - routing.shares,
            chosen=routing.chosen,
            normalises=routing.normalises,
            shares=routing.shares,
            activation=activation,
        )
        self._number = next(_NUMBERS)
        _KNOWN[self._number] = self

    @property
    def address(self) -> int:
        """Where other kernels find it, as long as this object lives."""
        return ctypes.addressof(self._structure)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., W] for x [..., W], both fp32."""
        if torch.compiler.is_dynamo_compiling():
            return _mix(x, self._number)
        return self.compute(x)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Do what a call does, where nothing is compiled."""
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, threads = x.numel() // x.shape[-1], torch.get_num_threads()
        if rows == 0:
            return y
        size = self._library.mixture_workspace(self.address, rows, threads)
        workspace = torch.empty(size)
        self._library.mix(
            self.address, x.data_ptr(), y.data_ptr(), rows, workspace.data_ptr(), threads
        )
        return y


_KNOWN: weakref.WeakValueDictionary[int, Mixture] = weakref.WeakValueDictionary()

_mix = define_operator(
    "mix(Tensor x, int number) -> Tensor",
    lambda x, number: _KNOWN[number].compute(x),
    lambda x, number: x.new_empty(x.shape),
)
