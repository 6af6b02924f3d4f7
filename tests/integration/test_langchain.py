"""LangChain's OpenAI classes against a live server, over both APIs that they speak."""

from typing import Any, Literal

import httpx
import langchain_openai
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

MESSAGES = [SystemMessage("You count."), HumanMessage("one, two 🦙")]


class City(BaseModel):
    """A city and what is known of it."""

    name: str = Field(max_length=8)
    size: Literal["small", "large"]
    is_old: bool


@tool
def find_city(size: Literal["small", "large"], is_old: bool) -> str:
    """Finds a city."""
    return f"{size} {is_old}"


def make_chat(server: Any, **fields: Any) -> langchain_openai.ChatOpenAI:
    known: dict[str, Any] = {
        "base_url": f"{server.url}/v1",
        "api_key": "none",
        "model": server.model,
        "temperature": 0,
        "max_tokens": 12,
        "stream_usage": True,
    }
    return langchain_openai.ChatOpenAI(**known, **fields)


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def uses_responses(request) -> bool:
    """Whether LangChain speaks the Responses API instead of chat completions."""
    return bool(request.param)


@pytest.fixture
def chat(default_server, uses_responses) -> langchain_openai.ChatOpenAI:
    return make_chat(default_server, use_responses_api=uses_responses)


def text_of(message: AIMessage) -> str:
    return str(message.text)


def joined(chunks: list[Any]) -> Any:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def test_a_stream_adds_up_to_the_answer(chat):
    answer = chat.invoke(MESSAGES)
    assert text_of(answer)
    assert answer.usage_metadata["output_tokens"] == 12
    assert answer.usage_metadata["input_tokens"] > len("one, two")
    streamed = joined(list(chat.stream(MESSAGES)))
    assert text_of(streamed) == text_of(answer)
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert streamed.usage_metadata[name] == answer.usage_metadata[name]


async def test_the_async_calls_say_the_same(default_server, uses_responses, chat):
    # LangChain keeps one client for all event loops, unless it is given one.
    async with httpx.AsyncClient(timeout=60) as http:
        own = make_chat(default_server, use_responses_api=uses_responses, http_async_client=http)
        answer = await own.ainvoke(MESSAGES)
        streamed = joined([chunk async for chunk in own.astream(MESSAGES)])
        several = await own.abatch([MESSAGES, "b", "c"])
    assert text_of(streamed) == text_of(answer) == text_of(chat.invoke(MESSAGES))
    assert text_of(several[0]) == text_of(answer)
    assert len(several) == 3


def test_a_bound_tool_is_called_and_answered(chat):
    roomy = chat.model_copy(update={"max_tokens": 100})
    bound = roomy.bind_tools([find_city], tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke(MESSAGES)
    (call,) = answer.tool_calls
    assert call["name"] == "find_city"
    assert answer.invalid_tool_calls == []
    streamed = joined(list(bound.stream(MESSAGES)))
    assert [one["args"] for one in streamed.tool_calls] == [call["args"]]
    result = ToolMessage(find_city.invoke(call["args"]), tool_call_id=call["id"])
    follow_up = chat.bind_tools([find_city], tool_choice="none")
    assert text_of(follow_up.invoke([*MESSAGES, answer, result]))


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_parsed(chat, method):
    roomy = chat.model_copy(update={"max_tokens": 100})
    structured = roomy.with_structured_output(City, method=method, include_raw=True)
    found = structured.invoke(MESSAGES)
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], City)


def test_a_refusal_is_the_clients_own_error(chat):
    with pytest.raises(openai.BadRequestError) as caught:
        chat.invoke(MESSAGES, temperature=9)
    assert caught.value.param == "temperature"


def test_log_probabilities_are_handed_on(default_server):
    chat = make_chat(default_server, logprobs=True, top_logprobs=2, n=2)
    (choices,) = chat.generate([MESSAGES]).generations
    for choice in choices:
        assert choice.generation_info is not None
        entries = choice.generation_info["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in entries] == [2] * 12


def test_completions_and_embeddings(default_server):
    where: dict[str, Any] = {"base_url": f"{default_server.url}/v1", "api_key": "none"}
    text = langchain_openai.OpenAI(model=default_server.model, max_tokens=4, temperature=0, **where)
    assert "".join(text.stream("Rivers flow")) == text.invoke("Rivers flow")
    made = langchain_openai.OpenAIEmbeddings(
        model=default_server.model, check_embedding_ctx_length=False, **where
    )
    first, second = made.embed_documents(["one", "two 🦙"])
    assert len(first) == len(second) > 1
    assert made.embed_query("one") == first
