"""Reasoning beside the content, over a live server whose template speaks of it."""

import pytest

from server.settings import ModelSettings, ServerSettings, Settings
from tests.server.fakes import CHAT_TEMPLATE, make_byte_level_tokenizer
from tests.server.live import LiveServer, run_live
from tests.server.test_tools import CALL, TOOLS, called, events, joined

SPEAKS = CHAT_TEMPLATE + "{# </think> #}"
OPENS = CHAT_TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"


@pytest.fixture(scope="module")
def thinking():
    with run_live(max_model_tokens=4096, tokenizer=make_byte_level_tokenizer(SPEAKS)) as server:
        yield server


@pytest.mark.parametrize("stop", [[], ["unseen", "thinker"]])
@pytest.mark.parametrize("tokens_per_output", [1, 4, 40])
def test_reasoning_is_told_from_content(thinking: LiveServer, stop, tokens_per_output):
    thinking.manager.tokens_per_output = tokens_per_output
    thinking.says("<think>\none two\n</think>\n\nthree four")
    body = thinking.chat(stop=stop).json()
    message = body["choices"][0]["message"]
    assert message["content"] == "three four"
    assert message["reasoning"] == message["reasoning_content"] == "one two"
    stream = joined(events(thinking, stop=stop))
    assert (stream["reasoning"], stream["content"]) == ("one two", "three four")
    tokens = thinking.tokenizer.encode("<think>\none two\n</think>", add_special_tokens=False)
    details = body["usage"]["completion_tokens_details"]
    assert abs(details["reasoning_tokens"] - len(tokens)) <= 1, "a token may span the border"


def test_reasoning_may_be_left_out(thinking: LiveServer):
    thinking.says("<think>one</think>two")
    message = thinking.chat(include_reasoning=False).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "two", "refusal": None}


@pytest.mark.parametrize(("display", "kinds"), [("omitted", 1), ("summarized", 2)])
def test_thinking_may_be_omitted(thinking: LiveServer, display, kinds):
    thinking.says("<think>one</think>two")
    body = {"max_tokens": 50, "messages": [{"role": "user", "content": "a"}]}
    options = {"type": "enabled", "display": display}
    content = thinking.http.post("/v1/messages", json={**body, "thinking": options}).json()[
        "content"
    ]
    assert [block["type"] for block in content] == ["thinking", "text"][-kinds:]
    assert content[-1]["text"] == "two"


def test_reasoning_that_never_ends_leaves_no_content(thinking: LiveServer):
    thinking.says("<think>one two three")
    choice = thinking.chat(max_tokens=4).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"]


def test_a_call_may_follow_reasoning(thinking: LiveServer):
    thinking.says(f"<think>which?</think>\n{CALL}")
    for message in (
        thinking.chat(tools=TOOLS).json()["choices"][0]["message"],
        joined(events(thinking, tools=TOOLS)),
    ):
        assert message["reasoning"] == "which?"
        assert message["content"] is None
        assert called(message["tool_calls"]) == [("first", '{"a": 1}')]


def test_a_prompt_may_open_the_reasoning():
    with run_live(max_model_tokens=4096, tokenizer=make_byte_level_tokenizer(OPENS)) as live:
        live.says("one</think>two")
        message = live.chat().json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("one", "two")


def test_the_operator_may_leave_it_in_the_text():
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=ServerSettings(port=0, reasoning_parser="none"),
    )
    with run_live(
        max_model_tokens=4096, tokenizer=make_byte_level_tokenizer(SPEAKS), settings=settings
    ) as live:
        live.says("<think>one</think>two")
        assert live.chat().json()["choices"][0]["message"]["content"] == "<think>one</think>two"
