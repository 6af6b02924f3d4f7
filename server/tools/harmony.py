"""gpt-oss: every message has a channel, a call has a recipient; special tokens stand between.

    <|channel|>analysis<|message|>Hm.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>Yes.<|return|>

One answer may hold several messages, so this is a whole parser and no mere format of calls. What is
no part of a call that was told of is content, as in other formats.
"""

import re
from enum import Enum

from server.message_parts import Part, ReasoningPart, TextPart, join_parts
from server.tools.blocks import BlockState, ObjectBlock
from server.tools.call_parser import CallNumbers, CallRules

NAME = "harmony"
SIGN = "<|channel|>"

_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")
_OPENERS = ("<|start|>", "<|channel|>", "<|constrain|>")
_MESSAGE = "<|message|>"
_CLOSERS = ("<|end|>", "<|call|>", "<|return|>")


class _Kind(Enum):
    HEADER = "what stands before a message"
    REASONING = "the channel analysis"
    TEXT = "any other channel"
    CALL = "a message to a function"
    CALLED = "what follows the arguments in one"


class HarmonyParser:
    """Cuts one answer into reasoning, content and calls; a `MessageParser`.

    Attributes:
        num_reasoning_characters: Visible characters up to the end of the last reasoning.
    """

    def __init__(self, rules: CallRules, *, shows_reasoning: bool) -> None:
        """Start where the prompt has opened a message and left its header to the model.

        Args:
            rules: What is wanted of calls.
            shows_reasoning: Whether the reasoning is part of the answer.
        """
        self._functions = rules.functions
        self._numbers = CallNumbers(is_single=rules.is_single)
        self._is_over = False
        self._shows_reasoning = shows_reasoning
        self._kind = _Kind.TEXT  # a model that writes no header writes content
        self._header = ""
        self._arguments = ObjectBlock("", {})
        self._body: list[str] = []  # of a message to a function, while it may be no call
        self._num_characters = 0
        self.num_reasoning_characters = 0

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        self._num_characters += len(text)
        return join_parts(self._parts(text))

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        if text == _MESSAGE:
            parts = self._end()
            self._begin()
            return parts
        if text in _OPENERS or text in _CLOSERS:
            parts = self._end()
            if text == "<|start|>" or self._kind is not _Kind.HEADER:
                self._header = ""
            self._header += " "  # a name ends where a marker stands
            self._kind = _Kind.HEADER
            return parts
        return []

    def finish(self) -> list[Part]:
        """See `MessageParser.finish`."""
        return self._end()

    @property
    def is_complete(self) -> bool:
        """See `MessageParser.is_complete`."""
        return self._is_over

    def _begin(self) -> None:
        """Read the header: whom the message is for, or else its channel."""
        recipient = _RECIPIENT.search(self._header)
        if recipient is not None and recipient[1] in self._functions:
            self._kind, self._body = _Kind.CALL, []
            self._arguments = ObjectBlock(recipient[1], self._functions)
        elif "analysis" in self._header:
            self._kind = _Kind.REASONING
        else:
            self._kind = _Kind.TEXT

    def _parts(self, text: str) -> list[Part]:
        """Return what a piece of text is, by the message that it stands in."""
        if not text or self._is_over:
            return []
        match self._kind:
            case _Kind.HEADER:
                self._header += text
            case _Kind.CALL:
                return self._call(text)
            case _Kind.CALLED:
                return self._behind_call(text)
            case _Kind.REASONING:
                self.num_reasoning_characters = self._num_characters
                return [ReasoningPart(text)] if self._shows_reasoning else []
            case _Kind.TEXT:
                return [TextPart(text)]
        return []

    def _call(self, text: str) -> list[Part]:
        """Pass arguments on, and take what follows them for what it is."""
        parts: list[Part] = []
        place = 0
        while place < len(text) and self._kind is _Kind.CALL:
            run = self._arguments.run(text, place)
            parts += self._numbers.more(run) if run else self._argument(text[place])
            place += len(run) or 1
        return [*parts, *self._parts(text[place:])]

    def _argument(self, character: str) -> list[Part]:
        """Take one character; from the first wrong one on all is content."""
        step = self._arguments.feed(character)
        parts = self._numbers.parts(step)
        self._is_over = self._numbers.is_over(step.state)
        if step.state is BlockState.HELD:
            self._body.append(character)
            return parts
        body, self._body = "".join(self._body), []
        if step.state is BlockState.DONE:
            self._kind = _Kind.CALLED
        elif step.state is BlockState.FAILED:
            self._kind = _Kind.TEXT
            return [*parts, *self._parts(body + character)]
        return parts

    def _behind_call(self, text: str) -> list[Part]:
        """Take what follows a call in its message, but for blanks, for content."""
        text = text.lstrip()
        if not text:
            return []
        self._kind = _Kind.TEXT
        return [TextPart(text)]

    def _end(self) -> list[Part]:
        """Close the message; what is held of one to a function is content."""
        if self._kind is not _Kind.CALL:
            return []
        self._kind, self._header = _Kind.HEADER, ""
        self._is_over = self._numbers.is_over(BlockState.FAILED)
        body, self._body = "".join(self._body), []
        return [TextPart(body)] if body else []
