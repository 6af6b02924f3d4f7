"""Prompts of the engine's benchmark: of one length, each its own, the same each time."""

import pytest
from transformers import AutoTokenizer

from benchmarks.tasks import INSTRUCTIONS, Shape, chats, random_prompts

SHAPE = Shape(num_requests=5, num_prompt_tokens=200, num_new_tokens=8)


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder):
    return AutoTokenizer.from_pretrained(tiny_model_folder)


@pytest.fixture(autouse=True)
def short_manual(monkeypatch):
    """The whole one is some 400,000 tokens of a byte."""
    monkeypatch.setattr("pydoc_data.topics.topics", {"numbers": " ".join(map(str, range(900)))})


@pytest.mark.parametrize("has_template", [True, False])
@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_chats_are_of_one_length_and_about_passages_of_their_own(task, has_template, tokenizer):
    template = tokenizer.chat_template
    tokenizer.chat_template = template if has_template else None
    try:
        make = chats(task, tokenizer)
    finally:
        tokenizer.chat_template = template
    prompts = make(SHAPE, 3)
    assert [len(prompt) for prompt in prompts] == [200] * 5
    assert len({tuple(prompt) for prompt in prompts}) == 5
    assert make(SHAPE, 3) == prompts
    assert make(SHAPE, 4) != prompts
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    assert all(INSTRUCTIONS[task] in text for text in texts)
    assert all(text.endswith("assistant\n") == has_template for text in texts)


def test_a_prompt_that_is_too_short_for_its_task_is_refused(tokenizer):
    with pytest.raises(SystemExit, match="'copy' takes more than 20 tokens"):
        chats("copy", tokenizer)(Shape(1, 20, 1), 0)


def test_random_prompts_are_within_the_vocabulary():
    prompts = random_prompts(50, SHAPE, 1)
    assert [len(prompt) for prompt in prompts] == [200] * 5
    assert {token for prompt in prompts for token in prompt} == set(range(50))
