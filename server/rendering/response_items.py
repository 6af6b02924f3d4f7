"""The items of a response while they are being made, and the events that tell of them.

Event loop only.
"""

import json
from collections.abc import Callable, Iterator
from typing import Protocol

from api_schemas import (
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    TokenLogprob,
)
from server.responses.items import make_item_id

MakeEvent = Callable[..., ResponseEvent]


class OpenItem(Protocol):
    """An item that may still grow."""

    def begin(self) -> Iterator[ResponseEvent]:
        """Yield what comes before its content."""

    def add(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[ResponseEvent]:
        """Yield what a piece of its content adds."""

    def end(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """Yield what comes after its content."""

    def item(self, status: ItemStatus) -> OutputItem:
        """Return it as it is now."""


class OpenMessage:
    """What the model says."""

    def __init__(self, event: MakeEvent, index: int) -> None:
        """Start empty.

        Args:
            event: Makes events.
            index: The item's place in the output.
        """
        self._id = make_item_id("message")
        self._event = event
        self._item_place = {"output_index": index}
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._has_part = False

    def begin(self) -> Iterator[ResponseEvent]:
        """Open the item and its only part."""
        item = self.item("in_progress")
        yield self._event("response.output_item.added", item=item, **self._item_place)
        part = self._part()
        self._has_part = True
        yield self._event("response.content_part.added", part=part, **self._place)

    def add(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[ResponseEvent]:
        """Add text."""
        self._texts.append(text)
        self._logprobs += logprobs
        yield self._event(
            "response.output_text.delta", delta=text, logprobs=logprobs, **self._place
        )

    def end(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """Close the text, the part and the item."""
        part = self._part()
        yield self._event(
            "response.output_text.done", text=part.text, logprobs=part.logprobs, **self._place
        )
        yield self._event("response.content_part.done", part=part, **self._place)
        yield self._event("response.output_item.done", item=self.item(status), **self._item_place)

    def item(self, status: ItemStatus) -> OutputMessage:
        """Return the message as it is now."""
        content = [self._part()] if self._has_part else []
        return OutputMessage(
            id=self._id, type="message", role="assistant", status=status, content=content
        )

    def _part(self) -> OutputText:
        return OutputText(
            type="output_text",
            text="".join(self._texts),
            annotations=[],
            logprobs=list(self._logprobs),
        )


class OpenReasoning:
    """What the model thinks."""

    def __init__(self, event: MakeEvent, index: int) -> None:
        """Start empty.

        Args:
            event: Makes events.
            index: The item's place in the output.
        """
        self._id = make_item_id("reasoning")
        self._event = event
        self._item_place = {"output_index": index}
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._texts: list[str] = []

    def begin(self) -> Iterator[ResponseEvent]:
        """Open the item and its only part."""
        item = self.item("in_progress")
        yield self._event("response.output_item.added", item=item, **self._item_place)
        yield self._event("response.content_part.added", part=self._part(), **self._place)

    def add(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[ResponseEvent]:
        """Add text; its log-probabilities are shown nowhere."""
        del logprobs
        self._texts.append(text)
        yield self._event("response.reasoning_text.delta", delta=text, **self._place)

    def end(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """Close the text, the part and the item."""
        part = self._part()
        yield self._event("response.reasoning_text.done", text=part.text, **self._place)
        yield self._event("response.content_part.done", part=part, **self._place)
        yield self._event("response.output_item.done", item=self.item(status), **self._item_place)

    def item(self, status: ItemStatus) -> ReasoningItem:
        """Return the reasoning as it is now."""
        content = [self._part()] if self._texts else []
        return ReasoningItem(
            id=self._id, type="reasoning", status=status, summary=[], content=content
        )

    def _part(self) -> ReasoningText:
        return ReasoningText(type="reasoning_text", text="".join(self._texts))


class OpenCall:
    """A call that the model asks for."""

    def __init__(self, event: MakeEvent, index: int, call_id: str, name: str | None) -> None:
        """Start without arguments.

        Args:
            event: Makes events.
            index: The item's place in the output.
            call_id: What its result will refer to.
            name: The function.
        """
        self._id = make_item_id("function_call")
        self._event = event
        self._item_place = {"output_index": index}
        self._place = {"item_id": self._id, "output_index": index}
        self._call_id = call_id
        self._name = name or ""
        self._arguments: list[str] = []

    def begin(self) -> Iterator[ResponseEvent]:
        """Open the item."""
        item = self.item("in_progress")
        yield self._event("response.output_item.added", item=item, **self._item_place)

    def add(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[ResponseEvent]:
        """Add a piece of the arguments."""
        del logprobs
        self._arguments.append(text)
        yield self._event("response.function_call_arguments.delta", delta=text, **self._place)

    def end(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """Close the arguments and the item."""
        yield self._event(
            "response.function_call_arguments.done",
            name=self._name,
            arguments="".join(self._arguments),
            **self._place,
        )
        yield self._event("response.output_item.done", item=self.item(status), **self._item_place)

    def item(self, status: ItemStatus) -> FunctionCallItem:
        """Return the call as it is now; one that broke off is never complete."""
        arguments = "".join(self._arguments)
        return FunctionCallItem(
            id=self._id,
            type="function_call",
            status="incomplete" if status == "completed" and not _is_json(arguments) else status,
            call_id=self._call_id,
            name=self._name,
            arguments=arguments,
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str)  # as a number, one may have too many digits
    except ValueError:
        return False
    return True
