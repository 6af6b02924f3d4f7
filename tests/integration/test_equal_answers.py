"""One question, one answer: streamed or whole, alone or in a crowd, with the same seed."""

import json
from functools import partial
from itertools import product
from typing import Any

import pytest

from tests.engine.threads import Call
from tests.integration.engine_server import joined_texts

# Repeated characters of a byte tokenizer, some of them several tokens long.
PROMPTS = ["a", "naïve 🌊🌊 wave", [70, 71, 72], "the same beginning " * 8]
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "seed": 11},
    "choices": {"temperature": 1.0, "seed": 3, "n": 3},
    "stop": {"temperature": 1.0, "seed": 4, "stop": ["e", "a", "\n", "é"]},
    "logprobs": {"temperature": 0, "logprobs": 3},
    "echo": {"temperature": 0, "echo": True},
    "stop tokens": {"temperature": 1.0, "seed": 5, "stop_token_ids": list(range(60, 90))},
    "stop tokens behind held text": {
        "temperature": 1.0,
        "seed": 6,
        "stop_token_ids": list(range(60, 90)),
        "stop": ["a text that is never written"],
    },
}
DRAW = [{"role": "user", "content": "draw"}]
SAMPLED = {"temperature": 1.0, "max_tokens": 32, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}


@pytest.mark.parametrize(("prompt", "options"), [*product(PROMPTS, OPTIONS)])
def test_joined_pieces_equal_the_whole(server, prompt, options):
    body = {"max_tokens": 40, **OPTIONS[options]}
    whole = server.complete(prompt, **body).json()
    include = {"include_usage": True}
    answer = server.complete(prompt, **body, stream=True, stream_options=include)
    *frames, usage, done = [event[6:] for event in answer.text.split("\n\n") if event]
    assert joined_texts([*frames, done]) == {
        choice["index"]: choice["text"] for choice in whole["choices"]
    }
    pieces = [choice for frame in frames for choice in json.loads(frame)["choices"]]
    for choice in whole["choices"]:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        if choice.get("logprobs"):
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [item for piece in own for item in piece["logprobs"][name]]
                assert joined == choice["logprobs"][name]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    streamed_usage = json.loads(usage)["usage"]
    assert [streamed_usage[name] for name in counts] == [whole["usage"][name] for name in counts]


def test_a_seed_names_one_answer_wherever_it_runs(server):
    text = server.text("draw", seed=7, **SAMPLED)
    assert server.text("draw", seed=7, **SAMPLED) == text
    assert server.text("draw", seed=8, **SAMPLED) != text
    neighbours = [
        Call(partial(server.text, f"{number} neighbour" * number, seed=number, **SAMPLED))
        for number in range(4)
    ]
    unseeded = [Call(partial(server.text, "draw", **SAMPLED)) for _ in range(4)]
    again = Call(partial(server.text, "draw", seed=7, **SAMPLED))
    assert again.outcome() == text
    assert len({call.outcome() for call in (*neighbours, *unseeded)} | {text}) == 9


def test_choices_differ_and_a_seed_names_all_of_them(server):
    def choices(**fields: Any) -> list[str]:
        answer = server.complete("draw", n=4, **SAMPLED, **fields)
        return [choice["text"] for choice in answer.json()["choices"]]

    first = choices(seed=7)
    assert len(set(first)) == 4
    assert choices(seed=7) == first
    assert choices(seed=8) != first
    assert choices() != choices()


@pytest.mark.parametrize("fields", [{"prompt": "draw"}, {"messages": DRAW}], ids=["text", "chat"])
def test_a_top_k_that_keeps_every_token_changes_nothing(server, fields):
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"

    def texts(**top_k: Any) -> list[str]:
        body = {**fields, "temperature": 1.5, "n": 10, "max_tokens": 12, **top_k}
        choices = server.http.post(path, json=body).json()["choices"]
        return [choice.get("text") or choice["message"]["content"] for choice in choices]

    drawn = texts(seed=1)
    assert len(set(drawn)) == 10
    assert len(set(texts())) == 10, "without a seed"
    for top_k in (0, -1, None, 10**6):
        assert texts(seed=1, top_k=top_k) == drawn
    assert len(set(texts(seed=1, top_k=1))) == 1
    assert texts(seed=1, top_k=2) != drawn


def ragged(count: int) -> list[str]:
    return [f"{number} " + "word " * (number * 7 % 50) for number in range(count)]


def test_greedy_answers_alone_and_in_a_crowd(server):
    alone = [server.text(prompt, **GREEDY) for prompt in ragged(16)]
    calls = [Call(partial(server.text, prompt, **GREEDY)) for prompt in ragged(16)]
    assert [call.outcome() for call in calls] == alone
