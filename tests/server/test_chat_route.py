"""POST /v1/chat/completions over a live server, whole and streamed."""

import json

import pytest

from tests.server.live import TEXT, LiveServer


def events(text: str) -> list[dict]:
    """Parse a stream; its frames are data lines alone and [DONE] is the last."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def stream(live: LiveServer, **fields) -> list[dict]:
    response = live.chat(stream=True, **fields)
    assert response.status_code == 200, response.text
    return events(response.text)


def content(chunks: list[dict], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["delta"].get("content") or "" for c in choices if c["index"] == index)


def arguments(live: LiveServer, **fields) -> dict:
    """What the engine was asked for."""
    response = live.chat(**fields)
    assert response.status_code == 200, response.text
    return live.manager.added[-1].arguments


def test_a_whole_answer_has_the_keys_of_the_contract(live):
    body = live.chat().json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["system_fingerprint"].startswith("fp_")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(live):
    chunks = stream(live, stream_options={"include_usage": True})
    first, *middle, finish, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    for chunk in chunks[:-1]:
        assert set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert usage["usage"] == live.chat().json()["usage"]


def test_usage_is_absent_from_a_stream_that_did_not_ask(live):
    assert all("usage" not in chunk for chunk in stream(live))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 5},
        {"stop": ["three"]},
        {"stop": "e t", "include_stop_str_in_output": True},
        {"n": 3},
        {"skip_special_tokens": False},
        {"logprobs": True, "top_logprobs": 2},
        {"logprobs": True, "stop": ["a text that never comes"]},
    ],
)
def test_joined_chunks_are_the_whole_answer(live, fields):
    whole = live.chat(**fields).json()
    chunks = stream(live, stream_options={"include_usage": True}, **fields)
    for choice in whole["choices"]:
        index = choice["index"]
        assert content(chunks, index) == choice["message"]["content"]
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        ends = [c["finish_reason"] for c in mine if c["finish_reason"] is not None]
        assert ends == [choice["finish_reason"]]
        entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert entries == ((choice["logprobs"] or {}).get("content") or [])
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("tokens_per_output", [1, 3])
def test_continuous_usage_rises_by_the_tokens_of_each_chunk(live, n, tokens_per_output):
    live.manager.tokens_per_output = tokens_per_output
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"max_tokens": 10, "return_token_ids": True, "n": n}
    chunks = stream(live, stream_options=options, **fields)
    count = 0
    for chunk in chunks:
        count += sum(len(choice.get("token_ids", ())) for choice in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == count
    assert count == 10 * n
    assert chunks[-1]["usage"] == live.chat(**fields).json()["usage"]


def test_eos_on_the_last_allowed_token_is_stop(live):
    tokens = len(live.tokenizer.encode(TEXT, add_special_tokens=False)) + 1
    exact = live.chat(max_tokens=tokens).json()
    assert exact["choices"][0]["finish_reason"] == "stop"
    assert exact["usage"]["completion_tokens"] == tokens
    assert live.chat(max_tokens=tokens - 1).json()["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_engines_request(live):
    live.manager.step_seconds = 0.01
    body = live.chat(stop=["world"]).json()
    assert body["choices"][0]["message"]["content"] == "hello "
    assert body["choices"][0]["stop_reason"] == "world"
    assert len(live.manager.cancelled) == 1


def test_a_finished_answer_cancels_nothing(live):
    live.chat()
    stream(live)
    assert live.manager.cancelled == []


def test_logprobs_have_true_bytes_and_the_most_likely_first(live):
    live.says("🦙")
    entries = live.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    spelled = [byte for entry in entries[:-1] for byte in entry["bytes"]]
    assert bytes(spelled).decode() == "🦙"
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
def test_logprobs_alone_have_empty_alternatives(live, fields):
    entries = live.chat(logprobs=True, **fields).json()["choices"][0]["logprobs"]["content"]
    chunks = [c for chunk in stream(live, logprobs=True, **fields) for c in chunk["choices"]]
    assert entries == [e for c in chunks if c["logprobs"] for e in c["logprobs"]["content"]]
    assert "".join(entry["token"] for entry in entries) == f"{TEXT}<|im_end|>"
    assert all(entry["top_logprobs"] == [] for entry in entries)


def test_choices_draw_from_seed_plus_k(live):
    live.chat(n=3, seed=7)
    assert [request.arguments["seed"] for request in live.manager.added] == [7, 8, 9]
    ids = {request.request_id for request in live.manager.added}
    assert len(ids) == 3


def test_prompt_tokens_are_counted_once_for_all_choices(live):
    one, three = live.chat().json()["usage"], live.chat(n=3).json()["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]


def test_cached_tokens_are_reported(live):
    live.manager.num_cached_tokens = 4
    assert live.chat().json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_return_token_ids(live):
    body = live.chat(return_token_ids=True).json()
    assert body["choices"][0]["token_ids"][-1] == live.tokenizer.eos_token_id
    assert body["prompt_token_ids"] == live.manager.added[-1].input_ids
    chunks = stream(live, return_token_ids=True)
    streamed = [t for chunk in chunks for c in chunk["choices"] for t in c.get("token_ids", [])]
    assert streamed == body["choices"][0]["token_ids"]
    assert chunks[0]["prompt_token_ids"] == body["prompt_token_ids"]


def test_sampling_fields_reach_the_engine(live):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
        "stop_token_ids": [9],
        "ignore_eos": True,
    }
    asked = arguments(live, logit_bias={"7": -100}, min_tokens=2, max_tokens=3, **fields)
    assert {name: asked[name] for name in fields} == fields
    assert asked["logit_bias"] == {7: -100.0}
    assert (asked["min_new_tokens"], asked["max_new_tokens"]) == (2, 3)


def test_null_is_absent_for_every_field(live):
    names = [
        "model temperature top_p top_k min_p repetition_penalty presence_penalty n stop seed",
        "frequency_penalty logit_bias stop_token_ids ignore_eos min_tokens stream stream_options",
        "max_tokens max_completion_tokens logprobs top_logprobs tools tool_choice response_format",
        "user metadata chat_template_kwargs reasoning_effort continue_final_message foo",
    ]
    fields = dict.fromkeys(" ".join(names).split())
    assert arguments(live, **fields) == arguments(live)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({"top_k": -1}, {"top_k": 0}), ({"top_p": 0}, {"temperature": 0.0}), ({}, {"temperature": 1})],
)
def test_special_values_are_translated(live, fields, asked):
    got = arguments(live, **fields)
    assert {name: got[name] for name in asked} == asked


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": -1}, "rest"),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 3}, 3),
        ({}, None),
    ],
)
def test_the_longest_answer(live, fields, expected):
    asked = arguments(live, **fields)["max_new_tokens"]
    rest = 256 - len(live.manager.added[-1].input_ids)
    assert asked == (rest if expected == "rest" else expected)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": list("abcdefghijklmnopq")}, "stop"),
        ({"stream_options": {}}, "stream_options"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"seed": 2**63}, "seed"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_bad_value_is_a_400_that_names_it(live, fields, param, streamed):
    response = live.chat(**fields, stream=streamed and "stream_options" not in fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert live.manager.added == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"logit_bias": {}},
        {"parallel_tool_calls": True},
        {"n": 2, "temperature": 0},
        {"modalities": ["text"]},
    ],
)
def test_a_value_that_asks_for_nothing_passes(live, fields):
    assert live.chat(**fields).status_code == 200


def test_unknown_fields_are_ignored_and_reported(live):
    response = live.chat(foo=1, user="u", **{"bad\r\nname": 1})
    assert response.status_code == 200
    assert response.headers["X-Ignored-Params"] == "foo, user"
    assert "X-Ignored-Params" not in live.chat().headers
    assert live.chat(stream=True, foo=1).headers["X-Ignored-Params"] == "foo"


def test_service_tier_is_echoed(live):
    assert live.chat(service_tier="auto").json()["service_tier"] == "auto"
    assert "service_tier" not in live.chat().json()


def test_a_long_prompt_is_a_400_with_both_numbers(live):
    response = live.chat(messages=[{"role": "user", "content": "hello " * 300}])
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "256" in error["message"]


def test_a_long_answer_is_a_400_that_names_max_tokens(live):
    response = live.chat(max_tokens=10**9)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert all(word in error["message"] for word in ("256", str(10**9), "max_tokens"))


def test_both_names_are_served_and_echoed(live):
    assert live.chat(model="org/tiny").json()["model"] == "org/tiny"
    assert stream(live, model="org/tiny")[0]["model"] == "org/tiny"


def test_an_unknown_model_is_a_404_that_lists_the_names(live):
    response = live.chat(model="nope")
    error = response.json()["error"]
    assert response.status_code == 404
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]
    assert "org/tiny" in error["message"]


def test_a_template_error_is_a_400_with_the_templates_words(live):
    messages = [{"role": "tool", "content": "x"}]
    response = live.chat(messages=messages)
    assert response.status_code == 400
    assert "tool messages need a tool_call_id" in response.json()["error"]["message"]


@pytest.mark.parametrize("bad", [b'{"temperature": NaN}', b"{", b'{"messages": "\\ud800"}', b"[1]"])
def test_bad_json_is_a_400_and_the_server_lives_on(live, bad):
    response = live.http.post("/v1/chat/completions", content=bad)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert live.chat().status_code == 200


def test_the_content_type_does_not_matter(live):
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert live.http.post("/v1/chat/completions", content=body).status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_prompt_logprobs_stand_beside_the_choices(live, streamed):
    fields = {"prompt_logprobs": 1, "max_tokens": 2, "n": 2}
    objects = stream(live, **fields) if streamed else [live.chat(**fields).json()]
    reported = objects[0]["prompt_logprobs"]
    assert len(reported) == len(live.manager.added[0].input_ids)
    assert reported[0] is None
    assert all(entry for entry in reported[1:])
    assert all("prompt_logprobs" not in one for one in objects[1:])


def test_a_truncated_chat_keeps_its_end(live):
    body = live.chat(truncate_prompt_tokens=3, max_tokens=1).json()
    assert body["usage"]["prompt_tokens"] == len(live.manager.added[0].input_ids) == 3


def test_tokens_are_named_by_ids_if_asked(live):
    body = live.chat(logprobs=True, return_tokens_as_token_ids=True, max_tokens=1).json()
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert entry["token"].startswith("token_id:")
