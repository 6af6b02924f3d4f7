"""gpt-oss: every message has a channel, a call has a recipient; special tokens stand between.

    <|channel|>analysis<|message|>Hm.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>Yes.<|return|>

One answer may hold several messages, so this is a whole parser and no mere format of calls.
"""

import re
from enum import Enum

from server.message_parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from server.tools.call_parser import CallRules
from server.tools.calls import check_object

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
        self._rules = rules
        self._shows_reasoning = shows_reasoning
        self._kind = _Kind.TEXT  # a model that writes no header writes content
        self._header = ""
        self._body: list[str] = []
        self._name = ""
        self._num_calls = 0
        self._num_characters = 0
        self.num_reasoning_characters = 0

    def text(self, text: str) -> list[Part]:
        """See `MessageParser.text`."""
        if not text or self._is_over():
            return []
        self._num_characters += len(text)
        match self._kind:
            case _Kind.HEADER:
                self._header += text
            case _Kind.CALL:
                self._body.append(text)
            case _Kind.REASONING:
                self.num_reasoning_characters = self._num_characters
                return [ReasoningPart(text)] if self._shows_reasoning else []
            case _Kind.TEXT:
                return [TextPart(text)]
        return []

    def special(self, text: str) -> list[Part]:
        """See `MessageParser.special`."""
        if text == _MESSAGE:
            self._begin()
            return []
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

    def _is_over(self) -> bool:
        return self._rules.is_single and self._num_calls > 0

    def _begin(self) -> None:
        """Read the header: whom the message is for, or else its channel."""
        recipient = _RECIPIENT.search(self._header)
        if recipient is not None and recipient[1] in self._rules.functions:
            self._kind, self._name, self._body = _Kind.CALL, recipient[1], []
        elif "analysis" in self._header:
            self._kind = _Kind.REASONING
        else:
            self._kind = _Kind.TEXT

    def _end(self) -> list[Part]:
        """Close the message; one to a function is a call if it is a JSON object, else content."""
        if self._kind is not _Kind.CALL:
            return []
        self._kind = _Kind.HEADER
        body, self._body = "".join(self._body), []
        try:
            arguments = check_object(body)
        except (ValueError, RecursionError):
            return [TextPart(body)] if body else []
        index, self._num_calls = self._num_calls, self._num_calls + 1
        return [CallStart(index, self._name), CallArguments(index, arguments)]
