"""Runs a step's forward as it stands, module by module.

Engine thread only. The runner is what variants (`compiled`) replace.
"""

from contextlib import nullcontext
from typing import Protocol

import torch

from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.models.causal_lm import CausalLM


class Runner(Protocol):
    """Computes the logits of a step."""

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """Return [N, V] logits for the N sampling requests, in the model's dtype.

        Fills in `inputs.pooled`.
        """
        ...

    def prepare(self) -> None:
        """Do ahead of time what the first forwards would otherwise wait for."""
        ...


class EagerRunner:
    """`Runner` that calls the model's own forward."""

    def __init__(self, model: CausalLM, attention: PagedAttention) -> None:
        """Join the model with the attention over this engine's cache."""
        self._model = model
        self._attention = attention

    def forward(self, inputs: BatchInputs) -> torch.Tensor:
        """See `Runner.forward`."""
        self._attention.begin_step(inputs)

        def read(hidden: torch.Tensor) -> None:
            for rows in inputs.pooled:
                rows.read(hidden)

        with self._model.watching(read) if inputs.pooled else nullcontext():
            return self._model.forward(
                inputs.input_ids, inputs.position_ids, inputs.sample_indices, self._attention
            )

    def prepare(self) -> None:
        """See `Runner.prepare`; the model is ready as it is."""
