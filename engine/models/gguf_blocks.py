"""The blocks of GGUF's tensors: kept as they are where our formats hold them, else unpacked.

Pure. A block is 32 weights of a row.

    Q8_0   fp16 scale, 32 int8                              -> INT8, the same numbers
    Q4_0   fp16 scale, 16 bytes: code i | code i + 16 << 4  -> INT4 with the minimum -8 * scale
    Q4_1   fp16 scale, fp16 minimum, 16 bytes               -> INT4, the same numbers
    BF16   the number                                       -> BF16
    other  (Q6_K, Q4_K, Q5_0, ...)                          -> unpacked and rounded to INT8
    F32, F16                                                -> left unpacked
"""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from engine.errors import UnsupportedModelError
from engine.kernels.cpu.quantized_linear import GROUP, Format
from engine.models.gguf_file import GGUFTensor
from engine.models.quantization import StoredWeight, quantize

UNPACKED = (Kind.F32, Kind.F16)


def numbers(tensor: GGUFTensor) -> torch.Tensor:
    """Return what a tensor means, in its shape, float32.

    Raises:
        UnsupportedModelError: Nobody reads its kind of blocks.
    """
    try:
        values = gguf.dequantize(_typed(tensor), tensor.kind)
    except NotImplementedError as error:  # the library's word for blocks that it cannot decode
        kind = tensor.kind.name
        raise UnsupportedModelError(f"a tensor is stored as {kind}, which is not read") from error
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(tensor.shape))


def stored_weight(tensor: GGUFTensor) -> StoredWeight | None:
    """Return a matrix in one of our formats; None if it is of plain numbers."""
    if tensor.kind in UNPACKED:
        return None
    if tensor.kind is Kind.BF16:
        return StoredWeight(Format.BF16, _to_torch(tensor.data.view(np.int16)).view(torch.bfloat16))
    if tensor.kind is Kind.Q8_0:
        blocks = _blocks(tensor)
        signed = blocks[..., 2:].view(np.int8).reshape(tensor.shape)
        return StoredWeight(Format.INT8, _to_torch(signed), _halves(blocks, 0))
    if tensor.kind is Kind.Q4_0:
        blocks = _blocks(tensor)
        scales = _halves(blocks, 0)
        # Exact: a multiplication by a power of two.
        return StoredWeight(Format.INT4, _nibbles(blocks[..., 2:], tensor), scales, scales * -8)
    if tensor.kind is Kind.Q4_1:
        blocks = _blocks(tensor)
        codes = _nibbles(blocks[..., 4:], tensor)
        return StoredWeight(Format.INT4, codes, _halves(blocks, 0), _halves(blocks, 2))
    return quantize(numbers(tensor), Format.INT8)


def _typed(tensor: GGUFTensor) -> NDArray[np.generic]:
    """Return the data as the format's library wants it."""
    plain = {Kind.F32: np.float32, Kind.F16: np.float16}
    return tensor.data.view(plain[tensor.kind]) if tensor.kind in plain else tensor.data


def _blocks(tensor: GGUFTensor) -> NDArray[np.uint8]:
    """Return [N, K / 32, bytes of a block]."""
    rows, depth = tensor.shape
    return tensor.data.reshape(rows, depth // GROUP, -1)


def _halves(blocks: NDArray[np.uint8], at: int) -> torch.Tensor:
    return _to_torch(blocks[..., at : at + 2]).view(torch.float16)[..., 0]


def _nibbles(packed: NDArray[np.uint8], tensor: GGUFTensor) -> torch.Tensor:
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
    return torch.from_numpy(codes.reshape(tensor.shape))


def _to_torch(values: NDArray[np.generic]) -> torch.Tensor:
    """Copy: what lies in the file cannot be written, and torch would warn."""
    return torch.from_numpy(np.array(values, order="C"))
