"""Tools in chats over a live server: what the model is told, and what becomes of what it writes."""

import json

import pytest

from engine import Grammar
from tests.server.fakes import CHAT_TEMPLATE, make_byte_level_tokenizer
from tests.server.live import LiveServer, run_live

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells about {name}.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    for name in ("first", "second")
]
CALL = '<tool_call>\n{"name": "first", "arguments": {"a": 1}}\n</tool_call>'
CALLS = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "second", "arguments": {{}}}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "first"}}


@pytest.fixture(scope="module")
def shared_live():
    with run_live(max_model_tokens=4096) as server:
        yield server


def events(live: LiveServer, **fields) -> list[dict]:
    response = live.chat(stream=True, **fields)
    assert response.status_code == 200, response.text
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def joined(chunks: list[dict]) -> dict:
    """The message that a stream of one choice makes, and its finish reason."""
    message: dict = {"content": None, "tool_calls": [], "reasoning": ""}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        message["reasoning"] += delta.get("reasoning", "")
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                assert set(call) == {"index", "id", "type", "function"}
                assert call["function"]["arguments"] == ""
                message["tool_calls"].append({**call, "function": dict(call["function"])})
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                arguments = call["function"]["arguments"]
                message["tool_calls"][call["index"]]["function"]["arguments"] += arguments
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert ends[-1] is not None
    assert ends[:-1] == [None] * (len(ends) - 1)
    return {**message, "finish_reason": ends[-1]}


def called(calls: list[dict]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def prompt(live: LiveServer) -> str:
    return str(live.tokenizer.decode(live.manager.added[-1].input_ids))


@pytest.mark.parametrize(
    ("says", "fields", "calls", "content", "finish"),
    [
        (CALL, {}, [("first", '{"a": 1}')], None, "tool_calls"),
        (CALLS, {}, [("first", '{"a": 1}'), ("second", "{}")], "Let me see.", "tool_calls"),
        (
            CALLS,
            {"parallel_tool_calls": False},
            [("first", '{"a": 1}')],
            "Let me see.",
            "tool_calls",
        ),
        (CALLS, {"tool_choice": "none"}, [], CALLS, "stop"),
        (CALLS, {"tools": []}, [], CALLS, "stop"),
        (CALL, {"tool_choice": "required"}, [("first", '{"a": 1}')], None, "tool_calls"),
        (CALL, {"tool_choice": NAMED}, [("first", '{"a": 1}')], None, "stop"),
        ("<tool_call>{bad", {}, [], "<tool_call>{bad", "stop"),
        ("No call at all.", {}, [], "No call at all.", "stop"),
        ("Before the end, after", {"stop": ["the end"]}, [], "Before ", "stop"),
        (CALL, {"stop": ["</tool"]}, [("first", '{"a": 1}')], None, "tool_calls"),
    ],
)
def test_a_stream_and_a_whole_answer_say_the_same(live, says, fields, calls, content, finish):
    live.says(says)
    body = {"tools": TOOLS, **fields}
    whole = live.chat(**body).json()["choices"][0]
    assert whole["message"]["content"] == content
    assert called(whole["message"].get("tool_calls", [])) == calls
    assert ("tool_calls" in whole["message"]) is bool(calls)
    assert whole["finish_reason"] == finish
    for tokens_per_output in (1, 3, 50):
        live.manager.tokens_per_output = tokens_per_output
        message = joined(events(live, **body))
        assert message["content"] == content
        assert called(message["tool_calls"]) == calls
        assert message["finish_reason"] == finish
        ids = {call["id"] for call in message["tool_calls"]}
        assert len(ids) == len(calls)
        assert all(one.startswith("call_") for one in ids)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_single_call_ends_the_generation(live, stream, logprobs):
    live.says(CALLS + " and on" * 400)
    body = {"tools": TOOLS, "parallel_tool_calls": False, "n": 2, "logprobs": logprobs}
    if stream:
        found = events(live, **body)
        reasons = [c["finish_reason"] for one in found for c in one["choices"]]
        assert [reason for reason in reasons if reason] == ["tool_calls"] * 2
    else:
        for choice in live.chat(**body).json()["choices"]:
            assert choice["finish_reason"] == "tool_calls"
            assert called(choice["message"]["tool_calls"]) == [("first", '{"a": 1}')]
    assert len(live.manager.cancelled) == 2
    live.manager.wait_until(lambda: live.manager.num_active == 0)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{"tools": TOOLS, "parallel_tool_calls": False}, {"functions": [TOOLS[0]["function"]]}],
    ids=["tools", "functions"],
)
def test_a_single_call_ends_at_one_token_however_tokens_arrive(live, fields, logprobs):
    live.says(CALLS + " and on" * 40)
    body = {**fields, "logprobs": logprobs, "return_token_ids": True}
    found = set()
    for tokens_per_output in (1, 3, 50, 1000):
        live.manager.tokens_per_output = tokens_per_output
        whole = live.chat(**body).json()
        count, [choice] = whole["usage"]["completion_tokens"], whole["choices"]
        assert len(choice["token_ids"]) == count
        assert not logprobs or len(choice["logprobs"]["content"]) == count
        *chunks, last = events(live, **body, stream_options={"include_usage": True})
        assert last["usage"]["completion_tokens"] == count
        streamed = [i for c in chunks for i in c["choices"][0].get("token_ids", [])]
        assert streamed == choice["token_ids"]
        found.add(tuple(streamed))
    [ids] = found
    assert str(live.tokenizer.decode(ids)) == CALLS[: CALLS.index("}}") + 2]


