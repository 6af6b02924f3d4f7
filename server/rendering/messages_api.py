"""From the chunks of a chat to the events and the objects of the Messages API.

One block is open at a time; text, thinking and calls follow one another. The whole message is what
the events have made. Event loop only.
"""

from collections.abc import Iterator
from typing import Any

from api_schemas import (
    AnthropicError,
    BlockDelta,
    ChatChunkChoice,
    ContentBlock,
    MadeToolCall,
    Message,
    MessageEnding,
    MessageEvent,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
    load_json_text,
)

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageRenderer:
    """Renders one message."""

    def __init__(self, message_id: str, model: str, *, splits_cached: bool) -> None:
        """Start with nothing said.

        Args:
            message_id: The message's id.
            model: The name that the client asked for.
            splits_cached: Whether cached tokens are counted apart from the others.
        """
        self._head: dict[str, Any] = {"id": message_id, "model": model}
        self._splits_cached = splits_cached
        self._usage: MessageUsage | None = None
        self._blocks: list[ContentBlock] = []
        self._open: ContentBlock | None = None
        self._texts: list[str] = []
        self._has_calls = False
        self._ending = MessageEnding(stop_reason="end_turn", stop_sequence=None)

    def opening(self, usage: Usage) -> Iterator[MessageEvent]:
        """Yield what comes before the model has said anything, once the prompt is counted."""
        self._count(usage)
        yield MessageEvent(type="message_start", message=self._message(None, None))

    def events(self, choice: ChatChunkChoice) -> Iterator[MessageEvent]:
        """Yield what a chunk adds."""
        delta = choice.delta
        if delta.reasoning:
            thought = ThinkingBlock(type="thinking", thinking="", signature="")
            yield from self._say(
                thought, BlockDelta(type="thinking_delta", thinking=delta.reasoning)
            )
            self._texts.append(delta.reasoning)
        if delta.content:
            block = TextBlock(type="text", text="")
            yield from self._say(block, BlockDelta(type="text_delta", text=delta.content))
            self._texts.append(delta.content)
        for call in delta.tool_calls or ():
            yield from self._call(call)
        if choice.finish_reason is not None:
            self._end(choice)

    def closing(self, usage: Usage) -> Iterator[MessageEvent]:
        """Yield what comes after the last chunk."""
        yield from self._close()
        self._count(usage)
        yield MessageEvent(type="message_delta", delta=self._ending, usage=self._usage)
        yield MessageEvent(type="message_stop")

    def failure(self, kind: str, text: str) -> MessageEvent:
        """Return what comes after an error; nothing follows it."""
        return MessageEvent(type="error", error=AnthropicError(type=kind, message=text))

    def whole(self) -> Message:
        """Return the whole message."""
        return self._message(self._ending.stop_reason, self._ending.stop_sequence)

    def _say(self, block: TextBlock | ThinkingBlock, delta: BlockDelta) -> Iterator[MessageEvent]:
        """Add a piece to the open block; one of another kind is closed first."""
        if type(self._open) is not type(block):
            yield from self._start(block)
        yield self._block_event("content_block_delta", delta=delta)

    def _call(self, call: MadeToolCall) -> Iterator[MessageEvent]:
        """Begin a call, or add to its input."""
        if call.id is not None:
            self._has_calls = True
            block = ToolUseBlock(
                type="tool_use", id=call.id, name=call.function.name or "", input={}
            )
            yield from self._start(block)
        if call.function.arguments:
            self._texts.append(call.function.arguments)
            delta = BlockDelta(type="input_json_delta", partial_json=call.function.arguments)
            yield self._block_event("content_block_delta", delta=delta)

    def _start(self, block: ContentBlock) -> Iterator[MessageEvent]:
        yield from self._close()
        self._open = block
        yield self._block_event("content_block_start", content_block=block)

    def _close(self) -> Iterator[MessageEvent]:
        """End the open block, if there is one."""
        if self._open is None:
            return
        yield self._block_event("content_block_stop")
        self._blocks.append(_finished(self._open, "".join(self._texts)))
        self._open = None
        self._texts = []

    def _block_event(self, kind: str, **fields: Any) -> MessageEvent:
        return MessageEvent(type=kind, index=len(self._blocks), **fields)

    def _end(self, choice: ChatChunkChoice) -> None:
        """Note why the answer ended."""
        assert choice.finish_reason is not None
        reason = STOP_REASONS.get(choice.finish_reason.value, "end_turn")
        match = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        if self._has_calls and reason == "end_turn":
            reason = "tool_use"
        if match is not None:
            reason = "stop_sequence"
        self._ending = MessageEnding(stop_reason=reason, stop_sequence=match)

    def _count(self, usage: Usage) -> None:
        cached = usage.prompt_tokens_details.cached_tokens if self._splits_cached else 0
        self._usage = MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )

    def _message(self, stop_reason: Any, stop_sequence: str | None) -> Message:
        assert self._usage is not None
        return Message(
            type="message",
            role="assistant",
            content=list(self._blocks),
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=self._usage,
            **self._head,
        )


def _finished(block: ContentBlock, text: str) -> ContentBlock:
    """Return a block with its whole content."""
    if isinstance(block, TextBlock):
        return TextBlock(type="text", text=text)
    if isinstance(block, ThinkingBlock):
        return ThinkingBlock(type="thinking", thinking=text, signature="")
    return ToolUseBlock(type="tool_use", id=block.id, name=block.name, input=_parse_input(text))


def _parse_input(text: str) -> dict[str, Any]:
    """Return a call's input; one that was cut off cannot be read, and is empty."""
    try:
        parsed = load_json_text(text or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
