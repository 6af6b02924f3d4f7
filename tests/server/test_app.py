"""Routes, paths, methods and headers of the application."""

import threading
import time
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from engine import RequestFailedError
from server.app import create_app
from server.settings import ModelSettings, ServerSettings, Settings
from server.state import served_names
from tests.server.fakes import FakeManager, FakeModel, make_byte_level_tokenizer
from tests.server.live import run_live

FOUR_KEYS = {"message", "type", "param", "code"}


def test_models_are_listed_with_their_context(live):
    body = live.http.get("/v1/models").json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["tiny", "org/tiny"]
    assert all(card["object"] == "model" for card in body["data"])
    assert body["data"][0]["max_model_len"] == 256


@pytest.mark.parametrize(
    "path", ["/v1/models/org/tiny", "/v1/models/org%2Ftiny", "/models/org/tiny"]
)
def test_a_model_id_may_hold_a_slash(live, path):
    assert live.http.get(path).json()["id"] == "org/tiny"


def test_an_unknown_model_id_is_a_404(live):
    response = live.http.get("/v1/models/nope")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "path", ["/v1/models/", "//v1/models", "/v1//models", "/models", "/models/", "/v1/models?x=1"]
)
def test_slashes_and_prefixes_are_served_in_place(live, path):
    response = live.http.get(path, follow_redirects=False)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "//v1/chat/completions", "/chat/completions"]
)
def test_a_post_is_never_redirected(live, path):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert live.http.post(path, json=body, follow_redirects=False).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/live", "/ready", "/version", "/v1/models"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_plain_pages_answer_get_and_head(live, path, method):
    response = live.http.request(method, path)
    assert response.status_code == 200
    assert bool(response.content) == (method == "GET")


def test_the_documentation_pages_work(live):
    assert live.http.get("/docs").status_code == 200
    schema = live.http.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(schema["paths"])
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"]
    assert "messages" in schema["components"]["schemas"][reference.rsplit("/", 1)[1]]["properties"]


def test_an_unknown_path_has_the_body_of_an_error(live):
    response = live.http.get("/v2/nothing")
    assert response.status_code == 404
    assert set(response.json()["error"]) == FOUR_KEYS


def test_a_wrong_method_says_which_is_right(live):
    response = live.http.get("/v1/chat/completions")
    assert response.status_code == 405
    assert "POST" in response.headers["Allow"]
    assert set(response.json()["error"]) == FOUR_KEYS


def test_options_without_origin_is_answered(live):
    response = live.http.options("/v1/models")
    assert response.status_code in (200, 204)
    assert "GET" in response.headers["Allow"]


def test_preflight_and_cors_headers_on_every_answer(live):
    preflight = {
        "Origin": "http://a",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    response = live.http.options("/v1/chat/completions", headers=preflight)
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    for path in ("/v1/models", "/nope"):
        response = live.http.get(path, headers={"Origin": "http://a"})
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("abc-1.2_3", "abc-1.2_3"), ("a b\tc<script>", "abcscript"), ("x" * 500, "x" * 128)],
)
def test_a_clients_request_id_is_echoed_cleaned(live, given, expected):
    for path in ("/v1/models", "/nope"):
        response = live.http.get(path, headers={"X-Request-Id": given})
        assert response.headers["X-Request-Id"] == expected


def test_request_ids_are_made_and_differ(live):
    ids = {live.http.get("/live").headers["X-Request-Id"] for _ in range(5)}
    assert len(ids) == 5


def test_equal_request_ids_do_not_collide_in_the_engine(live):
    for _ in range(2):
        headers = {"X-Request-Id": "same"}
        body = {"prompt": "hello"}
        assert live.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert len({request.request_id for request in live.manager.added}) == 2


def test_a_body_over_the_limit_is_a_413():
    settings = Settings(server=ServerSettings(port=0, max_body_bytes=2000))
    with run_live(settings=settings) as live:
        assert live.complete(prompt="a" * 1000).status_code in (200, 400)
        response = live.complete(prompt="a" * 2000)
        assert response.status_code == 413
        assert set(response.json()["error"]) == FOUR_KEYS
        chunks = (b"x" * 500 for _ in range(10))
        assert live.http.post("/v1/completions", content=chunks).status_code == 413
        assert live.complete(prompt="a").status_code == 200


