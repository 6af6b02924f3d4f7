"""The Messages API with the default model and the official client."""

from collections.abc import Iterator

import anthropic
import pytest

# The client has no argument for what its newest models don't take.
GREEDY = {"temperature": 0}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def messages(default_server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=default_server.url, api_key="none") as made:
        yield made


def test_a_message_is_the_answer_of_the_chat(messages, client, default_server):
    model = default_server.model
    whole = messages.messages.create(
        model=model, messages=QUESTION, max_tokens=24, system="Be brief.", extra_body=GREEDY
    )
    chat = client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": "Be brief."}, *QUESTION],
        max_tokens=24,
        temperature=0,
    )
    assert whole.content[0].text == chat.choices[0].message.content
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    with messages.messages.stream(
        model=model, messages=QUESTION, max_tokens=24, system="Be brief.", extra_body=GREEDY
    ) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
    count = messages.messages.count_tokens(model=model, messages=QUESTION, system="Be brief.")
    assert count.input_tokens == whole.usage.input_tokens


def test_a_stop_sequence_is_named(messages, default_server):
    whole = messages.messages.create(
        model=default_server.model,
        messages=QUESTION,
        max_tokens=24,
        stop_sequences=["Paris"],
        extra_body=GREEDY,
    )
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "Paris")
