"""Structured answers of the default model: small as it is, what it writes is valid."""

import json
import re
from enum import Enum
from typing import Literal

import httpx
import jsonschema
import pytest
from pydantic import BaseModel

ASK = [{"role": "user", "content": "Tell me about the city of Paris in JSON."}]
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "size": {"enum": ["small", "large"]},
        "people": {"type": "integer", "minimum": 1, "maximum": 999},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 1},
    },
    "required": ["name", "size", "people", "rivers"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class City(BaseModel):
    size: Size
    is_old: bool
    kind: Literal["town", "city"] | None


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.2, "seed": 1, "n": 2, "logprobs": True},
        {"temperature": 1, "seed": 2, "frequency_penalty": 1.5, "presence_penalty": 1},
        {"temperature": 0, "extra_body": {"min_tokens": 50, "repetition_penalty": 1.3}},
    ],
    ids=str,
)
def test_answers_are_valid_however_they_are_drawn(client, default_server, options):
    answer = client.chat.completions.create(
        model=default_server.model,
        messages=ASK,
        response_format=FORMAT,
        max_tokens=200,
        **options,
    )
    assert len(answer.choices) == options.get("n", 1)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), CITY)


def test_a_stream_says_what_a_whole_answer_says(client, default_server):
    fields = {
        "model": default_server.model,
        "messages": ASK,
        "response_format": FORMAT,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**fields)
    chunks = client.chat.completions.create(**fields, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


def test_the_clients_own_parsing_works(client, default_server):
    answer = client.chat.completions.parse(
        model=default_server.model,
        messages=ASK,
        response_format=City,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_an_answer_that_is_cut_says_length(client, default_server):
    answer = client.chat.completions.create(
        model=default_server.model, messages=ASK, response_format=FORMAT, max_tokens=4
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["Paris", "Lyon"]}, "Paris|Lyon"),
        ({"guided_regex": r"[A-Z][a-z]{2,8}\."}, r"[A-Z][a-z]{2,8}\."),
        ({"structured_outputs": {"grammar": 'root ::= ("ab" | "c")+ "."'}}, r"(ab|c)+\."),
    ],
    ids=str,
)
def test_texts_follow_their_constraint(default_server, fields, pattern):
    body = {"prompt": "The capital of France is", "max_tokens": 60, "temperature": 0, **fields}
    answer = httpx.post(f"{default_server.url}/v1/completions", json=body, timeout=60).json()
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        assert re.fullmatch(pattern, choice["text"])
    else:
        assert fields["structured_outputs"], "only the grammar may go on for ever"
