"""Joins the cache and a backend into what a model's layers call: write, then attend.

Engine thread only. One per engine; `begin_step` is called before each forward.
"""

import torch

from engine.attention.interface import AttentionBackend, AttentionOptions
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache


class PagedAttention:
    """Attention of one engine's model over one paged cache.

    Attributes:
        cache: Where keys and values lie.
        backend: How queries look at them.
        position_of: Which of the cache's layers is the one of a `layer_idx`.
        places: Where the step's keys and values go.
    """

    def __init__(
        self, cache: PagedCache, backend: AttentionBackend, layer_indices: list[int]
    ) -> None:
        """Join the parts.

        Args:
            cache: Where keys and values lie.
            backend: How queries look at them.
            layer_indices: `layer_idx` of the model's attention layers, in the cache's order.
        """
        self.cache = cache
        self.backend = backend
        self.position_of = {layer: position for position, layer in enumerate(layer_indices)}
        self.places = cache.locate(torch.empty(0, dtype=torch.int64))

    def begin_step(self, inputs: BatchInputs) -> None:
        """Find the step's places and let the backend plan."""
        self.places = self.cache.locate(inputs.slots)
        self.backend.plan(inputs)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `StepAttention.attend`."""
        position = self.position_of[layer]
        self.cache.write(position, self.places, key, value)
        return self.backend.attend(
            query, self.cache.keys[position], self.cache.values[position], options
        )
