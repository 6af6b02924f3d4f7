"""What a client saw of one request."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.load.event_stream import EventParser

# Where an event has text: in a completion, and in the three places of a chat.
CHAT_TEXTS = ("content", "reasoning_content", "reasoning")
MAX_DETAIL_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, from its start to its end; times are those of `time.perf_counter`.

    Attributes:
        start_seconds: When it was due.
        arrivals: When each piece of text came, in seconds.
        end_seconds: When it was over.
        num_output_tokens: Tokens of the answer as the server counted them, or pieces of text.
        num_prompt_tokens: Tokens of the prompt, where the server counted them; otherwise 0.
        error: Kind of failure; empty when the answer came whole.
        detail: What the server said about the failure.
    """

    start_seconds: float
    arrivals: tuple[float, ...]
    end_seconds: float
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0
    error: str = ""
    detail: str = ""

    @property
    def first_text_seconds(self) -> float:
        """Time until the first text; there must be one."""
        return self.arrivals[0] - self.start_seconds

    @property
    def gaps_seconds(self) -> list[float]:
        """Times between one piece of text and the next."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def pace_seconds(self) -> float:
        """Mean time per token after the first; 0 for an answer of one token."""
        spent = self.arrivals[-1] - self.arrivals[0]
        return spent / max(self.num_output_tokens - 1, 1)


class Answer:
    """Takes an answer as it arrives and makes an `Outcome` of it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parser = EventParser()
        self._arrivals: list[float] = []
        self._usage: Mapping[str, Any] = {}
        self._is_whole = False
        self._error = ""
        self._detail = ""
        self._refusal = b""

    def receive(self, status: int, data: bytes, seconds: float) -> None:
        """Take a piece of the body that arrived then."""
        if status != 200:
            self._refusal += data
            return
        for event in self._parser.feed(data):
            if event == b"[DONE]":
                self._is_whole = True
            else:
                self._take(event, seconds)

    def fail(self, kind: str, detail: str = "") -> None:
        """Note that it failed; the first failure stands."""
        if not self._error:
            self._error, self._detail = kind, detail[:MAX_DETAIL_CHARACTERS]

    def finish(self, status: int) -> None:
        """Note that the server has nothing more to say."""
        if status != 200:
            self.fail(f"HTTP {status}", self._refusal.decode(errors="replace"))
        elif not self._is_whole:
            self.fail("cut short", "neither a finish reason nor [DONE] came")
        elif not self._arrivals:
            self.fail("no text")

    def outcome(self, start_seconds: float, end_seconds: float) -> Outcome:
        """Return what became of it."""
        return Outcome(
            start_seconds,
            tuple(self._arrivals),
            end_seconds,
            self._usage.get("completion_tokens") or len(self._arrivals),
            self._usage.get("prompt_tokens") or 0,
            self._error,
            self._detail,
        )

    def _take(self, event: bytes, seconds: float) -> None:
        try:
            body = json.loads(event)
            if body.get("error"):
                self.fail("error event", json.dumps(body["error"]))
                return
            self._usage = body.get("usage") or self._usage
            choices = body.get("choices") or ()
            has_text = any(_has_text(choice) for choice in choices)
            has_ended = any(choice.get("finish_reason") for choice in choices)
        except (ValueError, AttributeError, TypeError):
            self.fail("malformed event", event.decode(errors="replace"))
            return
        if has_text:
            self._arrivals.append(seconds)
        self._is_whole |= has_ended


def _has_text(choice: Mapping[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in CHAT_TEXTS)
