"""From the chunks of a chat to the events and the objects of the Responses API.

One item is open at a time: what the model thinks, what it says, or a call. An item of another kind
closes it. The whole response is what the events have made, so that both are the same. Event loop
only.
"""

import time
from collections.abc import Iterator
from typing import Any

from api_schemas import (
    ChatChunkChoice,
    ErrorObject,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseStatus,
    ResponseUsage,
    TokenLogprob,
    Usage,
)
from server.rendering.response_items import OpenCall, OpenItem, OpenMessage, OpenReasoning


class ResponseRenderer:
    """Renders one response."""

    def __init__(self, head: dict[str, Any], *, background: bool) -> None:
        """Start with nothing said.

        Args:
            head: The fields of `Response` that the request decides.
            background: Whether nobody may be there to read it.
        """
        self._head = head
        self._changing: dict[str, Any] = {
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        self.status: ResponseStatus = "queued" if background else "in_progress"
        self._items: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._num_events = 0
        self._finish_reason: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing can come any more."""
        return self.status not in ("queued", "in_progress")

    def whole(self) -> Response:
        """Return the response as it is now."""
        return Response(
            object="response",
            status=self.status,
            output=list(self._items),
            **self._head,
            **self._changing,
        )

    def opening(self) -> Iterator[ResponseEvent]:
        """Yield what comes before the model has said anything."""
        yield self._event("response.created", response=self.whole())
        if self.status == "queued":
            yield self._event("response.queued", response=self.whole())
            self.status = "in_progress"
        yield self._event("response.in_progress", response=self.whole())

    def events(self, choice: ChatChunkChoice) -> Iterator[ResponseEvent]:
        """Yield what a chunk adds."""
        delta = choice.delta
        if delta.reasoning:
            yield from self._say(OpenReasoning, delta.reasoning, [])
        entries = list(choice.logprobs.content) if choice.logprobs is not None else []
        adds = entries and not delta.tool_calls and isinstance(self._open, OpenMessage)
        if delta.content or adds:
            # A closing token may have no text, and yet its entry.
            yield from self._say(OpenMessage, delta.content or "", entries)
        for call in delta.tool_calls or ():
            if call.id is not None:
                yield from self._close("completed")
                self._open = OpenCall(self._event, len(self._items), call.id, call.function.name)
                yield from self._open.begin()
            if isinstance(self._open, OpenCall) and call.function.arguments:
                yield from self._open.add(call.function.arguments, [])
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason

    def closing(self, usage: Usage) -> Iterator[ResponseEvent]:
        """Yield what comes after the last chunk."""
        incomplete = {"length": "max_output_tokens", "content_filter": "content_filter"}
        reason = incomplete.get(self._finish_reason or "")
        self._count(usage)
        yield from self._close("completed" if reason is None else "incomplete")
        if reason is None:
            self._end("completed")
            yield self._event("response.completed", response=self.whole())
            return
        self._changing["incomplete_details"] = IncompleteDetails.model_validate({"reason": reason})
        self._end("incomplete")
        yield self._event("response.incomplete", response=self.whole())

    def failure(self, error: ErrorObject, usage: Usage) -> Iterator[ResponseEvent]:
        """Yield what comes after an error."""
        self._count(usage)
        yield from self._close("incomplete")
        code = error.code or "server_error"
        self._changing["error"] = ResponseError(code=code, message=error.message)
        self._end("failed")
        yield self._event("response.failed", response=self.whole())

    def cancellation(self, error: ErrorObject, usage: Usage) -> Iterator[ResponseEvent]:
        """Yield what comes after somebody has ended the response; clients know no event for it."""
        self._count(usage)
        yield from self._close("incomplete")
        self._end("cancelled")
        yield self._event("error", code=error.code, message=error.message, param=None)

    def _say(
        self, kind: type[OpenMessage] | type[OpenReasoning], text: str, logprobs: list[TokenLogprob]
    ) -> Iterator[ResponseEvent]:
        """Add text to the open item; one of another kind is closed first."""
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            self._open = kind(self._event, len(self._items))
            yield from self._open.begin()
        yield from self._open.add(text, logprobs)

    def _close(self, status: Any) -> Iterator[ResponseEvent]:
        """End the open item, if there is one."""
        if self._open is not None:
            yield from self._open.end(status)
            self._items.append(self._open.item(status))
            self._open = None

    def _count(self, usage: Usage) -> None:
        self._changing["usage"] = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=usage.completion_tokens_details.reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )

    def _end(self, status: ResponseStatus) -> None:
        self.status = status
        if status == "completed":
            self._changing["completed_at"] = int(time.time())

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        event = ResponseEvent(type=kind, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return event
