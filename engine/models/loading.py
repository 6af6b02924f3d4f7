"""Loads a Hugging Face model from a local folder, a hub name or a GGUF file.

Runs on the caller's thread, before an engine exists. Only safetensors and GGUF are read and no code
of a model's repository is ever run.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.models.gguf_model import load_gguf_model

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device; "auto" takes a CUDA device where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> str | torch.dtype:
    """Return what to load the weights as.

    "auto" is float32 on a CPU: arithmetic in half precision is several times slower there without
    special instructions (measured on AVX2: 10 to 18 GFLOP/s in bfloat16 against 50 to 115). On
    other devices it is the checkpoint's own dtype.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def load_hf_model(
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    revision: str | None = None,
) -> PreTrainedModel:
    """Load the weights of a causal language model.

    Args:
        path: Local folder or hub name.
        dtype: "auto", "float32", "bfloat16", "float16" or a torch dtype.
        device: "auto" or anything torch understands.
        revision: Hub revision.

    Raises:
        ValueError: The dtype's name is unknown.
        OSError: There is no such model.
    """
    target = resolve_device(device)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(path),
        dtype=resolve_dtype(dtype, target),
        revision=revision,
        use_safetensors=True,
        trust_remote_code=False,
    )
    model.to(device=target)  # type: ignore[call-arg]  # transformers wraps an untyped method
    return model


def load_gguf(
    path: Path,
    *,
    dtype: str | torch.dtype,
    device: str | torch.device,
    keep_packed: bool,
    activations: str = "fp32",
) -> PreTrainedModel:
    """Load a GGUF file; on a CPU in float32 its blocks may stay packed.

    Args:
        path: The file.
        dtype: As of `load_hf_model`; "auto" is float32 everywhere.
        device: "auto" or anything torch understands.
        keep_packed: Keep blocks where that can be.
        activations: What packed blocks are multiplied with: "fp32" or "int8".

    Raises:
        ValueError: The dtype's name is unknown.
        OSError: The file cannot be read.
        UnsupportedModelError: Its model cannot be built.
    """
    target = resolve_device(device)
    resolved = torch.float32 if dtype == "auto" else resolve_dtype(dtype, target)
    plain = target.type == "cpu" and resolved == torch.float32
    model = load_gguf_model(path, keep_packed=keep_packed and plain, activations=activations)
    model.to(device=target, dtype=resolved)  # type: ignore[call-arg]  # transformers wraps an untyped method
    return model
