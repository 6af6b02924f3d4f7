"""With the default model's tokenizer, nothing a client says becomes a control token."""

from collections import Counter
from typing import Any

import pytest

from api_schemas import ChatCompletionRequest
from server.prompt_encoding import PromptEncoder
from tests.server.fakes import CHAT_TEMPLATE

# Prints everything that a message can hold, side by side.
WHOLE_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}{{ m.content }}"
    "{{ m.tool_call_id }}{{ m.reasoning_content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{{ c.function.arguments | tojson(ensure_ascii=True) }}"
    "{{ c.function.arguments }}{% endfor %}<|im_end|>\n{% endfor %}{{ extra }}"
)


def forgeries(mark: str) -> list[list[dict[str, Any]]]:
    """Conversations that hold a token's spelling wherever a client can write."""
    text = f"a{mark}b {mark}{mark}\n{mark}"
    half = len(mark) // 2
    call = {"id": mark, "function": {"name": mark, "arguments": {mark: {"x": [mark]}}}}
    user = {"role": "user", "content": "hi"}
    return [
        [{"role": "system", "content": text}, user],
        [{"role": "developer", "content": text}, user],
        [{"role": "user", "content": text, "name": mark}],
        [{"role": "user", "content": [{"type": "text", "text": text}] * 2}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": mark[:half]},
                    {"type": "text", "text": mark[half:]},
                ],
            }
        ],
        [{"role": "user", "content": mark[half:], "name": mark[:half]}],
        [user, {"role": "assistant", "content": text, "reasoning": mark}, user],
        [
            user,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": text, "tool_call_id": f"c{mark}"},
        ],
    ]


def neutral(value: Any, mark: str) -> Any:
    """The same conversation without the token."""
    if isinstance(value, str):
        half = len(mark) // 2
        plain = value.replace(mark, "")
        return "" if plain in (mark[:half], mark[half:]) else plain
    if isinstance(value, dict):
        return {neutral(k, mark): neutral(v, mark) for k, v in value.items()}
    return [neutral(item, mark) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("template", ["own", "plain", "whole"])
async def test_no_forged_token_appears(default_model_tokenizer, template, monkeypatch):
    tokenizer = default_model_tokenizer
    templates = {"own": tokenizer.chat_template, "plain": CHAT_TEMPLATE, "whole": WHOLE_TEMPLATE}
    monkeypatch.setattr(tokenizer, "chat_template", templates[template])
    encoder = PromptEncoder(tokenizer)
    specials = set(tokenizer.all_special_ids)
    added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
    assert len(added) > 10

    async def count(messages: list[dict[str, Any]], extra: str) -> Counter[int]:
        body = ChatCompletionRequest.model_validate(
            {"messages": messages, "chat_template_kwargs": {"extra": extra}}
        )
        rendered = await encoder.render_chat(body)
        assert tokenizer.decode(rendered.token_ids) == rendered.text
        return Counter(token for token in rendered.token_ids if token in specials)

    for mark in added:
        for messages in forgeries(mark):
            expected = await count(neutral(messages, mark), "")
            assert await count(messages, f"{mark}x") == expected, (mark, messages)
    encoder.close()


async def test_a_text_without_tokens_is_encoded_as_the_template_reads(default_model_tokenizer):
    """Marking costs nothing where there is nothing to mark, ends like `a <` included."""
    tokenizer = default_model_tokenizer
    encoder = PromptEncoder(tokenizer)
    for text in (
        "hello",
        "1 < 2",
        "a <",
        "|",
        "<b>bold</b>",
        "\U0001f999 \u4f60\u597d <|",
        r"\U000f0000",
    ):
        messages = [{"role": "user", "content": text}]
        body = ChatCompletionRequest.model_validate({"messages": messages})
        rendered = await encoder.render_chat(body)
        expected = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        assert rendered.text == expected
        assert tokenizer.decode(rendered.token_ids) == expected
        if not text.endswith(("<", "<|", "0")):
            assert rendered.token_ids == tokenizer.encode(expected)
    encoder.close()
