"""The compiled kernels as a library of C functions, and what each of them takes."""

import ctypes
import functools
from pathlib import Path

from engine.kernels.cpu.build import build, instruction_set

_POINTER, _INTEGER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

_ARGUMENTS: dict[str, list[type]] = {
    "pack_linear": [_POINTER, _POINTER, _INTEGER, _INTEGER],
    "packed_linear": [
        _POINTER, _INTEGER, _POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER, _INTEGER, _POINTER,
        _INTEGER,
    ],
    "has_amx": [],
    "amx_pack_bf16": [_INTEGER, _POINTER, _POINTER, _INTEGER, _INTEGER],
    "pack_bf16": [_POINTER, _POINTER, _INTEGER, _INTEGER],
    "pack_int8_rows": [_POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER],
    "pack_int8": [_POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER],
    "pack_int4": [_POINTER, _POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER],
    "pack_w8a8": [*[_POINTER] * 3, _INTEGER, _INTEGER],
    "pack_w4a8": [*[_POINTER] * 4, _INTEGER, _INTEGER],
    "use_dot_products": [_INTEGER],
    "use_wide_products": [_INTEGER],
    "quantized_panel_bytes": [_INTEGER, _INTEGER],
    "quantized_workspace": [_INTEGER, _INTEGER, _INTEGER],
    "quantized_linear": [_POINTER, _INTEGER, *[_POINTER] * 5],
    "unpack_rows": [_INTEGER, _POINTER, _INTEGER, _POINTER, _POINTER, _INTEGER, _INTEGER],
    "norm_rows": [_POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER],
    "gate_mul": [_INTEGER, _POINTER, _POINTER, _INTEGER, _INTEGER, _INTEGER],
    "rotate": [*[_POINTER] * 5],
    "store_kv_rows": [_POINTER] * 4,
    "paged_attention": [*[_POINTER] * 9, _FLOAT, _FLOAT],
    "mixture_workspace": [_POINTER, _INTEGER, _INTEGER],
    "mix": [_POINTER, _POINTER, _POINTER, _INTEGER, _POINTER, _INTEGER],
    "decoder_workspace": [_POINTER],
    "run_decoder": [_POINTER],
}  # fmt: skip
# The rest returns nothing.
_RESULTS: dict[str, type] = {
    "has_amx": _INTEGER,
    "use_dot_products": _INTEGER,
    "use_wide_products": _INTEGER,
    "quantized_panel_bytes": _INTEGER,
    "quantized_workspace": _INTEGER,
    "mixture_workspace": _INTEGER,
    "decoder_workspace": _INTEGER,
}


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled kernels for this processor, or None where there are none."""
    path = build(instruction_set())
    return None if path is None else open_library(path)


def kernels() -> ctypes.CDLL:
    """Return the compiled kernels where there must be some: inside of an operator."""
    library = load_library()
    assert library is not None, "an operator runs on a machine that has no kernels"
    return library


def open_library(path: Path) -> ctypes.CDLL:
    """Load compiled kernels."""
    library = ctypes.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _RESULTS.get(name)
    return library
