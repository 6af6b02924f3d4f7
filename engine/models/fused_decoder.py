"""A whole decoder in one call of our kernels, where its layers are what they seem to be.

Built from the replacements of its layers' modules, each of which was checked by itself; what is
checked here is how a layer joins them, and the call as a whole. Where it cannot be used (another
attention, other weights) the layers compute one after another, as without it.
"""

import ctypes
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from engine.attention.cpu import CpuBackend
from engine.attention.interface import STEP_ATTRIBUTE, StepAttention
from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache
from engine.cache.sizing import LayerGeometry
from engine.kernels.cpu.decoder import CachedStep, Decoder, DecoderLayer
from engine.kernels.cpu.library import load_library
from engine.models.fused_layers import FusedAttention, FusedMLP, FusedNorm
from engine.models.replacement import Forward, Replacement, in_place
from engine.models.tolerance import tolerance_of

SwitchAttention = Callable[[StepAttention], AbstractContextManager[None]]

# The check's prompts, in tokens, and its pages, so that more than one page is read.
CHECK_LENGTHS = (6, 3)
CHECK_PAGE_SIZE = 4


class FusedLayer:
    """The replacements that one layer consists of."""

    def __init__(
        self,
        norms: tuple[FusedNorm, FusedNorm],
        attention: FusedAttention,
        mlp: FusedMLP,
        head_norms: tuple[FusedNorm | None, FusedNorm | None],
    ) -> None:
        """Join the parts; `norms` stand before attention and MLP, `head_norms` in attention."""
        self.norms = norms
        self.attention = attention
        self.mlp = mlp
        self.head_norms = head_norms

    @property
    def parts(self) -> list[Replacement]:
        """All of them."""
        inner = [norm for norm in self.head_norms if norm is not None]
        return [*self.norms, self.attention, self.mlp, *inner]

    @property
    def geometry(self) -> LayerGeometry:
        """What the layer keeps per position."""
        attention = self.attention
        heads, kv_heads = (width // attention.head_dim for width in attention.widths[:2])
        window = attention.options.sliding_window
        return LayerGeometry(heads, kv_heads, attention.head_dim, attention.head_dim, window)

    def describe(self) -> DecoderLayer:
        """Return what the kernel is to know, of parts that are built."""
        query_norm, key_norm = (None if norm is None else norm.norm for norm in self.head_norms)
        options = self.attention.options
        return DecoderLayer(
            attention_norm=self.norms[0].norm,
            qkv=self.attention.products[0].view,
            query_norm=query_norm,
            key_norm=key_norm,
            out=self.attention.products[1].view,
            mlp_norm=self.norms[1].norm,
            gate_up=self.mlp.products[0].view,
            down=self.mlp.products[1].view,
            window=options.sliding_window or 0,
            scaling=options.scaling,
            softcap=options.softcap or 0.0,
        )


class FusedDecoder(Replacement):
    """Embedding, all layers, last norm.

    Attributes:
        parts: The replacements that it stands for, which compute where it cannot.
        layers: The layers, in their order.
        places: Their `layer_idx`.
        library: The kernels.
    """

    def __init__(
        self, module: nn.Module, library: ctypes.CDLL, layers: list[FusedLayer], norm: FusedNorm
    ) -> None:
        """Replace a decoder; `norm` is the one after the last layer."""
        self.parts = [norm, *(part for layer in layers for part in layer.parts)]
        super().__init__(module, [source for part in self.parts for source in part.sources])
        self.library = library
        self.layers = layers
        self._norm = norm
        self.places = [int(layer.attention.module.__dict__["layer_idx"]) for layer in layers]

    def build(self) -> Forward:
        """See `Replacement.build`."""
        norm = self._norm.refresh()
        for part in self.parts:
            part.refresh()
        geometry = self.layers[0].geometry
        decoder = Decoder(
            self.library,
            [layer.describe() for layer in self.layers],
            geometry.num_query_heads,
            geometry.num_kv_heads,
        )
        embed = self.module.get_submodule("embed_tokens")
        rotary = self.module.get_submodule("rotary_emb")
        assert norm is not None

        def forward(
            input_ids: torch.Tensor, position_ids: torch.Tensor, **options: Any
        ) -> BaseModelOutputWithPast:
            step = self._cached_step()
            if step is None:
                return self.layer_by_layer(input_ids, position_ids, **options)
            hidden = embed(input_ids)
            cosines, sines = rotary(hidden, position_ids)
            decoder.run(hidden[0], cosines[0], sines[0], step)
            return BaseModelOutputWithPast(last_hidden_state=norm(hidden))

        return forward

    def _cached_step(self) -> CachedStep | None:
        """Return where the step's tokens stand, if the attention is the one that the kernel has."""
        attention = self.layers[0].attention.module.__dict__.get(STEP_ATTRIBUTE)
        if not isinstance(attention, PagedAttention):
            return None
        backend = attention.backend
        if not isinstance(backend, CpuBackend) or backend.inputs is None:
            return None
        places, cache = attention.position_of, attention.cache
        if [places.get(index) for index in self.places] != list(range(len(cache.keys))):
            return None
        return CachedStep(
            cache.keys,
            cache.values,
            attention.slots,
            backend.inputs.block_table,
            backend.query_starts,
            backend.context_lengths,
            backend.page_size,
        )

    def layer_by_layer(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, **options: Any
    ) -> BaseModelOutputWithPast:
        """Compute with the parts in place of their modules, and none in place of the whole."""
        whole = self.module.__dict__.pop("forward", None)
        try:
            with in_place(self.parts):
                output: BaseModelOutputWithPast = self.module(
                    input_ids=input_ids, position_ids=position_ids, **options
                )
                return output
        finally:
            if whole is not None:
                self.module.__dict__["forward"] = whole


def join_decoder(
    model: nn.Module, replacements: list[Replacement], switch_attention: SwitchAttention
) -> list[Replacement]:
    """Return what to put in place: one replacement for all parts of a decoder, and the rest.

    Args:
        model: The whole model.
        replacements: Those of its modules; returned as they are if they do not make a decoder.
        switch_attention: Points the model's attention at a `StepAttention`.
    """
    library = load_library() if replacements else None
    decoder = None
    if library is not None:
        decoder = _find_decoder(model, library, replacements, switch_attention)
    if decoder is None:
        return replacements
    parts = set(map(id, decoder.parts))
    return [decoder, *(part for part in replacements if id(part) not in parts)]


def _find_decoder(
    model: nn.Module,
    library: ctypes.CDLL,
    replacements: list[Replacement],
    switch_attention: SwitchAttention,
) -> FusedDecoder | None:
    """Return a checked replacement for a model's decoder, if all its parts are known."""
    known = {id(replacement.module): replacement for replacement in replacements}
    for module in model.modules():
        stack, norm = module._modules.get("layers"), module._modules.get("norm")
        last = known.get(id(norm))
        if not isinstance(stack, nn.ModuleList) or not isinstance(last, FusedNorm):
            continue
        if "embed_tokens" not in module._modules or "rotary_emb" not in module._modules:
            continue
        layers = [_find_layer(layer, known) for layer in stack]
        found = [layer for layer in layers if layer is not None]
        if not found or len(found) < len(layers) or not _are_alike(found):
            continue
        decoder = FusedDecoder(module, library, found, last)
        if _agrees(decoder, switch_attention):
            return decoder
    return None


def _find_layer(layer: nn.Module, known: dict[int, Replacement]) -> FusedLayer | None:
    """Return a layer's parts, if it has the usual four and no other."""
    names = ("input_layernorm", "post_attention_layernorm", "self_attn", "mlp")
    if set(layer._modules) != set(names):
        return None
    before, between, attention, mlp = (known.get(id(layer._modules[name])) for name in names)
    if not (isinstance(before, FusedNorm) and isinstance(between, FusedNorm)):
        return None
    if not (isinstance(attention, FusedAttention) and isinstance(mlp, FusedMLP)):
        return None
    if attention.options.sinks is not None or not (attention.is_joined and mlp.is_joined):
        return None
    head_norms = [norm and known.get(id(norm)) for norm in attention.norms]
    query_norm, key_norm = (norm if isinstance(norm, FusedNorm) else None for norm in head_norms)
    if (query_norm is None) != (attention.norms[0] is None):
        return None
    if (key_norm is None) != (attention.norms[1] is None):
        return None
    return FusedLayer((before, between), attention, mlp, (query_norm, key_norm))


def _are_alike(layers: list[FusedLayer]) -> bool:
    """Return whether all layers have the same shapes, and keys as wide as values."""
    shapes = {
        (layer.attention.head_dim, *layer.attention.widths, layer.mlp.width) for layer in layers
    }
    _, _, key_width, value_width, _ = next(iter(shapes))
    return len(shapes) == 1 and key_width == value_width


@torch.inference_mode()
def _agrees(decoder: FusedDecoder, switch_attention: SwitchAttention) -> bool:
    """Return whether the call as a whole gives what the layers give one after another."""
    inputs, attention = _check_step(decoder)
    with switch_attention(attention):
        attention.begin_step(inputs)
        own = decoder.layer_by_layer(inputs.input_ids, inputs.position_ids).last_hidden_state
        ours = decoder.build()(inputs.input_ids, inputs.position_ids).last_hidden_state
    assert own is not None
    scale = max(1.0, float(own.abs().max()))
    return bool((own - ours).abs().max() <= tolerance_of(decoder.module) * scale)


def _check_step(decoder: FusedDecoder) -> tuple[BatchInputs, PagedAttention]:
    """Return a step of two short prompts whose blocks lie between one another."""
    page = CHECK_PAGE_SIZE
    lengths = list(CHECK_LENGTHS)
    tables = torch.tensor([[0, 2], [1, 3]], dtype=torch.int32)
    positions = [position for length in lengths for position in range(length)]
    rows = [row for row, length in enumerate(lengths) for _ in range(length)]
    num_ids = int(decoder.module.embed_tokens.num_embeddings)  # type: ignore[union-attr, arg-type]

    def integers(values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64)

    inputs = BatchInputs(
        input_ids=integers((7919 * i + 13) % num_ids for i in range(sum(lengths)))[None],
        position_ids=integers(positions)[None],
        slots=integers(
            int(tables[row, position // page]) * page + position % page
            for row, position in zip(rows, positions, strict=True)
        ),
        block_table=tables,
        query_starts=[0, lengths[0], sum(lengths)],
        context_lengths=lengths,
        sample_indices=integers([lengths[0] - 1, sum(lengths) - 1]),
    )
    geometry = [layer.geometry for layer in decoder.layers]
    cache = PagedCache(
        geometry, tables.numel(), page, dtype=torch.float32, device=torch.device("cpu")
    )
    backend = CpuBackend(page, decoder.library)
    return inputs, PagedAttention(cache, backend, decoder.places)
