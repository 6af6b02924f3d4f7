"""The default model over the wire, asked the way users ask: curl and the official client."""

import asyncio
import json
import re
import shutil
import subprocess
from typing import Any

import httpx
import openai
import pytest

from tests.engine.threads import Call
from tests.integration.conftest import DEFAULT_SETTINGS
from tests.serve_process import serving

# The first test of a session may have to fetch the model.
pytestmark = pytest.mark.timeout(600)

QUESTION = "What is the capital of France?"
OPENING = "The capital of France is"
# Few, because tokens of this model are dear; the tiny model is asked with every combination.
CHATS: dict[str, Any] = {
    QUESTION: {},
    "Tell me about rivers.": {"n": 2, "seed": 5, "temperature": 0.8},
    "Count to ten.": {"stop": [" and", "four"]},
    "Write a line with an emoji 🌊 in it.": {"logprobs": True, "top_logprobs": 3},
}


def conversation(text: str) -> Any:
    return [{"role": "user", "content": text}]


def curl(url: str, body: dict, *options: str) -> str:
    """Ask as the line does that the server prints at its start."""
    command = ["curl", "--silent", "--show-error", "--fail-with-body", *options, url]
    header = ["-H", "Content-Type: application/json"]
    done = subprocess.run(
        [*command, *header, "-d", json.dumps(body)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The README's own command; the same requests are sent by the official client below, curl or not.
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_curl(default_server, path):
    asked = {"messages": conversation(QUESTION)} if "chat" in path else {"prompt": OPENING}
    body = {"model": default_server.model, "temperature": 0, "max_tokens": 16, **asked}
    url = f"{default_server.url}/v1/{path}"
    whole = json.loads(curl(url, body))["choices"][0]
    *frames, done = curl(url, {**body, "stream": True}, "--no-buffer").strip().split("\n\n")
    assert done == "data: [DONE]"
    pieces = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames]
    if "chat" in path:
        text = whole["message"]["content"]
        joined = "".join(piece["delta"].get("content") or "" for piece in pieces)
    else:
        text, joined = whole["text"], "".join(piece["text"] for piece in pieces)
    assert "Paris" in text
    assert joined == text
    assert pieces[-1]["finish_reason"] == whole["finish_reason"]


def test_without_fusion_answers_are_the_same(default_server):
    texts = []
    with serving(*DEFAULT_SETTINGS, "--no-fusion", start_seconds=300) as plain:
        assert any(re.search(r"model\.fusion\s+false", line) for line in plain.lines)
        for url in (default_server.url, plain.url):
            body = {"prompt": [OPENING, QUESTION], "temperature": 0, "max_tokens": 24}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()
            texts.append([choice["text"] for choice in answer["choices"]])
    assert texts[0] == texts[1]


def collect_chat(chunks: list[Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """Return text, finish reason and log-probabilities per choice, and the usage."""
    usage = chunks[-1].usage
    choices: dict[int, list[Any]] = {}
    for part in (choice for chunk in chunks for choice in chunk.choices):
        text, reason, tokens = choices.setdefault(part.index, ["", None, []])
        tokens = [*tokens, *(part.logprobs.content if part.logprobs else [])]
        choices[part.index] = [text + (part.delta.content or ""), part.finish_reason, tokens]
        assert reason is None
    return [tuple(choices[index]) for index in sorted(choices)], usage


@pytest.mark.parametrize("prompt", CHATS)
def test_a_streamed_chat_equals_the_whole_one(client, default_server, prompt):
    options = CHATS[prompt]
    request: dict[str, Any] = {
        "model": default_server.model,
        "messages": conversation(prompt),
        "max_tokens": 16,
        "temperature": 0,
        **options,
    }
    whole = client.chat.completions.create(**request)
    include = {"include_usage": True}
    with client.chat.completions.create(**request, stream=True, stream_options=include) as chunks:
        streamed, usage = collect_chat(list(chunks))
    assert streamed == [
        (choice.message.content, choice.finish_reason, choice.logprobs.content)
        if choice.logprobs
        else (choice.message.content, choice.finish_reason, [])
        for choice in whole.choices
    ]
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    for text, _, _ in streamed:
        assert not any(stop in text for stop in options.get("stop", []))


@pytest.mark.parametrize("options", [{}, {"stop": ["."], "logprobs": 2}])
def test_a_streamed_completion_equals_the_whole_one(client, default_server, options):
    request: dict[str, Any] = {
        "model": default_server.model,
        "prompt": [OPENING, "Rivers flow"],
        "max_tokens": 8,
        "temperature": 0,
        **options,
    }
    whole = client.completions.create(**request)
    with client.completions.create(**request, stream=True) as chunks:
        parts = [choice for chunk in chunks for choice in chunk.choices]
    for choice in whole.choices:
        own = [part for part in parts if part.index == choice.index]
        assert "".join(part.text for part in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
        if choice.logprobs:
            for name in ("tokens", "token_logprobs", "text_offset"):
                joined = [item for part in own for item in getattr(part.logprobs, name)]
                assert joined == getattr(choice.logprobs, name)


async def test_the_async_client(default_server):
    url = f"{default_server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        request: dict[str, Any] = {"model": default_server.model, "temperature": 0}
        chat: dict[str, Any] = {**request, "messages": conversation(QUESTION)}
        text: dict[str, Any] = {**request, "prompt": OPENING, "max_tokens": 8}

        async def joined(stream: Any, read: Any) -> str:
            async with stream:
                return "".join([read(chunk.choices[0]) or "" async for chunk in stream])

        whole_chat, whole_text, chat_stream, text_stream = await asyncio.gather(
            client.chat.completions.create(**chat),
            client.completions.create(**text),
            client.chat.completions.create(**chat, stream=True),
            client.completions.create(**text, stream=True),
        )
        streamed: Any = await asyncio.gather(
            joined(chat_stream, lambda choice: choice.delta.content),
            joined(text_stream, lambda choice: choice.text),
        )
    answers: list[Any] = [whole_chat.choices[0].message.content, whole_text.choices[0].text]
    assert list(streamed) == answers
    assert all("Paris" in answer for answer in answers)


def test_a_second_identical_request_reads_its_prompt_from_the_cache(client, default_server):
    request: dict[str, Any] = {
        "model": default_server.model,
        "messages": conversation("Never asked before. " * 20 + QUESTION),
        "temperature": 0,
        "max_tokens": 16,
    }
    first, second = (client.chat.completions.create(**request) for _ in range(2))
    assert first.choices == second.choices
    before, after = (answer.usage.prompt_tokens_details for answer in (first, second))
    assert (before.cached_tokens if before else 0) < after.cached_tokens
    assert 0.9 * second.usage.prompt_tokens < after.cached_tokens < second.usage.prompt_tokens


def test_token_ids_and_their_text_are_one_prompt(client, default_server, default_model_tokenizer):
    text = OPENING
    ids = default_model_tokenizer.encode(text)
    other = default_model_tokenizer.encode("Rivers flow")
    request: dict[str, Any] = {"model": default_server.model, "temperature": 0, "max_tokens": 8}
    as_text = client.completions.create(**request, prompt=text)
    as_ids = client.completions.create(**request, prompt=ids)
    as_lists = client.completions.create(**request, prompt=[ids, other])
    assert as_text.choices[0].text == as_ids.choices[0].text == as_lists.choices[0].text
    assert as_ids.usage.prompt_tokens == len(ids)
    assert as_lists.usage.prompt_tokens == len(ids) + len(other)
    assert as_lists.choices[1].text


def test_the_model_is_listed(client, default_server):
    assert [model.id for model in client.models.list()] == [default_server.model]


@pytest.mark.long
def test_a_second_start_answers_within_ten_seconds(default_server):
    """On a machine that does nothing else."""
    assert default_server.seconds_to_first_answer < 10


def test_greedy_answers_in_a_crowd_are_those_given_alone(client, default_server):
    def ask(prompt: str, max_tokens: int) -> str:
        answer = client.completions.create(
            model=default_server.model, prompt=prompt, temperature=0, max_tokens=max_tokens
        )
        return answer.choices[0].text

    watched = "Slow water runs deep, and the river"
    alone = ask(watched, 16)
    neighbours = [
        Call(ask, f"{number} " + "word " * (number * 7 % 50), 8 + number) for number in range(15)
    ]
    again = Call(ask, watched, 16)
    assert again.outcome() == alone
    assert all(isinstance(call.outcome(), str) for call in neighbours)
