"""Stores a loaded model's weights in another format, module by module.

Runs on the caller's thread, before the model is taken over. Each float32 matrix goes as soon as it
is packed, so that no two copies of the model are in memory.
"""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from engine.errors import UnsupportedConfigError, UnsupportedModelError
from engine.kernels.cpu.library import load_library
from engine.kernels.cpu.quantized_linear import Format, QuantizedWeight, has_tile_unit
from engine.models.quantization import (
    WITH_INT8_ACTIVATIONS,
    format_for,
    is_exact,
    quantize,
)
from engine.models.quantized_experts import (
    QuantizedStack,
    fits_panels,
    is_experts,
    pack_experts,
)
from engine.models.quantized_modules import QuantizedEmbedding, QuantizedLinear
from engine.models.replacement import is_plain_module

# (linear layers, head and embedding) for each name. The head, which every choice of a token goes
# through, keeps eight bits, as it does in most quantised files.
FORMATS = {
    "bf16": (Format.BF16, Format.BF16),
    "int8": (Format.INT8, Format.INT8),
    "int4": (Format.INT4, Format.INT8),
    "bf16x3": (Format.AMX_BF16X3, Format.AMX_BF16X3),
}
WEIGHTS = ("auto", "fp32", *FORMATS)
ACTIVATIONS = ("fp32", "int8")
# Modules that multiply activations.
MULTIPLIED = (QuantizedLinear, QuantizedStack)


def check_weights(weights: str) -> None:
    """Refuse a name that is no format.

    Raises:
        UnsupportedConfigError: It is not one of `WEIGHTS`.
    """
    if weights not in WEIGHTS:
        raise UnsupportedConfigError(
            f"weights is {weights!r}; use {', '.join(WEIGHTS)}", field="weights"
        )


def check_activations(activations: str) -> None:
    """Refuse a name that is no format of activations.

    Raises:
        UnsupportedConfigError: It is not one of `ACTIVATIONS`.
    """
    if activations not in ACTIVATIONS:
        raise UnsupportedConfigError(
            f"activations is {activations!r}; use {', '.join(ACTIVATIONS)}", field="activations"
        )


def store_weights(
    model: PreTrainedModel, weights: str, *, use_kernels: bool, activations: str = "fp32"
) -> None:
    """Put packed layers in the place of a model's linear layers and its embedding.

    Args:
        model: Its modules are changed.
        weights: "fp32" changes nothing. "auto" is bf16 for float32 weights on a CPU all of which
            bfloat16 holds exactly, so that nothing is lost of them, and nothing else.
        use_kernels: Whether kernels may be used; packed weights need them.
        activations: What packed weights of 8 and 4 bits are multiplied with: "fp32", or "int8",
            which is refused for any other weights.

    Raises:
        UnsupportedConfigError: The format cannot be had on this device, with this dtype or without
            kernels, or the name is unknown.
        UnsupportedModelError: The model has no linear layers, or weights that the format cannot
            hold.
    """
    check_weights(weights)
    check_activations(activations)
    _store(model, weights, activations, use_kernels=use_kernels)
    if activations == "int8" and not has_int8_activations(model):
        raise UnsupportedConfigError(
            f"activations='int8' needs weights of 8 or 4 bits, and weights={weights!r} has none "
            "here; use weights='int8' or 'int4'",
            field="activations",
        )


def _store(model: PreTrainedModel, weights: str, activations: str, *, use_kernels: bool) -> None:
    if weights == "fp32" or (weights == "auto" and _is_packed(model)):
        return
    if _is_packed(model):
        _check_formats(model, weights, activations)
        return
    reason = _obstacle(model, use_kernels=use_kernels)
    linears = dict(_linears(model))
    if weights == "auto":
        if reason or not linears or not _are_exact(model, linears):
            return
        weights = "bf16"
    reason = reason or _missing_unit(weights)
    if reason:
        raise UnsupportedConfigError(f"weights='{weights}' {reason}", field="weights")
    if not linears:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no linear layers to store as {weights}"
        )
    _pack(model, linears, weights, activations)


