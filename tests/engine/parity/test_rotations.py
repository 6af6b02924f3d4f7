"""Rotations other than the plain one, above all those that depend on a sequence's length."""

import pytest
from transformers import LlamaConfig, Phi3Config

import engine
from tests.engine.parity.families import SHAPE, make_random_model
from tests.engine.parity.grid import MAX_NEW_TOKENS, Settings, make_prompts
from tests.engine.parity.subject import Subject

SETTINGS = Settings(16, 64, True, False, "fifo")
ROTATIONS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}


def longrope_config(original_positions: int) -> Phi3Config:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [4.0, 5.0, 6.0, 7.0],
    }
    return Phi3Config(
        **SHAPE, rope_parameters=rope, original_max_position_embeddings=original_positions
    )


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_tokens_equal_generate(rotation, judge):
    config = LlamaConfig(**SHAPE, rope_parameters={"rope_theta": 10000.0, **ROTATIONS[rotation]})
    model = make_random_model(config)
    judge(Subject(model, make_prompts(), MAX_NEW_TOKENS, spare_tokens=0).run(SETTINGS))


def test_a_rotation_that_changes_with_the_length_is_served_up_to_the_change(judge):
    """One long neighbour would turn every shorter request's positions."""
    subject = Subject(
        make_random_model(longrope_config(128)), make_prompts(), MAX_NEW_TOKENS, spare_tokens=0
    )
    judge(subject.run(SETTINGS))
    assert subject.paged.max_model_tokens == 128
    with pytest.raises(engine.PromptTooLongError, match="128"):
        subject.paged.generate_batch([[1] * 129], max_new_tokens=1)
