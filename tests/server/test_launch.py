"""The way to a server that answers, as its clients see it."""

import re
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

import engine
from engine import ContinuousBatchingConfig, PagedModel
from server import launch
from server.model_store import StoredModel
from server.settings import ModelSettings, ServerSettings, Settings, load_settings
from server.startup_errors import ModelUnavailableError

# Of an engine that starts at once.
SMALL: dict[str, Any] = {"page_size": 16, "num_blocks": 32, "max_requests_per_batch": 4}


@pytest.mark.parametrize("path", ["", "org/name"])
def test_the_port_is_open_while_a_model_is_fetched(monkeypatch, path):
    notices: SimpleQueue[str] = SimpleQueue()
    asked = threading.Event()
    answers: list[httpx.Response] = []

    def fetch(*_: object) -> None:
        assert asked.wait(20), "nobody asked while the model was fetched"
        raise ModelUnavailableError("it cannot be fetched")

    def ask() -> None:
        try:
            notice = notices.get(timeout=20)
            found = re.search(r"^fetching .*; port (\d+) is open", notice)
            assert found is not None, notice
            with httpx.Client(base_url=f"http://127.0.0.1:{found[1]}") as http:
                answers.extend(http.get(place) for place in ("/live", "/ready", "/v1/models"))
        finally:
            asked.set()

    monkeypatch.setattr(launch, "configure_logging", lambda *_: None)
    monkeypatch.setattr(launch, "find_model", fetch)
    monkeypatch.setattr(launch, "print_notice", notices.put)
    client = threading.Thread(target=ask)
    client.start()
    settings = Settings(model=ModelSettings(path=path), server=ServerSettings(port=0))
    with pytest.raises(ModelUnavailableError, match="it cannot be fetched"):
        launch.run(settings)
    client.join()
    live, ready, models = answers
    assert live.status_code == 200
    assert (ready.status_code, ready.json()) == (503, {"status": "fetching"})
    assert models.json()["error"]["code"] == "model_loading"


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_without_fusion_the_model_computes_by_itself(monkeypatch, tiny_model_folder, weights):
    loaded = []

    def load(*arguments: Any, **options: Any) -> PagedModel:
        loaded.append(engine.load(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(launch, "engine", SimpleNamespace(load=load))
    texts, fingerprints = [], []
    printed: list[list[tuple[str, str, str]]] = []
    monkeypatch.setattr(launch, "print_configuration", printed.append)
    for options in ([], ["model.fusion=false"]):
        settings = load_settings(None, [f"model.weights={weights}", *options])
        stored = StoredModel(tiny_model_folder, "tiny")
        made = launch.Launch(settings, stored, ContinuousBatchingConfig(**SMALL))
        with TestClient(made.load()) as client:
            asked = {"prompt": "Hello", "max_tokens": 24, "temperature": 0}
            answer = client.post("/v1/completions", json=asked).json()
        texts.append(answer["choices"][0]["text"])
        fingerprints.append(answer["system_fingerprint"])
        made.close()
    fused, plain = loaded
    assert fused.causal_lm.in_place
    assert list(plain.causal_lm.in_place) == []
    assert texts[0] == texts[1]
    assert fingerprints[0] != fingerprints[1]
    rows = [{name: value for name, value, _ in rows} for rows in printed]
    assert ("model.fusion" in rows[0], rows[0]["attention"]) == (False, "cpu")
    assert (rows[1]["model.fusion"], rows[1]["attention"]) == ("false", "torch")


@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0", "model": {"type": "x"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    kind = '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    (tmp_path / "tokenizer_config.json").write_text(kind)
    with pytest.raises(ModelUnavailableError, match="no tokenizer that can be read"):
        launch.load_tokenizer(Settings(), StoredModel(tmp_path, "broken"))
