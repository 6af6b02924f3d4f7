"""How far a model's positions reach, read from its configuration.

Pure. A rotation that depends on how long the sequence has become cannot be had for each request in
one packed forward, so such a model is served up to the length at which its rotation changes.
"""

from typing import Any

from transformers import PretrainedConfig

LIMIT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def known_positions(config: PretrainedConfig) -> int | None:
    """Return how many positions one sequence may have; None if the configuration does not say.

    Args:
        config: The configuration of the decoder.
    """
    limits = [getattr(config, field, None) for field in LIMIT_FIELDS]
    known = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    changes = [_length_of_change(rope, config) for rope in _rope_parameters(config)]
    candidates = [limit for limit in (known, *changes) if limit is not None]
    return min(candidates) if candidates else None


def _length_of_change(rope: dict[str, Any], config: PretrainedConfig) -> int | None:
    """Return the longest sequence before the rotation changes; None if it never does.

    longrope (Ding et al. 2024) rotates every position of a sequence otherwise once it is longer
    than the pretraining length. "dynamic" changes too, but only beyond max_position_embeddings.
    """
    if rope.get("rope_type") != "longrope":
        return None
    limit = rope.get("original_max_position_embeddings")
    return limit or getattr(config, "original_max_position_embeddings", None)


def _rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the rotations: one for all layers, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
