"""The Responses API with the default model and the official client."""

from typing import Any

import pytest


@pytest.fixture
def question() -> dict[str, Any]:
    return {"input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 24}


def test_a_response_is_the_answer_of_the_chat(client, default_server, question):
    whole = client.responses.create(model=default_server.model, **question)
    chat = client.chat.completions.create(
        model=default_server.model,
        messages=[{"role": "user", "content": question["input"]}],
        temperature=0,
        max_tokens=24,
    )
    assert whole.output_text == chat.choices[0].message.content
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    with client.responses.stream(model=default_server.model, **question) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == whole.output_text


def test_a_conversation_goes_on(client, default_server, question):
    first = client.responses.create(model=default_server.model, **question)
    second = client.responses.create(
        model=default_server.model,
        input="And of Italy?",
        previous_response_id=first.id,
        temperature=0,
        max_output_tokens=8,
    )
    counted = client.responses.input_tokens.count(
        model=default_server.model, input="And of Italy?", previous_response_id=first.id
    )
    assert second.usage.input_tokens == counted.input_tokens
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.output_text


def test_a_background_response_is_resumed(client, default_server, question):
    events = client.responses.create(
        model=default_server.model, background=True, stream=True, **question
    )
    seen = []
    for event in events:
        seen.append(event)
        if len(seen) == 7:
            break
    events.close()
    last = seen[-1].sequence_number
    with client.responses.retrieve(
        seen[0].response.id, stream=True, starting_after=last
    ) as resumed:
        seen += list(resumed)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    deltas = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert seen[-1].response.output_text == deltas
