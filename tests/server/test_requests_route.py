"""A running request ends by its id, whoever asks."""

import json
import threading

import pytest

from server.keys import KeyRing, parse_keys
from server.settings import ServerSettings, Settings
from tests.server.live import run_live


@pytest.fixture
def slow(live):
    """A server whose answers take their time."""
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    return live


def read_events(response) -> list[str]:
    return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_a_stream_ends_by_the_id_of_its_answer(slow, prefix):
    body = {"prompt": "a", "max_tokens": 200, "stream": True, "n": 2}
    with slow.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        first = json.loads(next(lines)[6:])
        answer = slow.http.post(f"{prefix}/requests/{first['id']}/cancel")
        rest = [line[6:] for line in lines if line]
    assert answer.json() == {"id": first["id"], "object": "request.cancelled", "num_cancelled": 1}
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["error"]["code"] == "request_cancelled"
    slow.manager.wait_until(lambda: slow.manager.num_active == 0)


def test_a_whole_answer_ends_by_its_clients_own_label(slow):
    answers = []

    def ask():
        body = {"prompt": "a", "max_tokens": 200}
        headers = {"X-Request-Id": "mine"}
        answers.append(slow.http.post("/v1/completions", json=body, headers=headers))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    slow.manager.wait_until(lambda: slow.manager.num_active == 2)
    assert slow.http.post("/v1/requests/mine/cancel").json()["num_cancelled"] == 2
    for thread in threads:
        thread.join(10)
    assert [answer.status_code for answer in answers] == [499, 499]
    assert answers[0].json()["error"]["code"] == "request_cancelled"
    slow.manager.wait_until(lambda: len(slow.state.running) == 0)


def test_nobody_elses_request_ends(slow):
    with (
        slow.http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as other,
        slow.http.stream("POST", "/v1/completions", json={"prompt": "b", "stream": True}) as mine,
    ):
        lines = mine.iter_lines()
        name = json.loads(next(lines)[6:])["id"]
        slow.http.post(f"/v1/requests/{name}/cancel")
        assert read_events(other)[-1] == "[DONE]"
    slow.manager.wait_until(lambda: len(slow.state.running) == 0)


def test_an_id_that_does_not_run_is_a_404(live):
    name = live.chat().json()["id"]
    for known in (name, "nothing"):
        response = live.http.post(f"/v1/requests/{known}/cancel")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "request_not_found"


def test_a_label_stands_for_requests_of_the_same_key_only():
    keys = KeyRing(clients=parse_keys(["a first-secret", "b second-secret"], origin="test"))
    settings = Settings(server=ServerSettings(port=0), keys=keys)
    body = {"input": "a", "background": True}
    with run_live(settings=settings) as live:
        live.manager.paused.set()
        headers = {"X-Request-Id": "same", "Authorization": "Bearer first-secret"}
        made = live.http.post("/v1/responses", json=body, headers=headers).json()
        other = {"Authorization": "Bearer second-secret"}
        paths = ("/v1/requests/same/cancel", f"/v1/responses/{made['id']}/cancel")
        for path in (*paths, "/v1/requests/a%00same/cancel"):
            assert live.http.post(path, headers=other).status_code == 404
        body = {"input": "b", "previous_response_id": made["id"]}
        assert live.http.post("/v1/responses", json=body, headers=other).status_code == 404
        for path in paths:
            assert live.http.post(path, headers=headers).status_code == 200
