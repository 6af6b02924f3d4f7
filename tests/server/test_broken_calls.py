"""What a model has written wrongly in a call can be sent, and the conversation goes on after it."""

import json
from typing import Any

import pytest

from api_schemas import load_json_text
from tests.server.fakes import make_byte_level_tokenizer
from tests.server.live import LiveServer, run_live
from tests.server.responses import create, events_of
from tests.server.test_tools import TOOLS
from tests.server.test_tools_elsewhere import CUSTOM, FUNCTIONS, MESSAGES

WRITES = '<tool_call>{{"name": "first", "arguments": {}}}</tool_call>'.format
HALVES = r'{"a": "x\ud800", "\udfff": [{"b": "\ud83d\ude00 \ude00"}]}'
WHOLE = {"a": "x\ufffd", "\ufffd": [{"b": "😀 \ufffd"}]}
CUT = '{"a": "x'
# How templates go through the arguments of earlier calls.
READINGS = {
    "items": "{% for key, value in arguments.items() %} {{ key }}={{ value }}{% endfor %}",
    "filter": "{% for key, value in arguments | items %} {{ key }}={{ value }}{% endfor %}",
    "json": "{{ arguments | tojson }}",
}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{% set arguments = call.function.arguments %}"
    "[{{ call.function.name }}READING]{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
READ = {
    ("items", CUT): f"[first arguments={CUT}]",
    ("filter", CUT): f"[first arguments={CUT}]",
    ("json", CUT): f"[first{json.dumps(CUT)}]",
    ("items", HALVES): "[first a=x\ufffd \ufffd=[{'b': '😀 \ufffd'}]]",
    ("filter", HALVES): "[first a=x\ufffd \ufffd=[{'b': '😀 \ufffd'}]]",
    ("json", HALVES): f"[first{json.dumps(WHOLE, ensure_ascii=False)}]",
}


@pytest.fixture(scope="module")
def shared_live():
    with run_live(max_model_tokens=4096) as server:
        yield server


def ask(live: LiveServer, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "tools": CUSTOM, **fields}
    return live.http.post("/v1/messages", json=body)


def test_halves_of_characters_are_replaced_where_they_would_be_characters():
    assert load_json_text(HALVES) == WHOLE
    assert load_json_text(r'["\\ud800", "\ud83d\ude00", "\u00e9"]') == ["\\ud800", "😀", "é"]


def test_a_message_with_half_a_character_in_its_input_can_be_sent(live):
    live.says(WRITES(HALVES))
    whole = ask(live)
    assert whole.status_code == 200, whole.text
    (block,) = whole.json()["content"]
    assert block["input"] == WHOLE
    events = [
        json.loads(one.split("\n")[1][6:]) for one in ask(live, stream=True).text.split("\n\n")[:-1]
    ]
    pieces = [
        event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"
    ]
    assert load_json_text("".join(pieces)) == WHOLE
    blocks = [{"type": "tool_result", "tool_use_id": block["id"], "content": "4"}]
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": blocks},
    ]
    assert ask(live, messages=turns).status_code == 200


@pytest.mark.parametrize("arguments", [CUT, HALVES], ids=["cut", "halves"])
@pytest.mark.parametrize("reading", READINGS)
def test_a_conversation_goes_on_after_a_broken_call_with_any_template(reading, arguments):
    template = TEMPLATE.replace("READING", READINGS[reading])
    with run_live(max_model_tokens=4096, tokenizer=make_byte_level_tokenizer(template)) as live:
        live.says(WRITES(arguments)[: -len("}</tool_call>")])
        message = live.chat(tools=TOOLS).json()["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"]["arguments"] == arguments
        result = {"role": "tool", "tool_call_id": call["id"], "content": "What?"}
        answer = live.chat(tools=TOOLS, messages=[*MESSAGES, message, result])
        assert answer.status_code == 200, answer.text
        assert READ[reading, arguments] in live.tokenizer.decode(live.manager.added[-1].input_ids)

        first = create(live, tools=FUNCTIONS).json()
        (item,) = first["output"]
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "What?"}
        fields = {"tools": FUNCTIONS, "previous_response_id": first["id"], "input": [output]}
        assert create(live, **fields).status_code == 200
        assert READ[reading, arguments] in live.tokenizer.decode(live.manager.added[-1].input_ids)


@pytest.mark.parametrize(
    ("says", "statuses"),
    [
        (WRITES('{"a": 1}'), ["completed"]),
        (WRITES('{"a": ' + "9" * 5000 + "}"), ["completed"]),
        (WRITES(CUT)[: -len("}</tool_call>")], ["incomplete"]),
        (WRITES('{"a": oops}'), ["incomplete", "completed"]),
        (WRITES('{"a": oops}') + WRITES("{}"), ["incomplete", "completed", "completed"]),
    ],
    ids=["whole", "long number", "cut", "text", "text and a call"],
)
def test_a_call_that_broke_off_is_an_incomplete_item_of_a_response(live, says, statuses):
    live.says(says)
    whole = create(live, tools=FUNCTIONS).json()
    assert whole["status"] == "completed", "the model ended by itself"
    assert [item["status"] for item in whole["output"]] == statuses
    events = events_of(create(live, tools=FUNCTIONS, stream=True).text)
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == statuses
    assert events[-1]["response"]["output"] == done
