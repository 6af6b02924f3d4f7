"""A whole decoder in one call of our kernels, where its layers are what they seem to be.

Built from the replacements of its layers' modules, each of which was checked by itself; what is
checked here is how a layer joins them, and the call as a whole. Where it cannot be used (another
attention, other weights) the layers compute one after another, as without it.
"""

import ctypes
import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import MoeModelOutputWithPast

from engine.attention.cpu import CpuBackend
from engine.attention.interface import STEP_ATTRIBUTE, StepAttention
from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache
from engine.kernels.cpu.decoder import CachedStep, Decoder, DecoderLayer
from engine.kernels.cpu.library import load_library
from engine.models.agreement import no_error
from engine.models.decoder_layers import FusedLayer, are_alike, find_layer
from engine.models.fused_layers import FusedNorm
from engine.models.replacement import Forward, Replacement, in_place
from engine.models.tolerance import tolerance_of

logger = logging.getLogger(__name__)

SwitchAttention = Callable[[StepAttention], AbstractContextManager[None]]

# The check's prompts, in tokens, and its pages, so that more than one page is read.
CHECK_LENGTHS = (6, 3)
CHECK_PAGE_SIZE = 4


class FusedDecoder(Replacement):
    """Embedding, all layers, last norm.

    Attributes:
        parts: The replacements that it stands for, which compute where it cannot.
        layers: The layers, in their order.
        places: Their `layer_idx`.
        width: Of a row of its output.
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
        self.width = norm.width
        self._norm = norm
        self._embedding_factor = float(getattr(module, "embedding_multiplier", 1.0))
        kinds = _table_kinds(module, layers)
        self._tables = [kind for kind in dict.fromkeys(kinds) if kind is not None]
        self._rotations = [None if kind is None else self._tables.index(kind) for kind in kinds]
        self.places = [int(layer.attention.module.__dict__["layer_idx"]) for layer in layers]

    def build(self) -> Forward:
        """See `Replacement.build`."""
        norm = self._norm.refresh()
        for part in self.parts:
            part.refresh()
        geometry = self.layers[0].geometry
        heads, kv_heads = geometry.num_query_heads, geometry.num_kv_heads
        decoder = Decoder(self.library, self.describe(), heads, kv_heads)
        embed = self.module.get_submodule("embed_tokens")
        rotary = self.module.get_submodule("rotary_emb")
        factor, kinds = self._embedding_factor, self._tables
        assert norm is not None

        def forward(
            input_ids: torch.Tensor, position_ids: torch.Tensor, **options: Any
        ) -> MoeModelOutputWithPast:
            step = self.cached_step()
            if step is None:
                return self.layer_by_layer(input_ids, position_ids, **options)
            hidden = embed(input_ids)
            if factor != 1.0:
                hidden *= factor
            tables = [rotary(hidden, position_ids, *kind) for kind in kinds]
            rotations = [(cosines[0], sines[0]) for cosines, sines in tables]
            decoder.run(hidden[0], rotations, step)
            # With a field that models of experts read; whatever else it has is None.
            return MoeModelOutputWithPast(last_hidden_state=norm(hidden))

        return forward

    def describe(self) -> list[DecoderLayer]:
        """Return what the kernel is to know of each layer; the parts are built."""
        return [
            layer.describe(rotation)
            for layer, rotation in zip(self.layers, self._rotations, strict=True)
        ]

    def cached_step(self) -> CachedStep | None:
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
            attention.places.slots,
            backend.inputs.block_table,
            backend.query_starts,
            backend.context_lengths,
            backend.page_size,
        )

    def layer_by_layer(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, **options: Any
    ) -> MoeModelOutputWithPast:
        """Compute with the parts in place of their modules, and none in place of the whole."""
        whole = self.module.__dict__.pop("forward", None)
        try:
            with in_place(self.parts):
                output: MoeModelOutputWithPast = self.module(
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
        layers = [find_layer(layer, known) for layer in stack]
        found = [layer for layer in layers if layer is not None]
        if not found or len(found) < len(layers) or not are_alike(found):
            continue
        # What a model of familiar names does otherwise may show as an error, too.
        with no_error():
            decoder = FusedDecoder(module, library, found, last)
            if _agrees(decoder, switch_attention):
                return decoder
        logger.info(
            "the layers of %s compute one after another: as one call they do not compute the same",
            type(module).__name__,
        )
    return None


def _table_kinds(module: nn.Module, layers: list[FusedLayer]) -> list[tuple[str, ...] | None]:
    """Return what each layer's rotary table is asked for with; None where no head is turned."""
    rotary = module.get_submodule("rotary_emb")
    kinds: list[tuple[str, ...]] = [() for _ in layers]
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        kinds = [(kind,) for kind in module.config.layer_types]  # type: ignore[union-attr]
    turns = [layer.attention.shape.turns for layer in layers]
    return [kind if turn else None for kind, turn in zip(kinds, turns, strict=True)]


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
        geometry,
        tables.numel(),
        page,
        dtype=torch.float32,
        device=torch.device("cpu"),
        heads_first=True,
    )
    backend = CpuBackend(page, decoder.library)
    return inputs, PagedAttention(cache, backend, decoder.places)
