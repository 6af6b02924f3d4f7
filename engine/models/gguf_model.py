"""Builds a model from a GGUF file, with the file's blocks kept packed where kernels can use them.

Runs on the caller's thread, before an engine exists. No float32 copy of a packed matrix is made.
"""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from engine.errors import UnsupportedModelError
from engine.kernels.cpu.library import load_library
from engine.kernels.cpu.quantized_linear import QuantizedWeight
from engine.models.gguf_blocks import numbers, stored_weight
from engine.models.gguf_config import (
    PERMUTED_ARCHITECTURES,
    ROPE_FACTORS,
    model_config,
    parameter_name,
)
from engine.models.gguf_file import GGUFFile, GGUFTensor
from engine.models.quantized_modules import QuantizedEmbedding, QuantizedLinear
from engine.models.weight_formats import replace_module


def find_gguf(path: str | Path) -> Path | None:
    """Return the GGUF file that a path names: itself, or the only one of a folder.

    A folder that holds safetensors is a model in Hugging Face format, whatever else is in it.
    """
    path = Path(path).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = list(path.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def load_gguf_model(path: Path, *, keep_packed: bool, activations: str = "fp32") -> PreTrainedModel:
    """Load the weights of a causal language model.

    Args:
        path: The file.
        keep_packed: Keep blocks packed as far as there are kernels; else all becomes float32.
        activations: What packed blocks are multiplied with: "fp32" or "int8".

    Raises:
        OSError: The file cannot be read.
        UnsupportedModelError: It is damaged, or its model is of an unknown family.
    """
    file = GGUFFile(path)
    config = model_config(file)
    try:
        with no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32
            )
    except (ArithmeticError, TypeError, ValueError, LookupError, RuntimeError) as error:
        raise UnsupportedModelError(
            f"{path.name} describes a model that cannot be: {error}"
        ) from error
    _Filler(file, model, keep_packed=keep_packed, activations=activations).fill()
    model.generation_config.pad_token_id = config.pad_token_id
    return model


class _Filler:
    """Brings each tensor of a file to its place in a model."""

    def __init__(
        self, file: GGUFFile, model: PreTrainedModel, *, keep_packed: bool, activations: str
    ) -> None:
        self._file = file
        self._model = model
        self._keep_packed = keep_packed and load_library() is not None
        self._activations = activations
        self._is_tied = bool(model.config.tie_word_embeddings)
        self._missing = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    @torch.no_grad()
    def fill(self) -> None:
        """Do it; see `load_gguf_model`."""
        if self._is_tied:
            self._missing.discard("lm_head.weight")
        for name, tensor in self._file.tensors.items():
            if name == ROPE_FACTORS:
                self._model.model.rotary_emb.inv_freq.div_(numbers(tensor))
            else:
                self._place(name, tensor)
        if self._missing:
            raise UnsupportedModelError(f"{self._file.path.name} holds no {min(self._missing)}")
        if self._is_tied and not isinstance(self._model.lm_head, QuantizedLinear):
            self._model.lm_head.weight = self._model.model.embed_tokens.weight

    def _place(self, file_name: str, tensor: GGUFTensor) -> None:
        name = parameter_name(file_name)
        if name not in self._missing:
            raise UnsupportedModelError(f"{self._file.path.name} holds {file_name}, unexpectedly")
        self._missing.discard(name)
        module_name, _, kind = name.rpartition(".")
        module = self._model.get_submodule(module_name)
        expected = tuple(module.get_parameter(kind).shape)
        if tensor.shape != expected:
            raise UnsupportedModelError(f"{file_name} is {tensor.shape} instead of {expected}")
        rows = self._row_order(file_name, tensor)
        packed = self._pack(tensor, rows) if kind == "weight" and len(expected) == 2 else None
        if packed is None:
            values = numbers(tensor)
            module.get_parameter(kind).copy_(values if rows is None else values[rows])
        else:
            self._put(module_name, module, packed)

    def _pack(self, tensor: GGUFTensor, rows: torch.Tensor | None) -> QuantizedWeight | None:
        stored = stored_weight(tensor) if self._keep_packed else None
        library = load_library()
        if stored is None or library is None:
            return None
        if rows is not None:
            stored = stored.select(rows)
        return stored.for_activations(self._activations).pack(library)

    def _put(self, name: str, module: nn.Module, packed: QuantizedWeight) -> None:
        if isinstance(module, nn.Embedding):
            replace_module(self._model, name, QuantizedEmbedding(packed))
            if self._is_tied:
                replace_module(self._model, "lm_head", QuantizedLinear(packed, None))
        else:
            bias = module._parameters.get("bias")
            replace_module(self._model, name, QuantizedLinear(packed, bias))

    def _row_order(self, name: str, tensor: GGUFTensor) -> torch.Tensor | None:
        """Return which row of the file comes where; None where the order is ours.

        Rows of a head stand as (pair, half) in the file of some families and as (half, pair) in
        transformers. Rows move as they are, so blocks stay whole.
        """
        kind = name.split(".")[-2]
        architecture = self._file.metadata["general.architecture"]
        if architecture not in PERMUTED_ARCHITECTURES or kind not in ("attn_q", "attn_k"):
            return None
        head_dim = int(self._model.config.head_dim)
        order = torch.arange(tensor.shape[0]).view(-1, head_dim // 2, 2)
        return order.transpose(1, 2).reshape(-1)
