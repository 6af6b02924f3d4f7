"""Chooses the attention backend, once, when an engine is assembled."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import cast

import torch

from engine.attention.cpu import CpuBackend
from engine.attention.interface import AttentionBackend
from engine.attention.torch_reference import TorchReferenceBackend
from engine.kernels.cpu.library import load_library


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Which backend runs and why."""

    name: str
    reason: str

    @property
    def heads_first(self) -> bool:
        """How the blocks that it reads lie in memory, see `engine.cache.block_memory`."""
        return self.name == "cpu"


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    page_size: int,
    *,
    allow_flash: bool,
    has_sinks: bool,
    use_kernels: bool = True,
) -> BackendChoice:
    """Return the fastest backend that can serve this model here.

    Args:
        device: Where the model is.
        dtype: Its dtype; flash-attn computes in half precision only.
        page_size: Positions in a page; flash-attn reads multiples of 256.
        allow_flash: `ContinuousBatchingConfig.auto_switch_to_flash`.
        has_sinks: Whether a layer has attention sinks, which flash-attn 2 does not know.
        use_kernels: Whether our own kernels may run.
    """
    if device.type == "cpu" and dtype == torch.float32 and use_kernels and load_library():
        return BackendChoice("cpu", "our own kernel, in float32")
    if device.type != "cuda":
        ours = "no kernel of our own" if use_kernels else "our own kernels switched off"
        return BackendChoice("torch", f"{dtype} on {device.type}, with {ours}")
    if not allow_flash:
        return BackendChoice("torch", "auto_switch_to_flash is off")
    if importlib.util.find_spec("flash_attn") is None:
        return BackendChoice("torch", "flash-attn is not installed")
    if dtype not in (torch.float16, torch.bfloat16):
        return BackendChoice("torch", f"flash-attn does not compute in {dtype}")
    if page_size % 256 or has_sinks:
        return BackendChoice("torch", "flash-attn needs pages of 256 k and no attention sinks")
    return BackendChoice("flash", "flash-attn is installed")


def make_backend(choice: BackendChoice, page_size: int) -> AttentionBackend:
    """Build the chosen backend."""
    library = load_library() if choice.name == "cpu" else None
    if library is not None:
        return CpuBackend(page_size, library)
    if choice.name == "flash":
        # By name, because importing the module imports a package that most machines lack.
        flash = importlib.import_module("engine.attention.flash")
        return cast(AttentionBackend, flash.FlashBackend())
    return TorchReferenceBackend(page_size)
