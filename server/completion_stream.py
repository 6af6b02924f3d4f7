"""The tokens of one request, from the engine's loop callbacks to one reader.

    engine thread --call_soon_threadsafe--> feed() -> pending (one slot) -> __anext__ -> reader

The slot holds everything that has come since the reader last looked: a slow reader finds its
tokens merged and costs memory for its tokens only. Event loop only; never blocks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from engine import EngineStoppingError, FinishReason, GenerationOutput, TokenLogprobs
from server.request_errors import RequestCancelledError
from server.request_record import AnswerRecord


@dataclass(slots=True)
class TokenDelta:
    """What has come since the reader last looked.

    Attributes:
        token_ids: New tokens, the closing one included.
        logprobs: One entry per token, or none at all.
        finish_reason: Why the request ended; None while it runs.
        stop_reason: The stop token or stop string that ended it, if one did.
        num_cached_tokens: Prompt tokens found in the cache.
        prompt_logprobs: What the model says of the prompt, if asked for; in the first delta only.
        pooled: The prompt as a vector, if it was asked for; in the last delta.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooled: list[float] | None = None


class CompletionStream:
    """Async iterator over the `TokenDelta`s of one request; at most one reader.

    The iteration ends after the delta that carries a finish reason. `aclose` before that cancels
    the request in the engine; it may be called at any time and any number of times.
    """

    def __init__(
        self,
        request_id: str,
        *,
        cancel: Callable[[str], None],
        on_end: Callable[["CompletionStream"], None],
        record: AnswerRecord | None = None,
    ) -> None:
        """Make an empty stream.

        Args:
            request_id: The engine's id of the request.
            cancel: Asks the engine to end the request.
            on_end: Told once, when the request has ended or been given up.
            record: Takes note of what comes.
        """
        self.record = record or AnswerRecord(0)
        self.request_id = request_id
        self._cancel = cancel
        self._on_end = on_end
        self._pending: TokenDelta | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._has_tokens = False
        self._closed = False
        self._arrived = asyncio.Event()

    def feed(self, output: GenerationOutput) -> None:
        """Take an output of the engine; called on the event loop."""
        if self._ended:
            return
        self.record.note(output)
        if self._pending is None:
            self._pending = TokenDelta()
        pending = self._pending
        pending.token_ids.extend(output.new_tokens)
        pending.logprobs.extend(output.new_logprobs)
        pending.num_cached_tokens = output.num_cached_tokens
        if not self._has_tokens and output.new_tokens:
            self._has_tokens = True
            pending.prompt_logprobs = output.prompt_logprobs
        pending.pooled = output.pooled
        if output.is_finished():
            self._take_ending(output, pending)
        self._arrived.set()

    def _take_ending(self, output: GenerationOutput, pending: TokenDelta) -> None:
        """Note how the request ended; anything but stop and length is an error to the reader."""
        self._end()
        if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            pending.finish_reason = output.finish_reason
            pending.stop_reason = output.stop_reason
            return
        self._error = output.exception or EngineStoppingError("the engine cancelled the request")

    def fail(self, error: BaseException) -> None:
        """End the stream with an error and cancel the request, if it still runs.

        Somebody who wants no more of it is no failure of the server.
        """
        if self._ended:
            return
        self._error = error
        self.record.end("cancelled" if isinstance(error, RequestCancelledError) else "error")
        self._end()
        self._cancel(self.request_id)
        self._arrived.set()

    def _end(self) -> None:
        self._ended = True
        self._on_end(self)

    def __aiter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> TokenDelta:
        """Wait for new tokens; raises the error that ended the request, after its last tokens."""
        while not self._closed:
            if self._pending is not None and self._pending.token_ids:
                return self._take_pending()
            if self._error is not None:
                raise self._error
            if self._pending is not None and self._pending.finish_reason is not None:
                return self._take_pending()
            if self._ended:
                break
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration

    def _take_pending(self) -> TokenDelta:
        """Empty the slot."""
        delta = self._pending
        assert delta is not None
        self._pending = None
        return delta

    def close(self, *, stopped: bool = False) -> None:
        """Give the request up: cancel it if it runs. Idempotent, never waits.

        Args:
            stopped: A stop string has ended the answer, however far the engine has come.
        """
        if self._closed:
            return
        self._closed = True
        self._pending = None
        if stopped:
            self.record.outcome = "stop"
        if not self._ended:
            self.record.end("cancelled")
            self._end()
            self._cancel(self.request_id)
        self._arrived.set()

    async def aclose(self) -> None:
        """Do what `close` does, for those who expect an async generator."""
        self.close()