def test_a_call_that_is_cut_is_text_with_reason_length(live):
    live.says(CALL)
    choice = live.chat(tools=TOOLS, max_tokens=12).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert CALL.startswith(choice["message"]["content"])
    assert "tool_calls" not in choice["message"]


def test_a_forced_call_that_is_cut_keeps_its_beginning(live):
    live.says(CALL)
    tokens = live.tokenizer.encode(CALL.split("1}")[0], add_special_tokens=False)
    body = {"tools": TOOLS, "tool_choice": "required", "max_tokens": len(tokens)}
    choice = live.chat(**body).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert called(choice["message"]["tool_calls"]) == [("first", '{"a": ')]


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}])
def test_every_token_has_its_logprob_once(live, fields):
    live.says(CALLS)
    body = {"tools": TOOLS, "logprobs": True, "return_token_ids": True, **fields}
    whole = live.chat(**body).json()
    count = whole["usage"]["completion_tokens"]
    assert len(whole["choices"][0]["logprobs"]["content"]) == count
    chunks = [chunk["choices"][0] for chunk in events(live, **body)]
    entries = [one for chunk in chunks for one in (chunk["logprobs"] or {"content": []})["content"]]
    ids = [one for chunk in chunks for one in chunk.get("token_ids", [])]
    assert len(entries) == len(ids) == count
    assert ids == whole["choices"][0]["token_ids"]


def test_deltas_carry_a_call_and_nothing_empty(live):
    live.says(CALL)
    chunks = events(live, tools=TOOLS, tool_choice="required")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(set(delta) == {"tool_calls"} for delta in deltas[1:-1])


def test_the_older_form_is_answered_in_the_older_form(live):
    live.says(CALL)
    body = {"functions": [tool["function"] for tool in TOOLS], "function_call": "auto"}
    choice = live.chat(**body).json()["choices"][0]
    call = {"name": "first", "arguments": '{"a": 1}'}
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": call,
    }
    assert choice["finish_reason"] == "function_call"
    deltas = [chunk["choices"][0]["delta"].get("function_call") for chunk in events(live, **body)]
    pieces = [delta for delta in deltas if delta]
    assert pieces[0] == {"name": "first", "arguments": ""}
    assert "".join(piece["arguments"] for piece in pieces) == call["arguments"]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        NAMED,
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
    ],
    ids=str,
)
def test_a_forced_call_is_held_by_a_grammar(live, choice):
    live.says(CALL)
    assert live.chat(tools=TOOLS, tool_choice=choice).status_code == 200
    assert isinstance(live.manager.added[-1].arguments["grammar"], Grammar)


