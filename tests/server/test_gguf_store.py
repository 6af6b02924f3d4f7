"""A GGUF file is served as it is; its tokenizer is written once, into the cache folder."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from server import gguf_store
from server.cli import main
from server.model_store import find_model
from server.settings import ModelSettings
from server.startup_errors import ModelUnavailableError
from tests.gguf_writer import write_gguf

TOKENS = ["<|end|>", "a", "b", "Ġ", "ab"]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 0,
}
CONFIG = LlamaConfig(
    vocab_size=len(TOKENS), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    tie_word_embeddings=True, bos_token_id=None, eos_token_id=0,
)  # fmt: skip


def write_model(path: Path, **changes: object) -> Path:
    torch.manual_seed(0)
    write_gguf(LlamaForCausalLM(CONFIG), path, fields={**TOKENIZER, **changes})
    return path


@pytest.fixture
def path(tmp_path) -> Path:
    return write_model(tmp_path / "my-model.gguf")


def refusal(path: Path, cache: Path) -> str:
    with pytest.raises(ModelUnavailableError) as caught:
        find_model(ModelSettings(path=str(path)), cache)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_served_under_its_own_name_with_its_own_tokenizer(path, tmp_path):
    found = find_model(ModelSettings(path=str(path)), tmp_path / "cache")
    assert (found.source, found.name) == (path, "my-model")
    assert found.folder.parent == tmp_path / "cache" / "gguf"
    assert AutoTokenizer.from_pretrained(found.folder).tokenize("ab b") == ["ab", "Ġ", "b"]
    assert {item.name for item in tmp_path.iterdir()} == {"my-model.gguf", "cache"}


def test_the_tokenizer_is_written_once_for_each_content(path, tmp_path, monkeypatch):
    settings = ModelSettings(path=str(path))
    first = find_model(settings, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(gguf_store, "write_from", None)
        assert find_model(settings, tmp_path) == first
    write_model(path, **{"general.name": "another"})
    assert find_model(settings, tmp_path).folder != first.folder


def test_a_start_that_was_slower_takes_what_is_there(path, tmp_path, monkeypatch):
    write = gguf_store.write_from

    def write_slowly(path, target):
        with monkeypatch.context() as patch:
            patch.setattr(gguf_store, "write_from", write)
            find_model(ModelSettings(path=str(path)), tmp_path)
        write(path, target)

    monkeypatch.setattr(gguf_store, "write_from", write_slowly)
    folder = find_model(ModelSettings(path=str(path)), tmp_path).folder
    assert list(folder.parent.iterdir()) == [folder]


def test_what_cannot_be_served_is_one_line(path, tmp_path):
    (tmp_path / "model.bin").touch()
    assert "model.bin is no .gguf file; give one, or the" in refusal(
        tmp_path / "model.bin", tmp_path
    )
    assert "is of the kind gpt2 other; known are" in refusal(
        write_model(tmp_path / "b.gguf", **{"tokenizer.ggml.pre": "other"}), tmp_path
    )
    for name, value in (("merges", ["z y"]), ("tokens", 3), ("token_type", [1])):
        text = refusal(write_model(path, **{f"tokenizer.ggml.{name}": value}), tmp_path)
        assert text.startswith("my-model.gguf cannot be served: ")
    write_model(path)
    path.write_bytes(path.read_bytes()[:50])
    assert "my-model.gguf cannot be read as a GGUF file: it ends" in refusal(path, tmp_path)
    assert not list(tmp_path.rglob(".staging-*"))
    (tmp_path / "cache").touch()
    assert "cannot be written to" in refusal(path, tmp_path / "cache")


def test_a_start_comes_as_far_with_a_file_as_with_a_folder(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("server.launch.configure_logging", lambda *_: None)
    status = main(["serve", str(path), "--port", "0", "--set", "engine.num_blocks=1"])
    assert status == 1
    assert "num_blocks" in capsys.readouterr().err.splitlines()[-1]
