"""Options that change the output and are not done are named, never ignored in silence."""

import logging

import pytest
from transformers import GenerationConfig

from engine.errors import UnsupportedConfigError
from engine.sampling.unsupported import check_generation_config, unsupported_options

ACTIVE = {
    "bad_words_ids": [[3]],
    "begin_suppress_tokens": [1],
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.5,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "exponential_decay_length_penalty": (5, 1.1),
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 0,
    "guidance_scale": 2.0,
    "max_time": 1.0,
    "no_repeat_ngram_size": 2,
    "num_beams": 3,
    "penalty_alpha": 0.6,
    "remove_invalid_values": True,
    "sequence_bias": [[[3], 1.0]],
    "stop_strings": ["x"],
    "suppress_tokens": [4],
    "token_healing": True,
    "top_h": 0.4,
    "typical_p": 0.5,
}


@pytest.mark.parametrize("name", ACTIVE)
def test_an_active_option_is_found(name):
    config = GenerationConfig()
    setattr(config, name, ACTIVE[name])
    assert unsupported_options(config) == {name: ACTIVE[name]}


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(),
        GenerationConfig(**{**GenerationConfig._get_default_generation_params(), "num_beams": 1}),
        GenerationConfig(do_sample=True, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1),
        GenerationConfig(repetition_penalty=1.2, min_new_tokens=2, max_new_tokens=9),
        GenerationConfig(suppress_tokens=[], guidance_scale=1.0, renormalize_logits=True),
    ],
)
def test_supported_and_neutral_options_are_not_reported(config):
    assert unsupported_options(config) == {}
    check_generation_config(config, drop_unsupported=False)


def test_dropping_warns_once_and_names_all(caplog):
    config = GenerationConfig(num_beams=2, no_repeat_ngram_size=3)
    with caplog.at_level(logging.WARNING, logger="engine.sampling.unsupported"):
        check_generation_config(config, drop_unsupported=True)
    assert len(caplog.records) == 1
    assert "num_beams=2" in caplog.text
    assert "no_repeat_ngram_size=3" in caplog.text


def test_refusing_names_the_options_and_the_way_out():
    with pytest.raises(UnsupportedConfigError, match="no_repeat_ngram_size=3") as caught:
        check_generation_config(GenerationConfig(no_repeat_ngram_size=3), drop_unsupported=False)
    assert caught.value.field == "drop_unsupported_processors"
    assert "drop_unsupported_processors" in str(caught.value)
