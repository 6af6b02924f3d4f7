"""Options that change the output and are not done are named, never ignored in silence."""

import logging

import pytest
from transformers import GenerationConfig

from engine.errors import UnsupportedConfigError
from engine.sampling.unsupported import check_generation_config, unsupported_options

ACTIVE = {
    "constraints": ["x"],
    "diversity_penalty": 0.5,
    "dola_layers": "low",
    "force_words_ids": [[3]],
    "guidance_scale": 2.0,
    "num_beam_groups": 2,
    "num_beams": 3,
    "penalty_alpha": 0.6,
    "token_healing": True,
    "watermarking_config": {"bias": 2.0},
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
        GenerationConfig(suppress_tokens=[3], guidance_scale=1.0, renormalize_logits=True),
        GenerationConfig(no_repeat_ngram_size=2, typical_p=0.5, stop_strings="x", max_time=1.0),
    ],
)
def test_supported_and_neutral_options_are_not_reported(config):
    assert unsupported_options(config) == {}
    check_generation_config(config, drop_unsupported=False)


def test_dropping_warns_once_and_names_all(caplog):
    config = GenerationConfig(num_beams=2, guidance_scale=3.0)
    with caplog.at_level(logging.WARNING, logger="engine.sampling.unsupported"):
        check_generation_config(config, drop_unsupported=True)
    assert len(caplog.records) == 1
    assert "num_beams=2" in caplog.text
    assert "guidance_scale=3.0" in caplog.text


def test_refusing_names_the_options_and_the_way_out():
    with pytest.raises(UnsupportedConfigError, match="guidance_scale=3") as caught:
        check_generation_config(GenerationConfig(guidance_scale=3), drop_unsupported=False)
    assert caught.value.field == "drop_unsupported_processors"
    assert "drop_unsupported_processors" in str(caught.value)
