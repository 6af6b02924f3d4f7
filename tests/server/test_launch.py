"""The way to a server that answers, as its clients see it."""

import re
import threading
from queue import SimpleQueue

import httpx
import pytest

from server import launch
from server.model_store import StoredModel
from server.settings import ModelSettings, ServerSettings, Settings
from server.startup_errors import ModelUnavailableError


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


@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0", "model": {"type": "x"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    kind = '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    (tmp_path / "tokenizer_config.json").write_text(kind)
    with pytest.raises(ModelUnavailableError, match="no tokenizer that can be read"):
        launch.load_tokenizer(Settings(), StoredModel(tmp_path, "broken"))
