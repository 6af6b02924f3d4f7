"""Which folder a model name means, and what is refused before anything is loaded."""

import json
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from server import model_store
from server.model_store import find_model
from server.settings import ModelSettings
from server.startup_errors import ModelUnavailableError


def make_model(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "model.safetensors").touch()
    return folder


def refusal(path: object, cache: Path) -> str:
    with pytest.raises(ModelUnavailableError) as caught:
        find_model(ModelSettings(path=str(path)), cache)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_served_under_its_own_name(tmp_path):
    folder = make_model(tmp_path / "my-model")
    found = find_model(ModelSettings(path=str(folder)), tmp_path)
    assert (found.folder, found.name) == (folder, "my-model")


def test_a_folder_may_be_given_relative_to_home_and_here(tmp_path, monkeypatch):
    folder = make_model(tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("~/model", "model", "./model"):
        assert find_model(ModelSettings(path=name), tmp_path).folder == folder


def test_no_name_means_the_default_model(tmp_path, monkeypatch):
    monkeypatch.setattr(model_store, "prepare_default_model", lambda cache: cache / "made")
    found = find_model(ModelSettings(), tmp_path)
    assert (found.folder, found.name) == (tmp_path / "made", "SmolLM2-135M-Instruct")


def test_a_hub_name_is_downloaded_at_its_revision(tmp_path, monkeypatch):
    calls = []

    def download(name, *, revision, allow_patterns):
        calls.append((name, revision))
        assert not any(pattern in ("*.bin", "*.py", "*") for pattern in allow_patterns)
        return str(make_model(tmp_path / "snapshot"))

    monkeypatch.setattr(model_store, "snapshot_download", download)
    found = find_model(ModelSettings(path="org/name", revision="v1"), tmp_path)
    assert (found.folder, found.name) == (tmp_path / "snapshot", "org/name")
    find_model(ModelSettings(path="org/name"), tmp_path)
    assert calls == [("org/name", "v1"), ("org/name", None)]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("two\nlines"), "the hub cannot be reached"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("protocol"), "the hub cannot be reached (RuntimeError)"),
    ],
)
def test_a_hub_that_does_not_answer_is_one_line(tmp_path, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(model_store, "snapshot_download", fail)
    text = refusal("org/name", tmp_path)
    assert text.startswith("org/name ")
    assert message in text


@pytest.mark.parametrize("name", ["/no/such", "./none", "a/b/c", "~/nothing-here"])
def test_a_missing_folder_is_never_looked_for_on_the_hub(tmp_path, name):
    assert "does not exist; give a model folder" in refusal(name, tmp_path)


def test_a_file_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.touch()
    assert "is no .gguf file; give one, or the folder" in refusal(path, tmp_path)


def test_a_folder_without_config_is_refused(tmp_path):
    assert "holds no config.json" in refusal(tmp_path, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_broken_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert "is not a model's config" in refusal(tmp_path, tmp_path)


def test_a_model_that_needs_its_own_code_is_refused(tmp_path):
    folder = make_model(tmp_path / "m", model_type="novel", auto_map={"AutoConfig": "x.Y"})
    assert "needs code of its own (auto_map), which is never run" in refusal(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["x.Y", None]}}),
        ("generation_config.json", {"nested": [{"trust_remote_code": True}]}),
    ],
)
def test_code_is_found_wherever_a_repository_names_it(tmp_path, name, config):
    folder = make_model(tmp_path / "m")
    (folder / name).write_text(json.dumps(config))
    assert f"{name} names code of its own" in refusal(folder, tmp_path)


def test_a_known_model_that_also_brings_code_is_served_without_it_if_the_operator_says_so(tmp_path):
    folder = make_model(tmp_path / "m", auto_map={"AutoConfig": "x.Y"})
    assert "config.json names code of its own (auto_map)" in refusal(folder, tmp_path)
    settings = ModelSettings(path=str(folder), allow_auto_map=True)
    assert find_model(settings, tmp_path).folder == folder


def test_an_unknown_model_type_is_refused(tmp_path):
    folder = make_model(tmp_path / "m", model_type="novel")
    assert "'novel', which transformers does not know" in refusal(folder, tmp_path)


def test_pickled_weights_are_refused(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled files are not read" in refusal(folder, tmp_path)
