"""The Messages API over a scripted engine, through the official client and by itself."""

import json

import anthropic
import pytest

from engine import RequestFailedError
from server.settings import ModelSettings, ServerSettings, Settings
from tests.server.live import TEXT, run_live

MESSAGES = [{"role": "user", "content": "hello"}]
ORDER = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]


def create(live, **fields):
    body = {"messages": MESSAGES, "max_tokens": 100, **fields}
    return live.http.post("/v1/messages", json=body)


def events_of(text: str) -> list[dict]:
    found = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@pytest.fixture
def client(live):
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0) as made:
        yield made


def test_a_message_is_answered(client):
    answer = client.messages.create(model="tiny", messages=MESSAGES, max_tokens=100)
    assert answer.content[0].text == TEXT
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.output_tokens > 0


def test_the_clients_stream_helper_reads_the_events(client):
    with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=100) as stream:
        assert "".join(stream.text_stream) == TEXT
        final = stream.get_final_message()
    whole = client.messages.create(model="tiny", messages=MESSAGES, max_tokens=100)
    assert final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.stop_reason == "end_turn"


def test_the_events_come_in_order(live):
    events = events_of(create(live, stream=True).text)
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == ORDER
    assert kinds.count("content_block_delta") == len(kinds) - 5
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert {event["index"] for event in events if "index" in event} == {0}


def test_why_it_ended(live):
    assert create(live, max_tokens=3).json()["stop_reason"] == "max_tokens"
    stopped = create(live, stop_sequences=["three", "world"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "world")
    assert stopped["content"][0]["text"] == "hello "
    ending = events_of(create(live, stop_sequences=["world"], stream=True).text)[-2]
    assert ending["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "world"}


def test_it_is_the_chat_of_the_same_messages(live):
    text = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
    create(
        live,
        system=[{"type": "text", "text": "a"}],
        messages=[
            {"role": "user", "content": [text]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "c"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [text]},
                    {"type": "text", "text": "d"},
                ],
            },
        ],
    )
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    live.chat(
        messages=[
            {"role": "system", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c", "reasoning": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": "b"},
            {"role": "user", "content": "d"},
        ]
    )
    assert live.manager.added[0].input_ids == live.manager.added[1].input_ids


@pytest.mark.parametrize("content", ["no file", [{"type": "text", "text": "no file"}], None])
@pytest.mark.parametrize("is_error", [True, False])
def test_a_tool_that_failed_says_so(live, content, is_error):
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": is_error}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    create(live, messages=[*MESSAGES, *turns])
    called = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    text = ("Error: " if is_error else "") + ("no file" if content else "")
    live.chat(
        messages=[
            *MESSAGES,
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "t1", "content": text},
        ]
    )
    assert live.manager.added[0].input_ids == live.manager.added[1].input_ids


@pytest.mark.parametrize("begun", ["The answer is", "The answer is ", "\n\nSo  \n"])
def test_an_unfinished_turn_of_the_assistant_is_continued(live, begun):
    messages = [*MESSAGES, {"role": "assistant", "content": begun}]
    create(live, messages=messages)
    prompt = live.tokenizer.decode(live.manager.added[0].input_ids)
    assert prompt.endswith(f"<|im_start|>assistant\n{begun}")
    live.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert live.manager.added[0].input_ids == live.manager.added[1].input_ids


def test_counted_tokens_are_those_of_the_answer(client, live):
    fields = {"model": "tiny", "messages": MESSAGES, "system": "Be brief."}
    count = client.messages.count_tokens(**fields)
    answer = client.messages.create(max_tokens=10, **fields)
    assert count.input_tokens == answer.usage.input_tokens
    assert count.input_tokens == len(live.manager.added[0].input_ids)


def test_cached_tokens_are_apart_where_the_request_marks_a_cache(live):
    live.manager.num_cached_tokens = 4
    plain = create(live).json()["usage"]
    assert plain["cache_read_input_tokens"] == 0
    marked = create(live, cache_control={"type": "ephemeral"}).json()["usage"]
    assert marked["cache_read_input_tokens"] == 4
    assert marked["input_tokens"] == plain["input_tokens"] - 4


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 1}]}]},
            "messages.0.content.0.input",
        ),
        ({"messages": [{"role": "user", "content": "hello " * 500}]}, "messages"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 100}, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"container": "c"}, "container"),
    ],
)
def test_what_is_wrong_is_said_in_the_apis_own_form(live, fields, text):
    response = create(live, **fields)
    assert response.status_code == 400
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert text in body["error"]["message"]
    assert body["request_id"] == response.headers["X-Request-Id"]


def test_other_errors_have_the_form_too(live, client):
    assert create(live, model="nope").json()["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nope", messages=MESSAGES, max_tokens=1)
    response = live.http.get("/v1/messages")
    assert (response.status_code, response.headers["Allow"]) == (405, "OPTIONS, POST")
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert live.http.get("/v1/messages/batches").json()["error"]["type"] == "not_found_error"
    response = live.http.post("/messages", content=b"{")
    assert response.json()["error"]["type"] == "invalid_request_error"
    live.manager.queue_full_after = 0
    response = create(live)
    assert response.status_code == 429
    assert response.headers["Retry-After"]
    assert response.json()["error"]["type"] == "rate_limit_error"
    live.state.draining = True
    response = create(live)
    assert response.status_code == 529
    assert response.json()["error"]["type"] == "overloaded_error"
    assert live.http.get("/v1/nothing").json()["error"]["code"] == "not_found"


def test_a_body_that_is_too_large_is_said_in_the_form():
    settings = Settings(model=ModelSettings(), server=ServerSettings(port=0, max_body_bytes=1000))
    with run_live(settings=settings) as live:
        response = create(live, system="a" * 2000)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "request_too_large"


def test_a_failure_ends_a_stream_with_an_event(live, client):
    live.manager.script = lambda _ids, _arguments: [300, RequestFailedError("/secret")]
    response = create(live)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
    events = events_of(create(live, stream=True).text)
    assert events[-1]["type"] == "error"
    assert "secret" not in str(events)
    with (
        pytest.raises(anthropic.APIStatusError),
        client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=9) as stream,
    ):
        stream.get_final_message()


def test_leaving_frees_the_engine(live):
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    body = {"messages": MESSAGES, "max_tokens": 200, "stream": True}
    with live.http.stream("POST", "/v1/messages", json=body) as stream:
        next(stream.iter_lines())
    live.manager.wait_until(lambda: live.manager.num_active == 0)


def test_tools_of_the_apis_own_servers_are_left_out_and_reported(live):
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "summarized", "odd": 1}
    fields = {"tools": tools, "odd": 1, "thinking": thinking}
    counted = live.http.post("/v1/messages/count_tokens", json={"messages": MESSAGES, **fields})
    for response in (create(live, **fields), counted):
        assert response.status_code == 200
        ignored = "odd, thinking.odd, tools.0, thinking.budget_tokens, thinking.display"
        assert response.headers["X-Ignored-Params"] == ignored
