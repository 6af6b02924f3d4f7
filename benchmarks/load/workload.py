"""What is asked: prompts of one length, answers of one length."""

import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.load.target import Target

SENTENCES = [line.split() for line in (Path(__file__).parent / "text.txt").read_text().splitlines()]
# For models that end their answers when they like.
ENDING = ["Tell", "on", "from", "here,", "at", "length:"]


class Endpoint(StrEnum):
    """What is asked for."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of all requests of a measurement.

    Attributes:
        endpoint: Chats or completions.
        num_prompt_words: Length of each prompt, in words.
        num_output_tokens: Length of each answer, where the server lets us decide it.
        num_shared_words: How many words at its beginning all prompts have in common.
        seed: Decides the text.
    """

    endpoint: Endpoint
    num_prompt_words: int
    num_output_tokens: int
    num_shared_words: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the lengths."""
        least = self.num_shared_words + 1 + len(ENDING)
        if self.num_prompt_words < least:
            raise ValueError(
                f"prompts of {self.num_prompt_words} words are too short; with "
                f"{self.num_shared_words} shared ones they have at least {least}"
            )

    def prompts(self, count: int, round_number: int) -> list[str]:
        """Return prompts.

        The text depends on seed, round and place alone, so that all servers get the same. A mark
        that is new in every call comes before what isn't shared, so that no cache of prefixes
        helps, not even one that an earlier run has filled.
        """
        shared = _text(random.Random(self.seed), self.num_shared_words)
        rng = random.Random(f"{self.seed} {round_number}")
        rest = self.num_prompt_words - self.num_shared_words - 1 - len(ENDING)
        return [
            " ".join([*shared, secrets.token_hex(4), *_text(rng, rest), *ENDING])
            for _ in range(count)
        ]

    def request(self, target: Target, prompt: str, extras: Mapping[str, Any]) -> bytes:
        """Return the request that asks a target about a prompt."""
        body: dict[str, Any] = {
            "model": target.model,
            "max_tokens": self.num_output_tokens,
            "temperature": 0,
            "stream": True,
            **extras,
        }
        if self.endpoint is Endpoint.COMPLETIONS:
            return target.post("/completions", {**body, "prompt": prompt})
        messages = [{"role": "user", "content": prompt}]
        return target.post("/chat/completions", {**body, "messages": messages})


def _text(rng: random.Random, num_words: int) -> list[str]:
    words: list[str] = []
    while len(words) < num_words:
        words += rng.choice(SENTENCES)
    return words[:num_words]
