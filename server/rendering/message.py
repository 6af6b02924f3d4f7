"""The parts of a message on the wire: as deltas of a stream, and joined.

Holds the state of one choice. Event loop only.
"""

import secrets
import string
from typing import Any

from api_schemas import CalledFunction, ChatAnswer, ChatDelta, MadeToolCall
from server.message_parts import CallArguments, CallStart, Part, ReasoningPart, TextPart

_ALPHABET = string.ascii_letters + string.digits


def make_call_id(*, short: bool) -> str:
    """Return an id for a call, unique over conversations.

    Args:
        short: Nine characters, as Mistral's templates want them.
    """
    count = 9 if short else 24
    text = "".join(secrets.choice(_ALPHABET) for _ in range(count))
    return text if short else f"call_{text}"


class MessageRenderer:
    """Renders the parts of one choice.

    Attributes:
        has_calls: Whether a function has been called.
    """

    def __init__(self, *, is_legacy: bool, short_ids: bool) -> None:
        """Start with no parts.

        Args:
            is_legacy: Render a call as `function_call`.
            short_ids: Give calls ids of nine characters.
        """
        self._is_legacy = is_legacy
        self._short_ids = short_ids
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of the arguments

    def delta(self, part: Part) -> ChatDelta:
        """Return what a chunk says of a part, and keep it for the whole answer."""
        self.collect(part)
        return self.rendered(part)

    def rendered(self, part: Part) -> ChatDelta:
        """Return what a chunk says of a part."""
        match part:
            case TextPart(text):
                return ChatDelta(content=text)
            case ReasoningPart(text):
                return ChatDelta(reasoning=text, reasoning_content=text)
            case CallStart(index, name):
                function = CalledFunction(name=name, arguments="")
                if self._is_legacy:
                    return ChatDelta(function_call=function)
                call = MadeToolCall(
                    index=index, id=self._calls[index][0], type="function", function=function
                )
                return ChatDelta(tool_calls=[call])
            case CallArguments(index, text):
                function = CalledFunction(arguments=text)
                if self._is_legacy:
                    return ChatDelta(function_call=function)
                return ChatDelta(tool_calls=[MadeToolCall(index=index, function=function)])

    def collect(self, part: Part) -> None:
        """Keep a part for the whole answer."""
        match part:
            case TextPart(text):
                self._texts.append(text)
            case ReasoningPart(text):
                self._reasoning.append(text)
            case CallStart(_, name):
                self._calls.append((make_call_id(short=self._short_ids), name, []))
            case CallArguments(index, text):
                self._calls[index][2].append(text)

    def whole(self) -> ChatAnswer:
        """Return the message that the parts make."""
        text = "".join(self._texts)
        has_content = bool(self._texts) or not self._calls
        fields: dict[str, Any] = {"content": text if has_content else None}
        if self._reasoning:
            reasoning = "".join(self._reasoning)
            fields.update(reasoning=reasoning, reasoning_content=reasoning)
            fields["content"] = text or None
        if self._calls:
            fields.update(self._whole_calls())
        return ChatAnswer(role="assistant", refusal=None, **fields)

    def _whole_calls(self) -> dict[str, Any]:
        functions = [
            CalledFunction(name=name, arguments="".join(pieces)) for _, name, pieces in self._calls
        ]
        if self._is_legacy:
            return {"function_call": functions[0]}
        return {
            "tool_calls": [
                MadeToolCall(id=call[0], type="function", function=function)
                for call, function in zip(self._calls, functions, strict=True)
            ]
        }
