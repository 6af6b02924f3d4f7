"""What the requests of the engine's benchmark ask for: nothing, or something about a fixed text.

What a model answers to random tokens is like no text that anybody wants, and often goes round.
Where the answer matters for the speed, as it does for guessed tokens, a task has to be like work.
"""

import pydoc_data.topics
import random
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

Prompts = list[list[int]]

# Task -> what is said before a passage of the manual that comes with Python.
INSTRUCTIONS = {
    "copy": "Write down this text again, word by word:\n\n",
    "write": "Write a letter to a friend who is to find this text boring, and say why:\n\n",
}
RANDOM = "random"
TASKS = (RANDOM, *INSTRUCTIONS)
_PASSAGE = "<passage>"


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload.

    Attributes:
        num_requests: Requests submitted together.
        num_prompt_tokens: Length of each prompt.
        num_new_tokens: Length of each answer, exactly.
    """

    num_requests: int
    num_prompt_tokens: int
    num_new_tokens: int


# From a shape and a seed; equal ones make equal prompts.
MakePrompts = Callable[[Shape, int], Prompts]


def random_prompts(vocab_size: int, shape: Shape, seed: int) -> Prompts:
    """Return prompts of random tokens, so that nothing is shared and nothing is cached."""
    rng = random.Random(seed)
    return [
        [rng.randrange(vocab_size) for _ in range(shape.num_prompt_tokens)]
        for _ in range(shape.num_requests)
    ]


def chats(task: str, tokenizer: PreTrainedTokenizerBase) -> MakePrompts:
    """Return what makes prompts about passages.

    Args:
        task: A key of `INSTRUCTIONS`.
        tokenizer: The model's; without a chat template the instruction stands alone.
    """
    asked = INSTRUCTIONS[task] + _PASSAGE
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": asked}]
        asked = str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))
    before, after = (
        tokenizer.encode(part, add_special_tokens=False) for part in asked.split(_PASSAGE)
    )
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    tokens = tokenizer.encode(text, add_special_tokens=False)

    def prompts(shape: Shape, seed: int) -> Prompts:
        """Return prompts of one length, each about a passage of its own."""
        length = shape.num_prompt_tokens - len(before) - len(after)
        if length < 1:
            raise SystemExit(
                f"a prompt for {task!r} takes more than {shape.num_prompt_tokens} tokens"
            )
        rng = random.Random(seed)
        starts = [rng.randrange(len(tokens) - length) for _ in range(shape.num_requests)]
        return [[*before, *tokens[start : start + length], *after] for start in starts]

    return prompts