def test_a_full_queue_is_a_429_at_once(live):
    live.manager.queue_full_after = 0
    for fields in ({}, {"stream": True}):
        response = live.chat(**fields)
        assert response.status_code == 429
        assert response.headers["Retry-After"] == "3"
        assert response.json()["error"]["code"] == "rate_limit_exceeded"
    live.manager.queue_full_after = None
    assert live.chat().status_code == 200


def test_prompts_before_a_refused_one_are_cancelled(live):
    live.manager.queue_full_after = 2
    live.manager.step_seconds = 0.01
    assert live.complete(prompt=["a"] * 4).status_code == 429
    assert len(live.manager.cancelled) == 2
    live.manager.wait_until(lambda: live.manager.num_active == 0)


def test_a_dead_engine_turns_health_red_and_requests_away(mortal_live):
    mortal_live.manager.die(RuntimeError("boom"))
    for path in ("/health", "/ready"):
        assert mortal_live.http.get(path).status_code == 503
    mortal_live.manager.wait_until(lambda: mortal_live.state.failure == "dead")
    assert mortal_live.http.get("/live").status_code == 503
    response = mortal_live.chat()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert "boom" not in response.text
    assert int(response.headers["Retry-After"]) >= 1


def test_a_request_that_fails_alone_is_a_500_without_details(live):
    live.manager.script = lambda _ids, _arguments: [300, RequestFailedError("/secret/path")]
    response = live.chat()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "request_failed"
    assert "secret" not in response.text


def test_an_unexpected_error_is_a_constant_500_with_cors(live, monkeypatch, caplog):
    def broken(*_arguments, **_keywords):
        raise KeyError("secret detail")

    monkeypatch.setattr(live.manager, "add_request", broken)
    response = live.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"Origin": "http://a"}
    )
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert response.headers["X-Request-Id"]
    assert "failed unexpectedly" in caplog.text


def test_draining_refuses_generation_and_answers_the_rest(live):
    live.state.draining = True
    for path in ("/v1/chat/completions", "/completions"):
        response = live.http.post(path, json={})
        assert response.status_code == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["Connection"] == "close"
        assert set(response.json()["error"]) == FOUR_KEYS
    assert live.http.get("/ready").status_code == 503
    assert live.http.get("/health").status_code == 503
    assert live.http.get("/live").status_code == 200
    assert live.http.get("/v1/models").status_code == 200


def test_two_servers_live_in_one_process():
    with run_live() as first, run_live() as second:
        second.says("other")
        assert first.chat().json()["choices"] != second.chat().json()["choices"]
        second.state.draining = True
        assert first.chat().status_code == 200


def test_the_lifespan_starts_and_stops_the_engine():
    tokenizer = make_byte_level_tokenizer()
    manager = FakeManager(lambda _ids, _arguments: [2], eos_token_id=2)
    app = create_app(Settings(), FakeModel(), manager, tokenizer)
    assert not manager.is_running()
    with TestClient(app) as client:
        assert manager.is_running()
        assert client.get("/health").status_code == 200
    assert not manager.is_running()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (ModelSettings(served_names=("a", "b")), ("a", "b")),
        (ModelSettings(path="org/name"), ("org/name",)),
        (ModelSettings(), ("SmolLM2-135M-Instruct",)),
    ],
)
def test_served_names(settings, names):
    assert served_names(settings) == names


def test_a_local_folder_is_served_under_its_own_name(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert served_names(ModelSettings(path=str(folder))) == ("my-model",)


def test_openai_defaults_are_a_setting():
    settings = Settings(server=ServerSettings(port=0))
    settings = replace(settings, model=ModelSettings(sampling_defaults="openai"))
    with run_live(settings=settings) as live:
        live.complete()
        asked = live.manager.added[0].arguments
        assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (1.0, 1.0, 0)


def test_health_answers_quickly_beside_a_long_prompt(live):
    live.http.timeout = 60
    big = ["word " * 40_000]
    thread = threading.Thread(target=lambda: live.complete(prompt=big))
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        began = time.monotonic()
        live.http.get("/live")
        slowest = max(slowest, time.monotonic() - began)
    thread.join()
    assert slowest < 1.0
