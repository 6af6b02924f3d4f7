"""Tools and reasoning over the routes that are made of chats: Responses and Messages."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.server.fakes import make_byte_level_tokenizer
from tests.server.live import run_live
from tests.server.responses import create, events_of
from tests.server.test_reasoning import SPEAKS
from tests.server.test_tools import CALL, CALLS, TOOLS

DESCRIBED: list[Any] = [tool["function"] for tool in TOOLS]
FUNCTIONS: list[Any] = [{"type": "function", **function} for function in DESCRIBED]
CUSTOM: list[Any] = [
    {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }
    for function in DESCRIBED
]
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def shared_live():
    with run_live(max_model_tokens=4096) as server:
        yield server


@pytest.fixture
def responses(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as made:
        yield made.responses


@pytest.fixture
def messages(live):
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0) as made:
        yield made.messages


def test_a_response_has_its_calls_as_items(live, responses):
    live.says(CALLS)
    whole = responses.create(model="tiny", input="hello", tools=FUNCTIONS)
    text, *calls = whole.output
    assert text.content[0].text.strip() == "Let me see."
    found = [(call.name, json.loads(call.arguments)) for call in calls]
    assert found == [("first", {"a": 1}), ("second", {})]
    assert len({call.call_id for call in calls}) == 2
    assert whole.status == "completed"
    with responses.stream(model="tiny", input="hello", tools=FUNCTIONS) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds.count("response.function_call_arguments.done") == 2
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert [(i.name, i.arguments) for i in final.output[1:]] == [
        (i.name, i.arguments) for i in calls
    ]
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert deltas == "".join(call.arguments for call in calls)


def test_a_responses_calls_and_their_results_go_on(live, responses):
    live.says(CALL)
    first = responses.create(model="tiny", input="hello", tools=FUNCTIONS, tool_choice="required")
    [call] = first.output
    live.says("done")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    second = responses.create(
        model="tiny", input=[result], previous_response_id=first.id, tools=FUNCTIONS
    )
    assert second.output_text == "done"
    prompt = live.tokenizer.decode(live.manager.added[-1].input_ids)
    assert "first" in prompt.split("hello")[1]
    assert "4" in prompt.split("first")[-1]


def test_a_choice_of_tools_reaches_the_chat(live, responses, messages):
    live.says(CALL)
    choice = {"type": "function", "name": "first"}
    responses.create(model="tiny", input="hello", tools=FUNCTIONS, tool_choice=choice)
    chosen = {"type": "tool", "name": "first"}
    messages.create(
        model="tiny", messages=MESSAGES, max_tokens=200, tools=CUSTOM, tool_choice=chosen
    )
    assert all(request.arguments["grammar"] is not None for request in live.manager.added)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    responses.create(model="tiny", input="hello", tools=FUNCTIONS, tool_choice=allowed)
    for body, param in (
        ({"tool_choice": {"type": "function", "name": "nothing"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ):
        response = live.http.post("/v1/responses", json={"input": "a", "tools": FUNCTIONS, **body})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(param)


def test_a_message_has_its_calls_as_blocks(live, messages):
    live.says(CALLS)
    whole = messages.create(model="tiny", messages=MESSAGES, max_tokens=200, tools=CUSTOM)
    assert whole.stop_reason == "tool_use"
    text, *calls = whole.content
    assert text.text.strip() == "Let me see."
    assert [(call.name, call.input) for call in calls] == [("first", {"a": 1}), ("second", {})]
    with messages.stream(model="tiny", messages=MESSAGES, max_tokens=200, tools=CUSTOM) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [(b.name, b.input) for b in final.content[1:]] == [(b.name, b.input) for b in calls]


def test_counted_tokens_include_tools_and_system(messages):
    fields = {"model": "tiny", "messages": MESSAGES, "system": "Be brief."}
    without = messages.count_tokens(**fields).input_tokens
    counted = messages.count_tokens(**fields, tools=CUSTOM).input_tokens
    answer = messages.create(**fields, tools=CUSTOM, max_tokens=8)
    assert without < counted == answer.usage.input_tokens


def test_a_named_tool_of_a_message_is_a_use_of_it(live, messages):
    live.says(CALL)
    chosen = {"type": "tool", "name": "first", "disable_parallel_tool_use": True}
    whole = messages.create(
        model="tiny", messages=MESSAGES, max_tokens=200, tools=CUSTOM, tool_choice=chosen
    )
    assert whole.stop_reason == "tool_use"
    assert [block.type for block in whole.content] == ["tool_use"]


@pytest.fixture(scope="module")
def thinker():
    with run_live(tokenizer=make_byte_level_tokenizer(SPEAKS)) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_a_responses_reasoning_is_an_item(thinker, stream):
    thinker.says("<think>Hm.</think>Yes.")
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="x", max_retries=0) as client:
        if stream:
            with client.responses.stream(model="tiny", input="hello") as events:
                whole: Any = events.get_final_response()
        else:
            whole = client.responses.create(model="tiny", input="hello")
    thought, said = whole.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Hm.")
    assert said.content[0].text == "Yes."
    assert whole.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_messages_reasoning_is_a_block(thinker, stream):
    thinker.says("<think>Hm.</think>Yes.")
    fields: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 100}
    with anthropic.Anthropic(base_url=thinker.url, api_key="x", max_retries=0) as client:
        if stream:
            with client.messages.stream(**fields) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**fields)
    thinking, text = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Hm.")
    assert text.text == "Yes."


@pytest.mark.parametrize("tokens_per_output", [1, 3, 400])
def test_logprobs_of_a_response_are_those_of_its_text_however_they_arrive(live, tokens_per_output):
    live.says(f"So: {CALL} Done.")
    live.manager.tokens_per_output = tokens_per_output
    fields = {"tools": FUNCTIONS, "include": ["message.output_text.logprobs"]}
    events = events_of(create(live, stream=True, **fields).text)
    before, call, after = events[-1]["response"]["output"]
    assert call["type"] == "function_call"
    # What stands before the arguments of a call goes with it, what ends it with what follows.
    for message, text in ((before, "So:"), (after, "}\n</tool_call> Done.<|im_end|>")):
        (part,) = message["content"]
        assert "".join(entry["token"] for entry in part["logprobs"]) == text
    said = "".join(one["delta"] for one in events if one["type"].endswith("text.delta"))
    assert said == "So: Done."


def test_a_single_call_ends_the_answer_at_the_same_token_everywhere(live, responses, messages):
    live.says(CALLS + " and on" * 40)
    chat = live.chat(tools=TOOLS, parallel_tool_calls=False).json()
    count = chat["usage"]["completion_tokens"]
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    made: Any = {"model": "tiny", "messages": MESSAGES, "tools": CUSTOM, "max_tokens": 400}
    asked: Any = {"model": "tiny", "input": "hello", "tools": FUNCTIONS}
    for tokens_per_output in (1, 3, 1000):
        live.manager.tokens_per_output = tokens_per_output
        response = responses.create(**asked, parallel_tool_calls=False)
        assert response.usage.output_tokens == count
        with responses.stream(**asked, parallel_tool_calls=False) as stream:
            assert stream.get_final_response().usage.output_tokens == count
        message = messages.create(**made, tool_choice=choice)
        assert (message.usage.output_tokens, message.stop_reason) == (count, "tool_use")
        with messages.stream(**made, tool_choice=choice) as stream:
            assert stream.get_final_message().usage.output_tokens == count
    live.manager.wait_until(lambda: live.manager.num_active == 0)
