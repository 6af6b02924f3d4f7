"""Finds out what a model's attention layers look like, and whether they can be served.

Runs once, on the caller's thread, when a model is taken over. Nothing is read from names in a
configuration that a forward can tell: a probe forward records each attention call, and a
self-check compares packed, paged logits with the model's own.
"""

from collections.abc import Sequence

import torch

from engine.attention.interface import AttentionOptions
from engine.attention.paged_attention import PagedAttention
from engine.attention.select_backend import BackendChoice, choose_backend, make_backend
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache
from engine.cache.row_formats import dtype_name
from engine.cache.sizing import LayerGeometry
from engine.errors import UnsupportedModelError
from engine.models.causal_lm import CausalLM
from engine.models.weight_formats import has_int8_activations

# Layer kinds whose state is keys and values by position. Everything else (recurrent, chunked,
# compressed, indexed) keeps a state that packed sequences would mix.
SERVABLE_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "sparse", "dense"})

SELF_CHECK_PAGE_SIZE = 4
FLASH_PAGE_SIZE = 256  # the smallest that flash-attn reads


class _GeometryRecorder:
    """A `StepAttention` that notes what each layer asks for and answers with zeros."""

    def __init__(self) -> None:
        self.geometry: dict[int, LayerGeometry] = {}
        self.has_sinks = False

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `StepAttention.attend`."""
        if layer in self.geometry:
            raise UnsupportedModelError(f"layer {layer} attends more than once in a forward")
        self.geometry[layer] = LayerGeometry(
            num_query_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            key_dim=key.shape[2],
            value_dim=value.shape[2],
            sliding_window=options.sliding_window,
        )
        self.has_sinks |= options.sinks is not None
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


class ModelGeometry:
    """The attention layers of a model, in the order of their `layer_idx`.

    Attributes:
        layer_indices: The layers' `layer_idx`.
        layers: What each keeps per position.
        has_sinks: Whether a layer has attention sinks.
    """

    def __init__(self, recorder: _GeometryRecorder) -> None:
        """Sort what the recorder saw."""
        self.layer_indices = sorted(recorder.geometry)
        self.layers = [recorder.geometry[layer] for layer in self.layer_indices]
        self.has_sinks = recorder.has_sinks


def probe_geometry(model: CausalLM) -> ModelGeometry:
    """Return the shape of a model's attention layers, seen in a forward of one token.

    Raises:
        UnsupportedModelError: A layer keeps another kind of state, or no attention came by.
    """
    layer_types = set(getattr(model.text_config, "layer_types", None) or [])
    foreign = layer_types - SERVABLE_LAYER_TYPES
    if foreign:
        raise UnsupportedModelError(
            f"{type(model.hf_model).__name__} has layers of type {', '.join(sorted(foreign))}; "
            "only full and sliding-window attention can be served"
        )
    recorder = _GeometryRecorder()
    zero = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    model.forward(zero, zero, zero[0], recorder)
    if not recorder.geometry:
        raise UnsupportedModelError(f"{type(model.hf_model).__name__} has no attention layers")
    return ModelGeometry(recorder)


def default_attention(model: CausalLM, geometry: ModelGeometry) -> BackendChoice:
    """Return the backend that runs under a configuration that does not say otherwise."""
    return choose_backend(
        model.device,
        model.dtype,
        FLASH_PAGE_SIZE,
        allow_flash=True,
        has_sinks=geometry.has_sinks,
        use_kernels=model.use_kernels,
    )


def self_check(
    model: CausalLM,
    geometry: ModelGeometry,
    attention: BackendChoice | None = None,
    rows: torch.dtype | None = None,
) -> float:
    """Compare packed, paged logits of two short prompts with the model's own forward.

    Args:
        model: Computes both.
        geometry: Its attention layers.
        attention: The backend to check; None takes the one that runs by default.
        rows: Dtype of the rows of the cache, see `cache.row_formats`; None is the model's.

    Returns:
        The largest difference, relative to the largest logit.

    Raises:
        UnsupportedModelError: They differ by more than the dtype explains.
    """
    prompts = _check_prompts(model.vocab_size)
    attention = attention or default_attention(model, geometry)
    rows = rows or model.dtype
    packed = _paged_logits(model, geometry, prompts, attention, rows)
    differences = []
    for prompt, logits in zip(prompts, packed, strict=True):
        ids = torch.tensor([prompt], device=model.device)
        own = model.own_logits(ids)[-1].float()
        scale = float(own.abs().max()) or 1.0
        differences.append(float((own - logits.float()).abs().max()) / scale)
    # Not Python's max, which passes over NaN.
    worst = float(torch.tensor(differences).max())
    tolerance = _tolerance(model, rows)
    if not worst <= tolerance:
        cache = "a paged cache" if rows == model.dtype else f"a paged cache in {dtype_name(rows)}"
        raise UnsupportedModelError(
            f"{type(model.hf_model).__name__} gives other logits over {cache} than by itself: they "
            f"differ by {worst:.2g} of the largest, more than {tolerance:.0e}"
        )
    model.checked_attention.add(_checked_name(model, attention, rows))
    return worst


def check_once(
    model: CausalLM, geometry: ModelGeometry, attention: BackendChoice, rows: torch.dtype
) -> None:
    """Check a backend over rows of a dtype unless that was done before; see `self_check`."""
    if _checked_name(model, attention, rows) not in model.checked_attention:
        self_check(model, geometry, attention, rows)


def _checked_name(model: CausalLM, attention: BackendChoice, rows: torch.dtype) -> str:
    own = rows == model.dtype
    return attention.name if own else f"{attention.name} over {dtype_name(rows)}"


def _tolerance(model: CausalLM, rows: torch.dtype) -> float:
    """Return how far the logits may be apart, relative to the largest.

    Random rounding in fp32 stays below 1e-4 for dozens of layers; a wrong mask or position does not
    stay below 1e-2, nor do rows that are read as something else below all of these.
    """
    if rows == torch.int8:
        return 2e-1
    is_rounded = (model.dtype, rows) != (torch.float32, torch.float32)
    return 5e-2 if is_rounded or has_int8_activations(model.hf_model) else 1e-3


def _check_prompts(vocab_size: int) -> list[list[int]]:
    """Two prompts of different lengths with ids from all over the vocabulary."""
    return [[(7919 * i + 13 * n) % vocab_size for i in range(1, n + 1)] for n in (9, 6)]


def _paged_logits(
    model: CausalLM,
    geometry: ModelGeometry,
    prompts: Sequence[Sequence[int]],
    choice: BackendChoice,
    rows: torch.dtype,
) -> torch.Tensor:
    """Return [2, V]: the prompts packed into one forward over interleaved blocks."""
    page = FLASH_PAGE_SIZE if choice.name == "flash" else SELF_CHECK_PAGE_SIZE
    tables = [[0, 2, 4], [1, 3, 0]]
    cache = PagedCache(
        geometry.layers,
        5,
        page,
        dtype=rows,
        device=model.device,
        heads_first=choice.heads_first,
    )
    lengths = [len(prompt) for prompt in prompts]
    slots = [
        table[position // page] * page + position % page
        for table, length in zip(tables, lengths, strict=True)
        for position in range(length)
    ]

    def on_device(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=model.device)

    inputs = BatchInputs(
        input_ids=on_device([token for prompt in prompts for token in prompt])[None],
        position_ids=on_device([p for length in lengths for p in range(length)])[None],
        slots=on_device(slots),
        block_table=torch.tensor(tables, dtype=torch.int32),
        query_starts=[0, lengths[0], sum(lengths)],
        context_lengths=lengths,
        sample_indices=on_device([lengths[0] - 1, sum(lengths) - 1]),
    )
    attention = PagedAttention(cache, make_backend(choice, page), geometry.layer_indices)
    attention.begin_step(inputs)
    return model.forward(inputs.input_ids, inputs.position_ids, inputs.sample_indices, attention)
