"""The way in: what a Hugging Face attention module calls instead of its own attention.

transformers looks attention functions up by name. `ATTENTION_NAME` is registered here, once; which
cache and which step a call belongs to hangs on the calling module for the length of a forward
(`STEP_ATTRIBUTE`). It is not a keyword argument of the model, because some models do not hand those
down, and not ambient state, so two engines in one process cannot meet. An unknown name also makes
transformers build no mask at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from engine.batch import BatchInputs
from engine.errors import UnsupportedModelError

ATTENTION_NAME = "slipstream_paged"
STEP_ATTRIBUTE = "slipstream_step"


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How one layer attends; constant over the life of a model.

    Attributes:
        scaling: Factor on the scores.
        sliding_window: Positions a query sees, itself included; None sees all before it.
        softcap: Scores become softcap * tanh(scores / softcap); None leaves them.
        sinks: [H] extra logits in the softmax's denominator (Xiao et al. 2023); None has none.
    """

    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class StepAttention(Protocol):
    """What a step hands to the model: attention for each of its layers."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Store this step's keys and values and attend.

        Args:
            layer: The module's `layer_idx`.
            query: [T, H, D].
            key: [T, Hkv, D].
            value: [T, Hkv, Dv].
            options: How the layer attends.

        Returns:
            [T, H, Dv].
        """
        ...


class AttentionBackend(Protocol):
    """Attention over cached keys; plans once per step, the plan serves all layers."""

    def plan(self, inputs: BatchInputs) -> None:
        """Prepare whatever depends on the step but not on the layer."""
        ...

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Let each request's queries see that request's own cached keys.

        Args:
            query: [T, H, D].
            keys: [num_blocks, page_size, Hkv, W] rows, this step's included; what the W elements
                mean says `engine.cache.row_formats`.
            values: [num_blocks, page_size, Hkv, Wv].
            options: How the layer attends.

        Returns:
            [T, H, Dv].
        """
        ...


# Keyword arguments that change no result here: dropout is 0 in eval mode, and the packed batch's
# own positions say what the others would.
NEUTRAL_KEYWORDS: Sequence[str] = (
    "dropout", "position_ids", "output_attentions", "use_cache", "is_causal", "cache_position",
    "position_embeddings", "output_hidden_states", "return_dict", "cu_seq_lens_q", "cu_seq_lens_k",
    "max_length_q", "max_length_k", "output_router_logits",
)  # fmt: skip


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Answer a Hugging Face attention module's call.

    Args:
        module: The attention module; its `layer_idx` names the layer.
        query: [1, H, T, D].
        key: [1, Hkv, T, D].
        value: [1, Hkv, T, Dv].
        attention_mask: None; a model that builds one anyway attends in a way we do not know.
        **kwargs: The layer's options.

    Returns:
        ([1, T, H, Dv], None).

    Raises:
        UnsupportedModelError: The call asks for something other than causal attention.
    """
    step: StepAttention | None = module.__dict__.get(STEP_ATTRIBUTE)
    name = type(module).__name__
    if step is None:
        raise UnsupportedModelError(f"{name} has no layer_idx, so its cache cannot be told apart")
    if attention_mask is not None:
        raise UnsupportedModelError(f"{name} builds an attention mask of its own")
    if kwargs.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise UnsupportedModelError(f"{name} is not causal; only decoders can be served")
    scaling = kwargs.pop("scaling", None)
    options = AttentionOptions(
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        sliding_window=kwargs.pop("sliding_window", None),
        softcap=kwargs.pop("softcap", None),
        sinks=kwargs.pop("s_aux", None),
    )
    unknown = [k for k, v in kwargs.items() if v is not None and k not in NEUTRAL_KEYWORDS]
    if unknown:
        raise UnsupportedModelError(f"{name} passes {', '.join(unknown)} to its attention")
    output = step.attend(
        int(module.__dict__["layer_idx"]),
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        options,
    )
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)
