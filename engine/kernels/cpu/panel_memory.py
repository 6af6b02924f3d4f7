"""Memory for packed weights: few mappings of large pages, filled in the order they are asked for.

Every step reads all weights of a model once. With pages of 4 KiB a quarter of that time goes on
looking up where they are. Layers are smaller than pages of 2 MiB, so many of them share a mapping,
and whoever asks in the order in which a step reads gets them in that order.
"""

import contextlib
import ctypes
import functools
import mmap
import threading
import weakref
from collections import defaultdict

import torch

LARGE_PAGE = 2 << 20
# A mapping that layers share. What is not written to takes no memory.
CHUNK_BYTES = 256 << 20
# What is larger has a mapping of its own, which goes when it does.
MAX_SHARED_BYTES = 8 << 20
ALIGNMENT = 64


class _Chunk:
    """A mapping, given out from its beginning on; it lives as long as its pieces.

    Attributes:
        address: Where it begins.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve memory; the kernel commits it where it is written."""
        # Mappings begin at any small page, large pages at multiples of their size.
        memory = mmap.mmap(-1, num_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # A kernel that has no large pages says so.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._memory = memoryview(memory)
        self._end = -self.address % LARGE_PAGE
        self._free: dict[int, list[int]] = defaultdict(list)

    def take(self, num_bytes: int) -> memoryview | None:
        """Return a piece: the place of one that is gone, or a new one if there is room."""
        free = self._free[num_bytes]
        if free:
            offset = free.pop()
        else:
            offset = self._end
            if offset + num_bytes > len(self._memory):
                return None
            self._end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        piece = self._memory[offset : offset + num_bytes]
        # On whatever thread lets go of the tensor. It holds this object until then.
        weakref.finalize(piece, self._give_back, num_bytes, offset).atexit = False
        return piece

    def _give_back(self, num_bytes: int, offset: int) -> None:
        self._free[num_bytes].append(offset)

    def holds(self, address: int) -> bool:
        """Return whether an address lies in this mapping."""
        return self.address <= address < self.address + len(self._memory)


class PanelMemory:
    """Gives out memory for the packed weights of a process's models; any thread."""

    def __init__(self) -> None:
        """Begin without any."""
        self._lock = threading.Lock()
        self._chunks: list[weakref.ref[_Chunk]] = []
        self._own: weakref.WeakSet[_Chunk] = weakref.WeakSet()

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor, its contents undefined; its memory can be had again when it is gone."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        # An inference tensor could not be changed when new weights are set.
        with torch.inference_mode(False):
            if num_bytes == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
                return torch.empty(shape, dtype=dtype)
            try:
                with self._lock:
                    piece = self._take(num_bytes)
            except OSError:  # a process that may not reserve so much may still have the tensor
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(piece, dtype=dtype).view(shape)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in one of the mappings."""
        with self._lock:
            chunks = [*(chunk() for chunk in self._chunks), *self._own]
        return any(chunk is not None and chunk.holds(tensor.data_ptr()) for chunk in chunks)

    def _take(self, num_bytes: int) -> memoryview:
        if num_bytes > MAX_SHARED_BYTES:
            chunk = _Chunk(num_bytes)
            self._own.add(chunk)
            own = chunk.take(num_bytes)
            assert own is not None
            return own
        for reference in self._chunks:
            shared = reference()
            piece = None if shared is None else shared.take(num_bytes)
            if piece is not None:
                return piece
        chunk = _Chunk(CHUNK_BYTES)
        piece = chunk.take(num_bytes)
        assert piece is not None
        # Those of models that are gone are gone, too.
        self._chunks = [reference for reference in self._chunks if reference() is not None]
        self._chunks.append(weakref.ref(chunk))
        return piece


@functools.cache
def panel_memory() -> PanelMemory:
    """Return the process's memory for packed weights."""
    return PanelMemory()
