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

from engine.kernels.cpu.kv_rows import KV_FORMATS, CachedRowsStructure, describe_rows
from engine.kernels.cpu.linear import LinearStructure, LinearView
from engine.kernels.cpu.mixture import Mixture
from engine.kernels.cpu.rows import Activation, Norm, NormStructure

# Cosines and sines [T, W] fp32 of each token's position; the first W of a head are turned.
Rotation = tuple[torch.Tensor, torch.Tensor]

_P, _I, _D = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Rotation(ctypes.Structure):
    _fields_ = (("cosines", _P), ("sines", _P), ("width", _I))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("before_attention", NormStructure), ("qkv", LinearStructure),
        ("query_norm", NormStructure), ("key_norm", NormStructure), ("out", LinearStructure),
        ("after_attention", NormStructure), ("before_mlp", NormStructure),
        ("gate_up", LinearStructure), ("down", LinearStructure), ("mixture", _P),
        ("after_mlp", NormStructure), ("keys", CachedRowsStructure),
        ("values", CachedRowsStructure), ("activation", _I), ("rotation", _I), ("window", _I),
        ("scaling", _D), ("softcap", _D), ("factor", _D),
    )  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = (
        ("layers", _P), ("x", _P), ("rotations", _P), ("slots", _P),
        ("block_table", _P), ("query_starts", _P), ("context_lengths", _P), ("workspace", _P),
        ("num_layers", _I), ("rows", _I), ("hidden", _I), ("heads", _I), ("kv_heads", _I),
        ("head_dim", _I), ("intermediate", _I), ("requests", _I), ("table_width", _I),
        ("page_size", _I), ("kv_format", _I), ("threads", _I),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate) * up).

    Attributes:
        gate_up: The gate and what it multiplies.
        activation: Of the gate.
        down: After these.
    """

    gate_up: LinearView
    activation: Activation
    down: LinearView


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """What a layer consists of; a norm that is None is not there.

    Attributes:
        before_attention: Norm of what goes into attention.
        qkv: Query, key and value heads, one after another.
        query_norm: Of each query head, or of all of a row together.
        key_norm: Likewise.
        out: After attention.
        after_attention: Norm of what attention adds.
        before_mlp: Norm of what goes into the MLP.
        mlp: The MLP, or several of them.
        after_mlp: Norm of what the MLP adds.
        factor: On what attention and MLP add.
        rotation: Which of a step's rotary tables turns the heads; None turns none.
        window: Positions a query sees, itself included; 0 is all before it.
        scaling: Factor on the scores.
        softcap: Limit of the scores, or 0.
    """

    before_attention: Norm | None
    qkv: LinearView
    query_norm: Norm | None
    key_norm: Norm | None
    out: LinearView
    after_attention: Norm | None
    before_mlp: Norm | None
    mlp: GatedMLP | Mixture
    after_mlp: Norm | None
    factor: float
    rotation: int | None
    window: int
    scaling: float
    softcap: float


@dataclass(frozen=True, slots=True)
class CachedStep:
    """Where a step's tokens stand in a paged cache; T tokens of R requests.

    Attributes:
        keys: [blocks, page_size, Hkv, W] rows of each layer, in a format of `kv_rows`; in memory
            heads come before positions.
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
            layers: With heads of one shape; held as long as this object.
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
            "intermediate": max(
                (layer.mlp.down.depth for layer in layers if isinstance(layer.mlp, GatedMLP)),
                default=0,
            ),
        }

    def run(self, x: torch.Tensor, rotations: Sequence[Rotation], step: CachedStep) -> None:
        """Compute the layers, and store this step's keys and values.

        Args:
            x: [T, hidden] fp32 contiguous, the embedded tokens; becomes the last layer's output.
            rotations: What the layers' numbers stand for.
            step: The cache and the tokens' places in it.

        Raises:
            ValueError: Angles are not those of these tokens' heads.
        """
        self._take_cache(step)
        tables = [(cosines.contiguous(), sines.contiguous()) for cosines, sines in rotations]
        described_tables = (_Rotation * len(tables))(
            *(self._describe_rotation(table, len(x)) for table in tables)
        )
        described = _Step(
            layers=ctypes.addressof(self._array),
            x=x.data_ptr(),
            rotations=ctypes.addressof(described_tables),
            slots=step.slots.data_ptr(),
            block_table=step.block_table.data_ptr(),
            query_starts=step.query_starts.ctypes.data,
            context_lengths=step.context_lengths.ctypes.data,
            rows=len(x),
            requests=step.block_table.shape[0],
            table_width=step.block_table.shape[1],
            page_size=step.page_size,
            kv_format=KV_FORMATS[step.keys[0].dtype],
            threads=torch.get_num_threads(),
            **self._sizes,
        )
        workspace = torch.empty(self._library.decoder_workspace(ctypes.byref(described)))
        described.workspace = workspace.data_ptr()
        self._library.run_decoder(ctypes.byref(described))

    def _describe_rotation(self, table: Rotation, rows: int) -> _Rotation:
        cosines, sines = table
        width, head_dim = cosines.shape[-1], self._sizes["head_dim"]
        fits = cosines.shape == sines.shape == (rows, width) and width <= head_dim
        if not fits or width % 2:
            raise ValueError(
                f"{rows} rows of heads {head_dim} wide are turned by angles of the shapes "
                f"{tuple(cosines.shape)} and {tuple(sines.shape)}"
            )
        return _Rotation(cosines.data_ptr(), sines.data_ptr(), width)

    def _take_cache(self, step: CachedStep) -> None:
        """Point the layers at a cache, unless they are."""
        if step.keys is self._cache:
            return
        for layer, keys, values in zip(self._array, step.keys, step.values, strict=True):
            layer.keys, layer.values = describe_rows(keys), describe_rows(values)
        self._cache = step.keys


def _describe(layer: DecoderLayer) -> _Layer:
    described = _Layer(
        before_attention=_describe_norm(layer.before_attention),
        qkv=layer.qkv.structure(),
        query_norm=_describe_norm(layer.query_norm),
        key_norm=_describe_norm(layer.key_norm),
        out=layer.out.structure(),
        after_attention=_describe_norm(layer.after_attention),
        before_mlp=_describe_norm(layer.before_mlp),
        after_mlp=_describe_norm(layer.after_mlp),
        rotation=-1 if layer.rotation is None else layer.rotation,
        window=layer.window,
        scaling=layer.scaling,
        softcap=layer.softcap,
        factor=layer.factor,
    )
    if isinstance(layer.mlp, Mixture):
        described.mixture = layer.mlp.address
    else:
        described.gate_up = layer.mlp.gate_up.structure()
        described.activation = layer.mlp.activation
        described.down = layer.mlp.down.structure()
    return described


def _describe_norm(norm: Norm | None) -> NormStructure:
    return NormStructure() if norm is None else norm.structure()
