"""From the text of one answer to the parts of a message, with what belongs to their tokens.

A reader holds back what its parser holds, tokens and log-probabilities included, so that each of
them is sent once and beside a part that it took. An answer that is complete before the model ends
it ends behind the token that completed it, however many tokens have come with that one. Event loop
only.
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
    """Reads one choice.

    Attributes:
        is_complete: Whether the answer has ended here although the model may go on.
    """

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
        self._num_tokens = 0
        self._num_characters = 0
        self._end = 0  # of the latest token, among the characters of the answer
        self.is_complete = False

    def push(self, piece: TextDelta) -> MessageDelta | None:
        """Take a piece of text; return what there is to show of it, if anything."""
        if self.is_complete:
            return None
        pending = self._pending
        parts, num_tokens, self.is_complete = self._parse(piece)
        pending.token_ids += piece.token_ids[:num_tokens]
        pending.logprobs += piece.logprobs[:num_tokens]
        pending.finish_reason, pending.stop_reason = piece.finish_reason, piece.stop_reason
        if self.is_complete:
            pending.finish_reason, pending.stop_reason = FinishReason.STOP, None
        pending.num_cached_tokens = piece.num_cached_tokens
        pending.prompt_logprobs = pending.prompt_logprobs or piece.prompt_logprobs
        pending.parts = join_parts(pending.parts + parts)
        self._has_calls |= any(isinstance(part, CallStart) for part in pending.parts)
        pending.has_calls = self._has_calls
        pending.num_reasoning_tokens = self._count_reasoning(piece.token_ends[:num_tokens])
        if not pending.parts and pending.finish_reason is None:
            return None
        self._pending = MessageDelta()
        return pending

    def _parse(self, piece: TextDelta) -> tuple[list[Part], int, bool]:
        """Return what a piece adds, how many of its tokens it took, and whether that is all."""
        parts: list[Part] = []
        start = num_hidden = 0
        # What was held of an earlier piece's token comes first, and belongs to none of these.
        for num_tokens, end in enumerate((self._end, *piece.token_ends)):
            for hidden in piece.hidden[num_hidden:]:
                if hidden.number > self._num_tokens + num_tokens:
                    break
                parts += self._parser.text(piece.text[start : hidden.place])
                parts += self._parser.special(hidden.text)
                start = hidden.place
                num_hidden += 1
            stop = end - self._num_characters
            if stop > start:
                parts += self._parser.text(piece.text[start:stop])
                start = stop
            if self._parser.is_complete:
                return parts, num_tokens, True
        if start < len(piece.text):
            parts += self._parser.text(piece.text[start:])
        is_complete = self._parser.is_complete
        if piece.finish_reason is not None:
            parts += self._parser.finish()
        self._num_tokens += len(piece.token_ids)
        self._num_characters += len(piece.text)
        self._end = piece.token_ends[-1] if piece.token_ends else self._end
        return parts, len(piece.token_ids), is_complete

    def _count_reasoning(self, token_ends: list[int]) -> int:
        if self._reasoning is not None:
            self._ends += token_ends
            while self._ends and self._ends[0] <= self._reasoning.num_reasoning_characters:
                self._ends.popleft()
                self._num_reasoning += 1
        return self._num_reasoning
