"""All layers of a decoder in one call; see decoder.cpp.

Engine thread, on torch's own thread team. The structures repeat those of the C++ side, eight bytes
a field; the tensors behind the pointers are held by the objects that fill them in.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.cpu.linear import LinearView

_P, _I, _D = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Linear(ctypes.Structure):
    _fields_ = (
        ("format", _I), ("panels", _P), ("bias", _P), ("columns", _I), ("depth", _I),
    )  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", _P), ("qkv", _Linear), ("query_norm", _P), ("key_norm", _P),
        ("out", _Linear), ("mlp_norm", _P), ("gate_up", _Linear), ("down", _Linear),
        ("keys", _P), ("values", _P), ("window", _I), ("attention_epsilon", _D),
        ("query_epsilon", _D), ("key_epsilon", _D), ("mlp_epsilon", _D), ("scaling", _D),
        ("softcap", _D),
    )  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = (
        ("layers", _P), ("x", _P), ("cosines", _P), ("sines", _P), ("slots", _P),
        ("block_table", _P), ("query_starts", _P), ("context_lengths", _P), ("workspace", _P),
        ("num_layers", _I), ("rows", _I), ("hidden", _I), ("heads", _I), ("kv_heads", _I),
        ("head_dim", _I), ("intermediate", _I), ("requests", _I), ("table_width", _I),
        ("page_size", _I), ("threads", _I),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Norm:
    """A root-mean-square norm: its weight [W], and what is added to the mean square."""

    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """What a layer consists of.

    Attributes:
        attention_norm: Before attention.
        qkv: Query, key and value heads, one after another.
        query_norm: Of each query head, or None.
        key_norm: Of each key head, or None.
        out: After attention.
        mlp_norm: Before the MLP.
        gate_up: The gate and what it multiplies.
        down: After these.
        window: Positions a query sees, itself included; 0 is all before it.
        scaling: Factor on the scores.
        softcap: Limit of the scores, or 0.
    """

    attention_norm: Norm
    qkv: LinearView
    query_norm: Norm | None
    key_norm: Norm | None
    out: LinearView
    mlp_norm: Norm
    gate_up: LinearView
    down: LinearView
    window: int
    scaling: float
    softcap: float


@dataclass(frozen=True, slots=True)
class CachedStep:
    """Where a step's tokens stand in a paged cache; T tokens of R requests.

    Attributes:
        keys: [slots, Hkv, D] fp32 of each layer.
        values: Likewise.
        slots: [T] int64, where each token's key and value go.
        block_table: [R, B] int32.
        query_starts: [R + 1] int64, offsets into T.
        context_lengths: [R] int64, positions of each request, this step's included.
        page_size: Positions in a block.
    """

    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    slots: torch.Tensor
    block_table: torch.Tensor
    query_starts: NDArray[np.int64]
    context_lengths: NDArray[np.int64]
    page_size: int


class Decoder:
    """The layers of one model, ready to run."""

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[DecoderLayer],
        num_heads: int,
        num_kv_heads: int,
    ) -> None:
        """Lay out the layers for the kernel.

        Args:
            library: The kernels.
            layers: All of one shape; held as long as this object.
            num_heads: Query heads.
            num_kv_heads: Key and value heads.
        """
        self._library = library
        self._layers = list(layers)
        self._array = (_Layer * len(layers))(*map(_describe, layers))
        self._cache: Sequence[torch.Tensor] = ()
        first = layers[0]
        self._sizes = {
            "num_layers": len(layers),
            "hidden": first.qkv.depth,
            "heads": num_heads,
            "kv_heads": num_kv_heads,
            "head_dim": first.qkv.columns // (num_heads + 2 * num_kv_heads),
            "intermediate": first.down.depth,
        }

    def run(
        self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, step: CachedStep
    ) -> None:
        """Compute the layers, and store this step's keys and values.

        Args:
            x: [T, hidden] fp32 contiguous, the embedded tokens; becomes the last layer's output.
            cosines: [T, D] fp32, of each token's position.
            sines: [T, D].
            step: The cache and the tokens' places in it.
        """
        self._take_cache(step)
        cosines, sines = cosines.contiguous(), sines.contiguous()
        described = _Step(
            layers=ctypes.addressof(self._array),
            x=x.data_ptr(),
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            slots=step.slots.data_ptr(),
            block_table=step.block_table.data_ptr(),
            query_starts=step.query_starts.ctypes.data,
            context_lengths=step.context_lengths.ctypes.data,
            rows=len(x),
            requests=step.block_table.shape[0],
            table_width=step.block_table.shape[1],
            page_size=step.page_size,
            threads=torch.get_num_threads(),
            **self._sizes,
        )
        workspace = torch.empty(self._library.decoder_workspace(ctypes.byref(described)))
        described.workspace = workspace.data_ptr()
        self._library.run_decoder(ctypes.byref(described))

    def _take_cache(self, step: CachedStep) -> None:
        """Point the layers at a cache, unless they are."""
        if step.keys is self._cache:
            return
        for layer, keys, values in zip(self._array, step.keys, step.values, strict=True):
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
        self._cache = step.keys


def _describe(layer: DecoderLayer) -> _Layer:
    attention, query, key, mlp = (
        (None, 0.0) if norm is None else (norm.weight.data_ptr(), norm.epsilon)
        for norm in (layer.attention_norm, layer.query_norm, layer.key_norm, layer.mlp_norm)
    )
    return _Layer(
        attention_norm=attention[0],
        attention_epsilon=attention[1],
        qkv=_describe_linear(layer.qkv),
        query_norm=query[0],
        query_epsilon=query[1],
        key_norm=key[0],
        key_epsilon=key[1],
        out=_describe_linear(layer.out),
        mlp_norm=mlp[0],
        mlp_epsilon=mlp[1],
        gate_up=_describe_linear(layer.gate_up),
        down=_describe_linear(layer.down),
        window=layer.window,
        scaling=layer.scaling,
        softcap=layer.softcap,
    )


def _describe_linear(linear: LinearView) -> _Linear:
    bias = None if linear.bias is None else linear.bias.data_ptr()
    return _Linear(linear.format, linear.panels.data_ptr(), bias, linear.columns, linear.depth)
