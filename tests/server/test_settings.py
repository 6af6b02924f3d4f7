"""Settings: order, types, and errors that say in one line what to write."""

import os
from pathlib import Path

import pytest

from engine.models.weight_formats import ACTIVATIONS as ENGINE_ACTIVATIONS
from engine.models.weight_formats import WEIGHTS as ENGINE_WEIGHTS
from server.environment import cache_folder, calm_worker_threads
from server.reasoning.markers import MARKERS
from server.setting_values import (
    ACTIVATIONS,
    REASONING_PARSERS,
    TOOL_PARSERS,
    WEIGHTS,
    SettingsError,
)
from server.settings import ModelSettings, ServerSettings, Settings, load_settings
from server.tools.harmony import NAME as HARMONY
from server.tools.registry import FORMATS

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_without_a_file_the_defaults_hold():
    assert load_settings() == Settings(ModelSettings(), {}, ServerSettings())


def test_overrides_win_over_the_file_and_later_ones_over_earlier(tmp_path):
    path = write(tmp_path, "[server]\nport = 1\nhost = '::1'\n[engine]\npage_size = 16\n")
    settings = load_settings(path, ["server.port=2", "server.port=3", "engine.page_size=32"])
    assert settings.server.port == 3
    assert settings.server.host == "::1"
    assert settings.engine == {"page_size": 32}


@pytest.mark.parametrize(
    ("override", "section", "value"),
    [
        ("model.dtype=bfloat16", "model", "bfloat16"),
        ('model.dtype="bfloat16"', "model", "bfloat16"),
        ("model.path=org/name", "model", "org/name"),
        ("model.path=/a folder/with=sign", "model", "/a folder/with=sign"),
        ("model.revision=12345", "model", "12345"),
        ("model.served_names=a,b", "model", ("a", "b")),
        ('model.served_names=["a", "b"]', "model", ("a", "b")),
        ("server.shutdown_timeout_seconds=2", "server", 2.0),
    ],
)
def test_values_take_the_type_of_their_field(override, section, value):
    key = override.partition("=")[0].partition(".")[2]
    found = getattr(getattr(load_settings(None, [override]), section), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", ["8.5", "true", "eight", "[8]", "-1", "65536"])
def test_a_port_that_is_none_is_refused(value):
    with pytest.raises(SettingsError, match=r"^server\.port is .*; write a "):
        load_settings(None, [f"server.port={value}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("server.prot=1", "server.prot is not a setting; did you mean port?"),
        ("model.zzz=1", "model.zzz is not a setting; known are "),
        ("serve.port=1", "settings: unknown section [serve]; the sections are [model], [engine]"),
        ("port=1", "--set port=1: write section.key=value"),
        ("server.port", "--set server.port: write section.key=value"),
        ("model.dtype=int8", "model.dtype is 'int8'; write one of auto, float32, bfloat16"),
        (
            "model.weights=int3",
            "model.weights is 'int3'; write one of auto, fp32, bf16x3, bf16, int8, int4",
        ),
        ("model.device=gpu", "model.device is 'gpu'; write auto, cpu, cuda or cuda:0"),
        ("model.sampling_defaults=x", "model.sampling_defaults is 'x'; write one of model, openai"),
        ("model.max_model_tokens=-1", "model.max_model_tokens is -1; write 0 for"),
        ("telemetry.log_level=loud", "telemetry.log_level is 'loud'; write one of debug"),
        ("server.max_choices=0", "server.max_choices is 0; write 1 or more"),
        ("server.shutdown_timeout_seconds=nan", "server.shutdown_timeout_seconds is nan; write 0"),
        ("server.allow_origins=3", "server.allow_origins is 3; write a list"),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(override, message):
    with pytest.raises(SettingsError) as caught:
        load_settings(None, [override])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 1\n", "port stands outside a section"),
        ("[server\n", "is not valid TOML"),
        ("[server]\nprot = 1\n", "did you mean port?"),
        ("[sever]\n", r"unknown section \[sever\]"),
    ],
)
def test_a_wrong_file_is_refused_and_named(tmp_path, text, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.toml does not exist; give --config"):
        load_settings(tmp_path / "none.toml")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SLIPSTREAM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "slipstream"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "shared" / "slipstream"
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configurations_load(path):
    assert isinstance(load_settings(path), Settings)


def test_worker_threads_sleep_unless_the_operator_says_otherwise(monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT")
    calm_worker_threads()
    assert 0 < int(os.environ["GOMP_SPINCOUNT"]) < 300_000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    calm_worker_threads()
    assert os.environ["GOMP_SPINCOUNT"] == "7"


@pytest.mark.parametrize(
    ("choices", "known"),
    [
        (WEIGHTS, ENGINE_WEIGHTS),
        (ACTIVATIONS, ENGINE_ACTIVATIONS),
        (TOOL_PARSERS, ("auto", HARMONY, *FORMATS)),
        (REASONING_PARSERS, ("auto", "none", *MARKERS)),
    ],
    ids=["weights", "activations", "tools", "reasoning"],
)
def test_a_setting_takes_what_there_is(choices, known):
    assert sorted(choices) == sorted(known)


@pytest.mark.parametrize("weights", ENGINE_WEIGHTS)
def test_weights_that_the_engine_knows_are_taken(weights):
    assert load_settings(None, [f"model.weights={weights}"]).model.weights == weights
