"""Calls of the default model, whose template knows no tools."""

import json

import httpx
import openai
from pydantic import BaseModel

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Weather(BaseModel):
    """Tells the weather."""

    warm: bool


def test_a_required_call_comes_valid_whole_and_streamed(client, default_server):
    fields = {
        "model": default_server.model,
        "messages": ASK,
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    choice = client.chat.completions.create(**fields).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == call.function.arguments


def test_a_conversation_goes_on_after_a_call(client, default_server):
    first = client.chat.completions.create(
        model=default_server.model, messages=ASK, tools=[WEATHER], tool_choice=NAMED, temperature=1
    )
    assert first.choices[0].finish_reason == "stop"
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It rains."}
    second = client.chat.completions.create(
        model=default_server.model,
        messages=[*ASK, message.model_dump(exclude_none=True), result],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=8,
    )
    assert second.choices[0].message.content


def test_the_clients_own_parsing_works(client, default_server):
    answer = client.chat.completions.parse(
        model=default_server.model,
        messages=ASK,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_free_answer_with_tools_is_a_whole_answer(default_server):
    body = {"messages": ASK, "tools": [WEATHER], "max_tokens": 16, "temperature": 0}
    answer = httpx.post(f"{default_server.url}/v1/chat/completions", json=body, timeout=60).json()
    message = answer["choices"][0]["message"]
    assert message["content"] is not None or message["tool_calls"]
