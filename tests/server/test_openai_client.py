"""The official client is the judge of the wire."""

import asyncio
from typing import Any

import openai
import pytest

from engine import RequestFailedError
from tests.server.live import TEXT

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_chat(client):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].logprobs.content[0].bytes


def test_chat_stream(client):
    options = {"include_usage": True}
    with client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options=options
    ) as chunks:
        collected = list(chunks)
    text = "".join(c.choices[0].delta.content or "" for c in collected if c.choices)
    assert text == TEXT
    assert collected[-1].usage.completion_tokens > 0


def test_the_clients_stream_helper(client):
    with client.chat.completions.stream(model="tiny", messages=MESSAGES) as helper:
        for _ in helper:
            pass
        final = helper.get_final_completion()
    assert final.choices[0].message.content == TEXT


def test_completions(client):
    answer = client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1, echo=False)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs.text_offset[0] == 0
    with client.completions.create(model="tiny", prompt="a", stream=True) as chunks:
        assert TEXT.startswith("".join(chunk.choices[0].text for chunk in chunks))


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny", "org/tiny"]
    assert client.models.retrieve("org/tiny").id == "org/tiny"


def test_errors_become_the_clients_own(client, live):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"
    live.manager.queue_full_after = 0
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="tiny", messages=MESSAGES)


def test_a_broken_stream_raises_in_the_client(client, live):
    live.manager.script = lambda _ids, _arguments: [300, RequestFailedError("x")]
    with (
        client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as chunks,
        pytest.raises(openai.APIError),
    ):
        list(chunks)


def test_the_client_retries_a_full_queue_and_succeeds(live):
    live.manager.queue_full_after = 0

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
            call = asyncio.ensure_future(
                client.chat.completions.create(model="tiny", messages=MESSAGES)
            )
            await asyncio.sleep(0.3)
            live.manager.queue_full_after = None
            return await call

    assert asyncio.run(main()).choices[0].message.content == TEXT


async def test_many_async_streams_at_once(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as client:

        async def read() -> tuple[str, str]:
            text = ""
            chunks: Any = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=True
            )
            async with chunks:
                async for chunk in chunks:
                    text += chunk.choices[0].delta.content or ""
                    last = chunk.id
            return text, last

        results = await asyncio.gather(*(read() for _ in range(20)))
    assert {text for text, _ in results} == {TEXT}
    assert len({last for _, last in results}) == 20


async def test_leaving_a_stream_early_frees_it(live):
    live.manager.step_seconds = 0.01
    live.manager.script = lambda _ids, _arguments: [300] * 200
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
        chunks: Any = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True
        )
        async with chunks:
            async for _ in chunks:
                break
        await asyncio.to_thread(live.manager.wait_until, lambda: live.manager.num_active == 0)
