"""Random requests that have one answer: greedy ones, and sampled ones with a seed."""

import json
import random
from typing import Any

Body = dict[str, Any]

PROMPTS = [
    "The capital of France is",
    "1, 2, 3, 4, 5,",
    "def add(a, b):\n    return",
    "🦙🦙🦙🦙🦙🦙",
    "🏳️‍🌈👩‍👩‍👧‍👦🇫🇷 🏳️‍🌈👩‍👩‍👧‍👦🇫🇷",
    "東京は日本の首都です。東京は日本の",
    "안녕하세요, 안녕하세요,",
    "Ünïcödé naïve café ß",
    "नमस्ते दुनिया नमस्ते",
    "\tindented\r\n\r\n  twice  ",
    "<|im_end|> is a marker, <think> another",
    " ",
]
# What often stands in answers, some of it in part only, and what never does.
STOPS = [
    ".",
    "\n",
    " the",
    "e",
    ", ",
    "is a",
    "\n\n",
    "🦙🦙",
    "の",
    "�",
    "5, 6",
    "<|im_end|>",
    "zqzq",
]
STOPS += ["a string that is long and never comes, so that its beginnings are held back only"]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "kind": {"enum": ["東京", "🦙", None, 1.5]},
    },
    "required": ["city", "kind"],
    "additionalProperties": False,
}
FUNCTIONS = [
    {"name": "find_city", "description": "Finds a city.", "parameters": CITY},
    {"name": "now", "description": "Tells the time."},
]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
CALL = (
    '<tool_call>\n{"name": "find_city", "arguments": {"city": "Köln", "kind": "🦙"}}\n</tool_call>'
)
# What a model may write where it is free to call: calls, broken ones, and text around them.
WRITTEN = [
    CALL,
    f"Let me see. 🦙\n{CALL}",
    f'{CALL}\n<tool_call>{{"name": "now"}}</tool_call> Done.',
    "<tool_call>{bad",
    '<tool_call>\n{"name": "find_city", "arguments": {"city": "Kö',
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    "a < b, <tool, </tool_call>",
]
CONSTRAINTS = {"guided_json", "guided_regex", "guided_choice", "grammar", "response_format"}
CONSTRAINTS |= {"tools", "functions"}
HARMS = {"ignore_eos", "logit_bias", "stop_token_ids"}


def random_request(number: int) -> tuple[str, Body]:
    """Return a path and the body of the request of this number."""
    chance = random.Random(number)
    body: Body = {"max_tokens": chance.choice([1, 2, 3, 5, 8, 12])}
    if chance.random() < 0.5:
        body |= {"temperature": chance.choice([0.3, 0.8, 1.0, 1.7]), "seed": chance.randrange(99)}
        body |= _some(chance, top_p=0.9, top_k=20, min_p=0.02)
    else:
        body["temperature"] = 0
    body |= _some(
        chance,
        frequency_penalty=0.7,
        presence_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias={str(chance.randrange(1000)): chance.choice([-100, 3, 10])},
        ignore_eos=True,
        min_tokens=chance.randrange(body["max_tokens"] + 1),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        return_token_ids=True,
        return_tokens_as_token_ids=True,
        prompt_logprobs=chance.randrange(3),
        stop_token_ids=[chance.randrange(2000) for _ in range(100)],
    )
    if chance.random() < 0.3:
        body["n"] = chance.choice([2, 3])
    if chance.random() < 0.5:
        body["stop"] = chance.sample(STOPS, chance.choice([1, 1, 2, 4]))
    path, asked = chance.choice([("/v1/completions", _completion), ("/v1/chat/completions", _chat)])
    body |= asked(chance)
    if CONSTRAINTS & body.keys():
        # The first is refused beside a grammar, the others may leave it no token.
        body = {name: body[name] for name in body.keys() - HARMS}
    return path, body


def _some(chance: random.Random, **fields: Any) -> Body:
    """Return few of the fields."""
    return {name: value for name, value in fields.items() if chance.random() < 0.12}


def _completion(chance: random.Random) -> Body:
    prompts = chance.sample(PROMPTS, 2)
    ids = [chance.randrange(3, 40_000) for _ in range(chance.randrange(1, 9))]
    body: Body = {"prompt": chance.choice([prompts[0], prompts[0], prompts, ids, [ids, ids[:1]]])}
    if chance.random() < 0.4:
        body["logprobs"] = chance.randrange(4)
    body |= _some(chance, echo=True)
    if chance.random() < 0.3:
        body |= chance.choice(
            [
                {"guided_json": CITY},
                {"guided_regex": "[🦙é東a-c]{1,9}"},
                {"guided_choice": ["🏳️‍🌈 flag", "東京", "yes", "yesterday"]},
                {"grammar": 'root ::= ("🦙" | "ab" | "の")+ "."'},
                {"response_format": {"type": "json_object"}},
            ]
        )
    return body


def _chat(chance: random.Random) -> Body:
    body: Body = {"messages": [{"role": "user", "content": chance.choice(PROMPTS)}]}
    if chance.random() < 0.2:
        begun = {"role": "assistant", "content": chance.choice(PROMPTS[:8])}
        body["messages"].append(begun)
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if chance.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": chance.randrange(4)}
    kind = chance.choice(["text", "text", "json", "either", "written", "auto", "forced", "legacy"])
    if kind in ("json", "either"):
        schema = {"name": "city", "schema": CITY}
        body["response_format"] = chance.choice(
            [{"type": "json_object"}, {"type": "json_schema", "json_schema": schema}]
        )
        if kind == "either":
            body["tools"] = TOOLS
    elif kind == "written":
        body |= {"tools": TOOLS, "guided_choice": [chance.choice(WRITTEN)], "max_tokens": 80}
    elif kind == "auto":
        body |= {"tools": TOOLS, "tool_choice": chance.choice(["auto", "none"])}
    elif kind == "forced":
        named = {"type": "function", "function": {"name": "now"}}
        body |= {"tools": TOOLS, "tool_choice": chance.choice(["required", named])}
        body |= {"parallel_tool_calls": chance.random() < 0.5}
    elif kind == "legacy":
        body |= {"functions": FUNCTIONS, "function_call": {"name": "find_city"}}
    return body


def shown(request: tuple[str, Body]) -> str:
    """Return a request as somebody could send it again."""
    path, body = request
    return f"{path} {json.dumps(body, ensure_ascii=False)}"
