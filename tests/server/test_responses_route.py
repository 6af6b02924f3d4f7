"""The Responses API over a scripted engine."""

import json
import threading

import openai
import pytest

from engine import RequestFailedError
from tests.server.live import TEXT
from tests.server.responses import create, events_of, wait_for_status

ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_a_text_is_answered_by_a_message(live, client):
    answer = client.responses.create(model="tiny", input="hello", temperature=0, user="u")
    assert answer.output_text == TEXT
    assert (answer.object, answer.status, answer.error) == ("response", "completed", None)
    assert answer.usage.input_tokens == len(live.manager.added[0].input_ids)
    assert answer.usage.output_tokens == len(live.tokenizer.encode(TEXT)) + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens_details.cached_tokens == 0
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert (answer.temperature, answer.user, answer.tools) == (0, "u", [])


def test_it_is_the_chat_of_the_same_messages(live, client):
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": "b"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "d"},
        {"role": "user", "content": "e"},
    ]
    client.responses.create(model="tiny", input=items, instructions="Be brief.")
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    live.chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "d"},
            {"role": "user", "content": "e"},
        ]
    )
    first, second = live.manager.added
    assert first.input_ids == second.input_ids


def test_the_events_come_in_order_and_are_numbered(live):
    events = events_of(create(live, stream=True).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == ORDER
    assert [kind for kind in kinds if kind != ORDER[4]] == ORDER[:4] + ORDER[5:]
    deltas = "".join(event["delta"] for event in events if event["type"] == ORDER[4])
    whole = create(live).json()
    assert deltas == events[-4]["text"] == whole["output"][0]["content"][0]["text"] == TEXT
    assert events[-1]["response"]["usage"] == whole["usage"]
    assert events[-1]["response"].keys() == whole.keys()
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    items = {event["item_id"] for event in events if "item_id" in event}
    assert items == {events[-1]["response"]["output"][0]["id"]}


def test_the_clients_stream_helper_reads_them(client):
    with client.responses.stream(model="tiny", input="hello") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == TEXT


def test_an_answer_that_is_cut_is_incomplete(live):
    whole = create(live, max_output_tokens=3).json()
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["status"] == "incomplete"
    assert whole["usage"]["output_tokens"] == 3
    events = events_of(create(live, max_output_tokens=3, stream=True).text)
    assert events[-1]["type"] == "response.incomplete"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("count", [2, 0, None])
def test_logprobs_come_where_they_are_included(live, count):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": count}
    whole = create(live, **fields).json()
    entries = whole["output"][0]["content"][0]["logprobs"]
    assert len(entries) == whole["usage"]["output_tokens"], "the closing token's, too"
    assert {len(entry["top_logprobs"]) for entry in entries} == {count or 0}
    events = events_of(create(live, stream=True, **fields).text)
    streamed = [e for event in events for e in event.get("logprobs", ()) if "delta" in event]
    assert streamed == entries


def test_a_conversation_goes_on_from_a_stored_response(live, client):
    first = client.responses.create(model="tiny", input="hello", instructions="Be brief.")
    second = client.responses.create(model="tiny", input="and now?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    live.chat(
        messages=[
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": TEXT},
            {"role": "user", "content": "and now?"},
        ]
    )
    assert live.manager.added[1].input_ids == live.manager.added[2].input_ids
    items = client.responses.input_items.list(second.id, order="asc")
    assert [item.content[0].text for item in items] == ["hello", TEXT, "and now?"]
    reference = {"type": "item_reference", "id": first.output[0].id}
    client.responses.create(model="tiny", input=[reference, {"role": "user", "content": "x"}])


def test_stored_responses_are_read_and_deleted(live, client):
    made = client.responses.create(model="tiny", input="hello", metadata={"a": "b"})
    assert client.responses.retrieve(made.id) == made
    client.responses.delete(made.id)
    for call in (
        lambda: client.responses.retrieve(made.id),
        lambda: client.responses.delete(made.id),
        lambda: client.responses.cancel(made.id),
        lambda: client.responses.create(model="tiny", input="x", previous_response_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            call()
        assert missing.value.code == "response_not_found"


def test_input_items_come_in_pages(live):
    items = [{"role": "user", "content": str(n)} for n in range(5)]
    made = create(live, input=items).json()
    path = f"/v1/responses/{made['id']}/input_items"
    page = live.http.get(path, params={"limit": 2, "order": "asc"}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["0", "1"]
    assert page["has_more"] is True
    rest = live.http.get(path, params={"after": page["last_id"], "order": "asc"}).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "3", "4"]
    assert rest["has_more"] is False
    for params in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}):
        response = live.http.get(path, params=params)
        assert response.status_code == 400
        assert response.json()["error"]["param"] in params


def test_what_is_not_to_be_stored_is_not(live):
    made = create(live, store=False).json()
    assert made["store"] is False
    assert live.http.get(f"/v1/responses/{made['id']}").status_code == 404


def test_a_background_response_goes_on_without_its_client(live):
    live.manager.paused.set()
    made = create(live, background=True).json()
    assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
    wait_for_status(live, made["id"], "in_progress")
    live.manager.paused.clear()
    done = wait_for_status(live, made["id"], "completed")
    assert done["output"][0]["content"][0]["text"] == TEXT


def test_a_background_stream_is_resumed_where_it_was_left(live):
    live.manager.step_seconds = 0.005
    with live.http.stream(
        "POST", "/v1/responses", json={"input": "a", "background": True, "stream": True}
    ) as response:
        seen = []
        for line in response.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
            if len(seen) == 6:
                break
    response_id = seen[0]["response"]["id"]
    assert [event["type"] for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    path = f"/v1/responses/{response_id}"
    rest = events_of(live.http.get(path, params={"stream": "true", "starting_after": 5}).text)
    numbers = [event["sequence_number"] for event in seen + rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1]["type"] == "response.completed"
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == TEXT
    assert events_of(live.http.get(path, params={"stream": "true"}).text) == seen + rest


def test_a_foreground_response_ends_with_its_client(live):
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    with live.http.stream("POST", "/v1/responses", json={"input": "a", "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        made = json.loads(next(lines)[6:])["response"]
    live.manager.wait_until(lambda: live.manager.num_active == 0)
    wait_for_status(live, made["id"], "cancelled")


@pytest.mark.parametrize("way", ["cancel", "delete", "by its id"])
def test_a_running_response_is_cancelled(live, way):
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    made = create(live, background=True).json()
    path = f"/v1/responses/{made['id']}"
    if way == "cancel":
        answers = [live.http.post(f"{path}/cancel").json() for _ in range(2)]
        assert [answer["status"] for answer in answers] == ["cancelled"] * 2
    elif way == "delete":
        live.http.delete(path)
        assert live.http.get(path).status_code == 404
    else:
        live.http.post(f"/v1/requests/{made['id']}/cancel")
        wait_for_status(live, made["id"], "cancelled")
    live.manager.wait_until(lambda: live.manager.num_active == 0)


def test_a_whole_response_that_is_cancelled_is_an_error_to_its_client(live):
    live.manager.paused.set()
    answers = []

    def ask():
        headers = {"X-Request-Id": "mine"}
        answers.append(live.http.post("/v1/responses", json={"input": "a"}, headers=headers))

    thread = threading.Thread(target=ask)
    thread.start()
    live.manager.wait_until(lambda: live.manager.num_active == 1)
    live.http.post("/v1/requests/mine/cancel")
    thread.join(10)
    assert answers[0].status_code == 499


def test_a_failure_is_an_event_in_a_stream_and_a_status_otherwise(live):
    live.manager.script = lambda _ids, _arguments: [300, RequestFailedError("/secret")]
    assert create(live).status_code == 500
    events = events_of(create(live, stream=True).text)
    assert events[-1]["type"] == "response.failed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["error"]["code"] == "request_failed"
    assert "secret" not in str(events)
    made = create(live, background=True).json()
    assert wait_for_status(live, made["id"], "failed")["error"]["code"] == "request_failed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": [{"role": "nobody", "content": "a"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input.0.output"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input.0.name"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.id"),
        ({"input": "hello " * 500}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "input"),
        ({"temperature": 3}, "temperature"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"include": ["everything"]}, "include.0"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
    ],
)
def test_what_is_wrong_is_named_as_the_client_knows_it(live, fields, param):
    response = create(live, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"] or "").startswith(param or "input.0.content")
    assert "messages" not in error["message"]
    assert "max_completion" not in error["message"]


def test_a_format_is_followed_and_a_bad_one_is_named(live):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    whole = create(live, text={"format": form}).json()
    assert whole["text"]["format"] == form
    assert live.manager.added[0].arguments["grammar"] is not None
    response = create(live, text={"format": {**form, "schema": {"type": "banana"}}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "text.format.schema"


def test_tools_of_the_apis_own_servers_are_left_out_and_reported(live):
    more = {"reasoning": {"summary": "auto", "odd": 1}, "text": {"verbosity": "low"}}
    fields = {"tools": [{"type": "web_search"}], "tool_choice": "auto", "odd": 1, **more}
    counted = live.http.post("/v1/responses/input_tokens", json={"input": "Hello", **fields})
    for response in (create(live, **fields), counted):
        assert response.status_code == 200
        ignored = "odd, reasoning.odd, tools.0, reasoning.summary, text.verbosity"
        assert response.headers["X-Ignored-Params"] == ignored


def test_counted_input_is_what_the_answer_counts(live):
    body = {"input": "hello", "instructions": "Be brief."}
    count = live.http.post("/v1/responses/input_tokens", json=body).json()
    assert count["object"] == "response.input_tokens"
    assert count["input_tokens"] == create(live, **body).json()["usage"]["input_tokens"]
