"""What a manager needs of the model it runs."""

from typing import Any, Protocol

from engine.models.causal_lm import CausalLM
from engine.models.probe import ModelGeometry


class ServableModel(Protocol):
    """A probed model; `PagedModel` is the one that users hold.

    Attributes:
        causal_lm: Runs packed tokens.
        geometry: Its attention layers.
        tokenizer: What stop_strings are looked for with, or None.
        cached_manager: The manager that was kept for a next session, or None.
    """

    causal_lm: CausalLM
    geometry: ModelGeometry
    tokenizer: Any
    cached_manager: Any
