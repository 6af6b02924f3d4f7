"""Vectors on the wire."""

import base64
import math
import struct
import threading

import openai
import pytest

from engine import RequestFailedError
from server.settings import ModelSettings, ServerSettings, Settings
from tests.server.live import run_live


def embed(live, **fields):
    return live.http.post("/v1/embeddings", json={"input": "hello", **fields})


def test_each_input_has_its_vector_in_order(live):
    answer = embed(live, input=["a", "a b c d e", "a b"]).json()
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert all(item["object"] == "embedding" for item in answer["data"])
    lengths = [math.hypot(*item["embedding"]) for item in answer["data"]]
    assert lengths == pytest.approx([1, 1, 1])
    # The fake's vectors begin with the length of their prompt.
    prompts = {len(request.input_ids) for request in live.manager.added}
    shares = [item["embedding"][0] / item["embedding"][1] * 3 for item in answer["data"]]
    assert set(map(round, shares)) == prompts
    total = sum(len(request.input_ids) for request in live.manager.added)
    assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}


@pytest.mark.parametrize("fields", [{}, {"dimensions": 2}, {"input": ["a", "a b c"]}])
def test_base64_is_the_same_vector_in_little_endian_float32(live, fields):
    plain = embed(live, **fields).json()["data"]
    coded = embed(live, encoding_format="base64", **fields).json()["data"]
    for vector, text in zip(plain, coded, strict=True):
        data = base64.b64decode(text["embedding"], validate=True)
        assert len(data) == 4 * len(vector["embedding"])
        numbers = struct.unpack(f"<{len(data) // 4}f", data)
        assert numbers == pytest.approx(vector["embedding"])


def test_the_official_client_reads_them(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as client:
        by_default = client.embeddings.create(model="tiny", input="hello")
        plain = client.embeddings.create(model="tiny", input=["hello"], encoding_format="float")
    assert by_default.data[0].embedding == pytest.approx(plain.data[0].embedding)


def test_fewer_dimensions_have_length_one_again(live):
    whole = embed(live).json()["data"][0]["embedding"]
    cut = embed(live, dimensions=2).json()["data"][0]["embedding"]
    assert math.hypot(*cut) == pytest.approx(1)
    assert cut[0] / cut[1] == pytest.approx(whole[0] / whole[1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input.0"),
        ({"input": None}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "hello " * 1000}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_wrong_is_named(live, fields, param):
    response = embed(live, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "prompt" not in response.json()["error"]["message"].replace("truncate_prompt", "")


def test_a_long_list_does_not_crowd_the_queue(live):
    live.manager.step_seconds = 0.002
    most = 0
    answers = []
    thread = threading.Thread(target=lambda: answers.append(embed(live, input=["a"] * 100)))
    thread.start()
    while thread.is_alive():
        most = max(most, live.manager.num_active)
    assert len(answers[0].json()["data"]) == 100
    assert 1 <= most <= 8


def test_a_full_queue_is_a_429(live):
    live.manager.queue_full_after = 3
    response = embed(live, input=["a"] * 10)
    assert response.status_code == 429
    assert response.headers["Retry-After"]


def test_a_failure_is_an_error_and_no_number(live):
    live.manager.script = lambda _ids, _arguments: [RequestFailedError("x")]
    assert embed(live).status_code == 500


def test_a_cancelled_request_ends(live):
    live.manager.paused.set()
    answers = []
    headers = {"X-Request-Id": "mine"}
    body = {"input": ["a"] * 20}

    def ask():
        answers.append(live.http.post("/v1/embeddings", json=body, headers=headers))

    thread = threading.Thread(target=ask)
    thread.start()
    live.manager.wait_until(lambda: live.manager.num_active == 8)
    assert live.http.post("/v1/requests/mine/cancel").json()["num_cancelled"] == 1
    thread.join(10)
    assert answers[0].status_code == 499


def test_an_operator_can_turn_them_off():
    settings = Settings(model=ModelSettings(pooling="none"), server=ServerSettings(port=0))
    with run_live(settings=settings) as live:
        response = embed(live)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "unsupported_endpoint"


def test_a_long_list_takes_turns_in_half_of_the_places():
    def prepare(manager):
        object.__setattr__(manager.resolved_config, "max_queue_size", 4)

    with run_live(prepare=prepare) as live:
        live.manager.paused.set()
        answers = []

        def ask() -> None:
            answers.append(embed(live, input=["a"] * 30))

        def wait_for(num_active: int) -> None:
            live.manager.wait_until(lambda: live.manager.num_active == num_active)

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for num_active, thread in zip((2, 4), asking, strict=True):
            thread.start()
            wait_for(num_active)
        assert live.chat().status_code == 429
        assert embed(live).status_code == 429
        live.manager.paused.clear()
        for thread in asking:
            thread.join(10)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert [len(answer.json()["data"]) for answer in answers] == [30, 30]
        assert live.state.admission.num_preparing == 0
        assert live.chat().status_code == 200