def _check_formats(model: PreTrainedModel, weights: str, activations: str) -> None:
    """Refuse another format than the one in which a model is packed already."""
    asked = {format_for(kind, activations) for kind in FORMATS[weights]}
    if weights == "bf16":
        asked.add(Format.AMX_BF16)
    others = {m.format for m in model.modules() if isinstance(m, MULTIPLIED)} - asked
    if others:
        raise UnsupportedConfigError(
            f"weights={weights!r} with activations={activations!r} cannot be had: the weights of "
            f"this model are packed already, as {min(others).name}; load it again",
            field="weights",
        )


def has_int8_activations(model: nn.Module) -> bool:
    """Return whether a layer rounds what it is given to 8 bits."""
    return any(
        isinstance(module, MULTIPLIED) and module.format in WITH_INT8_ACTIVATIONS.values()
        for module in model.modules()
    )


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of this name."""
    parent, _, child = name.rpartition(".")
    model.get_submodule(parent)._modules[child] = module


def _obstacle(model: PreTrainedModel, *, use_kernels: bool) -> str | None:
    """Return why this model's weights cannot be packed."""
    if model.device.type != "cpu":
        return f"is computed on a CPU only, and the model is on {model.device}; use weights='fp32'"
    if not _is_plain_model(model):
        return f"needs activations in float32, and the model's dtype is {model.dtype}"
    if not use_kernels:
        return "needs the compiled kernels, and use_kernels is False"
    if load_library() is None:
        return "needs the compiled kernels, which could not be built here; install a C++ compiler"
    return None


def _missing_unit(weights: str) -> str | None:
    """Return why this processor cannot compute with a format."""
    library = load_library()
    if weights != "bf16x3" or library is None or has_tile_unit(library):
        return None
    return "needs a processor with a tile unit (AMX), and this one has none; use weights='fp32'"


def _is_plain_model(model: nn.Module) -> bool:
    """Return whether all linear layers and norms compute in float32 on the CPU."""
    return all(is_plain_module(module) for module in model.modules())


def _is_packed(model: nn.Module) -> bool:
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            yield name, module


def _experts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if is_experts(module) and fits_panels(module):
            yield name, module


def _are_exact(model: PreTrainedModel, linears: dict[str, nn.Linear]) -> bool:
    """Return whether bfloat16 holds every number that would be packed."""
    embedding: nn.Module = model.get_input_embeddings()
    plain = [embedding] if _is_plain_embedding(embedding) else []
    matrices = [module.get_parameter("weight") for module in (*linears.values(), *plain)]
    matrices += [p for _, experts in _experts(model) for p in experts.parameters(recurse=False)]
    return all(map(is_exact, matrices))


def _pack(
    model: PreTrainedModel, linears: dict[str, nn.Linear], weights: str, activations: str
) -> None:
    """Replace the modules, one after another."""
    library = load_library()
    assert library is not None
    inner, outer = (format_for(kind, activations) for kind in FORMATS[weights])
    if weights == "bf16" and has_tile_unit(library):
        inner = outer = Format.AMX_BF16
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    embedding: nn.Module = model.get_input_embeddings()
    # By the matrix: a tied one is packed once. All matrices were there before the first one goes,
    # so no two have the same id.
    packed: dict[int, QuantizedWeight] = {}

    def pack(name: str, module: nn.Module, kind: Format) -> QuantizedWeight:
        weight = module.get_parameter("weight")
        if id(weight) not in packed:
            try:
                packed[id(weight)] = quantize(weight, kind).pack(library)
            except ValueError as error:
                raise UnsupportedModelError(
                    f"{name} cannot be stored as {weights}: {error}"
                ) from error
        return packed[id(weight)]

    # The embedding first: it is the one that may share its matrix with the head.
    for name, module in list(model.named_modules()):
        if module is embedding and _is_plain_embedding(module):
            replace_module(model, name, QuantizedEmbedding(pack(name, module, outer)))
    for name in list(linears):
        linear = linears.pop(name)
        kind = outer if linear is head else inner
        replace_module(model, name, QuantizedLinear(pack(name, linear, kind), linear.bias))
        del linear
    for name in [name for name, _ in _experts(model)]:
        try:
            experts = pack_experts(library, model.get_submodule(name), inner)
        except ValueError as error:
            raise UnsupportedModelError(f"{name} cannot be stored as {weights}: {error}") from error
        replace_module(model, name, experts)


def _is_plain_embedding(module: nn.Module) -> bool:
    """Return whether it is torch's own embedding: others do more than look up."""
    return type(module) is nn.Embedding and module.max_norm is None
