"""Which limit of a configuration counts."""

from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, MambaConfig, PretrainedConfig

from engine.models.positions import known_positions


def config_with(**fields: Any) -> PretrainedConfig:
    config = PretrainedConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(max_position_embeddings=2048), 2048),
        (GPT2Config(n_positions=77), 77),
        (MambaConfig(), None),
        (config_with(max_seq_len=33), 33),
        (config_with(max_position_embeddings=0), None),
        (config_with(max_position_embeddings=131072, rope_parameters=LONGROPE), 4096),
        (
            config_with(
                max_position_embeddings=131072,
                rope_parameters={"rope_type": "longrope"},
                original_max_position_embeddings=8192,
            ),
            8192,
        ),
        (
            config_with(
                max_position_embeddings=131072,
                rope_parameters={
                    "full_attention": LONGROPE,
                    "sliding_attention": {"rope_type": "default"},
                },
            ),
            4096,
        ),
        (
            config_with(
                max_position_embeddings=131072,
                rope_parameters={"rope_type": "yarn", "original_max_position_embeddings": 4096},
            ),
            131072,
        ),
    ],
)
def test_the_smallest_limit_that_holds_for_a_single_forward(config, expected):
    assert known_positions(config) == expected