def test_a_free_answer_is_not_held(live):
    live.chat(tools=TOOLS)
    assert "grammar" not in live.manager.added[-1].arguments
    live.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert "grammar" in live.manager.added[-1].arguments


def test_only_allowed_tools_are_told_and_called(live):
    live.says(CALLS)
    allowed = {"mode": "auto", "tools": [{"type": "function", "name": "second"}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    message = live.chat(tools=TOOLS, tool_choice=choice).json()["choices"][0]["message"]
    assert called(message["tool_calls"]) == [("second", "{}")]
    assert message["content"] == f"Let me see.\n{CALL}"
    assert "Tells about first." not in prompt(live)
    assert "Tells about second." in prompt(live)


def test_a_template_without_tools_gets_them_as_text(live):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "function": {"name": "first", "arguments": '{"a": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "second", "arguments": ""}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "So be it."},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    assert live.chat(messages=messages, tools=TOOLS).status_code == 200
    text = prompt(live)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert '{"name": "first", "description": "Tells about first."' in text
    expected = (
        '<|im_start|>assistant\n<tool_call>\n{"name": "first", "arguments": {"a": 1}}\n</tool_call>'
        '\n<tool_call>\n{"name": "second", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nSo be it.<|im_end|>\n"
    )
    assert expected in text


MANY_ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [NAMED] * 513},
}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": TOOLS + TOOLS}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "third"}}},
            "tool_choice",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": TOOLS, "tool_choice": MANY_ALLOWED}, "tool_choice.allowed_tools.tools"),
        ({"tools": TOOLS, "functions": [TOOLS[0]["function"]]}, "functions"),
        ({"function_call": {"name": "first"}}, "function_call"),
        (
            {
                "tools": [{"type": "function", "function": {
                    "name": "f", "strict": True, "parameters": {"type": "object", "not": {}}
                }}],
                "tool_choice": "required",
            },
            "tools",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_a_400_that_names_it(live, fields, param):
    response = live.chat(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_what_is_not_strict_may_use_keywords_that_are_not_followed(live):
    function = {"name": "f", "parameters": {"type": "object", "uniqueItems": True}}
    tools = [{"type": "function", "function": function}]
    assert live.chat(tools=tools, tool_choice="required").status_code == 200


NATIVE = (
    CHAT_TEMPLATE.replace(
        "{% for message in messages %}",
        "{% if tools %}[TOOLS]{{ tools | tojson }}{% endif %}{% for message in messages %}",
        1,
    ).replace("</think>", "")
    + "{# [TOOL_CALLS] #}"
)


def test_a_template_with_tools_gets_them_and_says_how_calls_look():
    with run_live(max_model_tokens=4096, tokenizer=make_byte_level_tokenizer(NATIVE)) as live:
        live.says('[TOOL_CALLS][{"name": "first", "arguments": {"a": 1}}]')
        message = live.chat(tools=TOOLS).json()["choices"][0]["message"]
        assert called(message["tool_calls"]) == [("first", '{"a": 1}')]
        assert len(message["tool_calls"][0]["id"]) == 9, "its templates want such ids"
        text = prompt(live)
        assert text.startswith('[TOOLS][{"type": "function", "function": {"name": "first"')
        assert "You can call functions" not in text


def test_no_two_calls_of_a_conversation_share_an_id(live):
    live.says(CALLS)
    answers = [live.chat(tools=TOOLS, n=2).json() for _ in range(2)]
    messages = [choice["message"] for answer in answers for choice in answer["choices"]]
    ids = [call["id"] for message in messages for call in message["tool_calls"]]
    assert len(set(ids)) == len(ids) == 8


@pytest.mark.parametrize("text", ["<tool_call>{bad", "No call."])
def test_a_message_without_calls_has_no_key_for_them(live, text):
    live.says(text)
    choice = live.chat(tools=TOOLS).json()["choices"][0]
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
