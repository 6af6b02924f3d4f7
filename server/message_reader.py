"""From the text of one answer to the parts of a message, with what belongs to their tokens.

A reader holds back what its parser holds, tokens and log-probabilities included, so that each of
them is sent once and beside a part that it took. Event loop only.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from api_schemas import FinishReason
from engine import TokenLogprobs
from server.message_parts import CallArguments, CallStart, MessageParser, Part, TextPart, join_parts
from server.text_stream import TextDelta


@dataclass(slots=True)
class MessageDelta:
    """What a piece of text adds to a message.

    Attributes:
        parts: May be empty in the last one only.
        token_ids: The tokens that they took.
        logprobs: One entry per token, or none at all.
        finish_reason: Why the answer ended; in the last one only.
        stop_reason: The stop string or stop token id that ended it.
        num_cached_tokens: Prompt tokens found in the cache.
        prompt_logprobs: What the model says of the prompt, if asked for; in the first one only.
        num_reasoning_tokens: Tokens of the answer so far that are reasoning.
        has_calls: Whether the answer so far calls a function.
    """

    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_reasoning_tokens: int = 0
    has_calls: bool = False

    @property
    def lone_piece(self) -> TextPart | CallArguments | None:
        """The piece of text, or of arguments, if it is all there is; else None."""
        if self.finish_reason is None and len(self.parts) == 1:
            part = self.parts[0]
            return part if isinstance(part, TextPart | CallArguments) else None
        return None


class CountsReasoning(Protocol):
    """A parser that knows how far the reasoning reaches."""

    @property
    def num_reasoning_characters(self) -> int:
        """Visible characters up to the end of the reasoning, or so far."""


class MessageReader:
    """Reads one choice."""

    def __init__(self, parser: MessageParser, reasoning: CountsReasoning | None = None) -> None:
        """Start before the first character.

        Args:
            parser: Cuts the text into parts.
            reasoning: The parser, if it is one that knows reasoning.
        """
        self._parser = parser
        self._reasoning = reasoning
        self._ends: deque[int] = deque()  # of tokens that may be reasoning
        self._num_reasoning = 0
        self._has_calls = False
        self._pending = MessageDelta()

    def push(self, piece: TextDelta) -> MessageDelta | None:
        """Take a piece of text; return what there is to show of it, if anything."""
        pending = self._pending
        pending.token_ids += piece.token_ids
        pending.logprobs += piece.logprobs
        pending.finish_reason, pending.stop_reason = piece.finish_reason, piece.stop_reason
        pending.num_cached_tokens = piece.num_cached_tokens
        pending.prompt_logprobs = pending.prompt_logprobs or piece.prompt_logprobs
        pending.parts = join_parts(pending.parts + self._parse(piece))
        self._has_calls |= any(isinstance(part, CallStart) for part in pending.parts)
        pending.has_calls = self._has_calls
        pending.num_reasoning_tokens = self._count_reasoning(piece)
        if not pending.parts and piece.finish_reason is None:
            return None
        self._pending = MessageDelta()
        return pending

    def _parse(self, piece: TextDelta) -> list[Part]:
        parts: list[Part] = []
        start = 0
        for place, special in piece.hidden:
            parts += self._parser.text(piece.text[start:place])
            parts += self._parser.special(special)
            start = place
        parts += self._parser.text(piece.text[start:])
        if piece.finish_reason is not None:
            parts += self._parser.finish()
        return parts

    def _count_reasoning(self, piece: TextDelta) -> int:
        if self._reasoning is not None:
            self._ends += piece.token_ends
            while self._ends and self._ends[0] <= self._reasoning.num_reasoning_characters:
                self._ends.popleft()
                self._num_reasoning += 1
        return self._num_reasoning
