"""What holds of one route or one field holds of its siblings, with a real engine behind them."""

import json
from functools import partial
from typing import Any

import pytest

from tests.engine.threads import Call

LONG = "x" * 10_000
NULLS = """model temperature top_p top_k min_p repetition_penalty presence_penalty n stop seed
    frequency_penalty logit_bias stop_token_ids ignore_eos min_tokens stream stream_options echo
    max_tokens logprobs best_of suffix user prompt_logprobs response_format guided_json foo"""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": LONG}),
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("responses", {"input": LONG}),
        ("messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_a_400(server, path, body, stream):
    refused = server.http.post(f"/v1/{path}", json={"model": "tiny", "stream": stream, **body})
    assert refused.status_code == 400
    assert "512" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", NULLS.split())
def test_null_is_absent_from_a_completion(server, name):
    null = server.complete("hi", **{"max_tokens": 2, name: None})
    assert null.status_code == 200
    if name == "max_tokens":
        assert null.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_all_spellings_of_no_text_are_one_prompt(server, content):
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    body["messages"] = [{"role": "user", "content": ""}]
    same = server.http.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "hi"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
@pytest.mark.parametrize(("max_tokens", "reason"), [(5, "stop"), (4, "length"), (6, "stop")])
def test_the_closing_token_may_be_the_last_one(server, path, body, max_tokens, reason):
    closes = {"logit_bias": {str(server.tokenizer.eos_token_id): 100}, "min_tokens": 4}
    body = {**body, **closes, "max_tokens": max_tokens}
    answer = server.http.post(f"/v1/{path}", json=body).json()
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"]["completion_tokens"] == min(max_tokens, 5)


def test_greedy_choices_are_equal(server):
    answer = server.complete("draw", n=3, temperature=0, max_tokens=6).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 3
    assert len(set(texts)) == 1


def test_a_bias_bans_and_forces_a_token(server):
    def tokens(**fields: Any) -> list[int]:
        answer = server.complete("draw", max_tokens=6, return_token_ids=True, **fields).json()
        ids: list[int] = answer["choices"][0]["token_ids"]
        return ids

    first = tokens()[0]
    assert first not in tokens(logit_bias={str(first): -100})
    assert tokens(logit_bias={"70": 100}) == [70] * 6


@pytest.mark.parametrize("asked", [{"logprobs": 20}, {"logprobs": 20, "echo": True}])
def test_very_unlikely_tokens_have_numbers_that_json_has(server, asked):
    bans = {str(token): -100 for token in range(3, 200)}
    answer = server.complete("draw", max_tokens=3, logit_bias=bans, **asked)
    assert answer.status_code == 200
    assert json.loads(answer.text, parse_constant=pytest.fail)["choices"][0]["logprobs"]


@pytest.mark.parametrize("prompt", [" naïve", "  two blanks é", "東京 🦙", "a\tb\n"])
def test_echoed_tokens_join_to_the_echoed_text(server, prompt):
    """A token that is part of a character has no text of its own; what it is joined to has."""
    fields = {"max_tokens": 1, "logprobs": 0, "echo": True}
    choice = server.complete(prompt, **fields, return_token_ids=True).json()["choices"][0]
    assert choice["text"].startswith(prompt)
    count = len(choice["logprobs"]["tokens"])
    assert count == len(choice["prompt_token_ids"]) + len(choice["token_ids"])
    if prompt.isascii():
        assert "".join(choice["logprobs"]["tokens"]).startswith(prompt)


def test_ids_of_answers_at_one_moment_differ(server):
    asked = [Call(partial(server.complete, "id", max_tokens=2)) for _ in range(20)]
    assert len({call.outcome().json()["id"] for call in asked}) == 20
