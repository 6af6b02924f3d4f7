"""The one place where HTTP requests become engine requests.

`submit` registers the result handler first and adds the request second, so that no output can be
lost; nobody else calls either. Knows every open stream, so that a shutdown can end them. Event
loop only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine import EngineDeadError, EngineStatistics, GenerationOutput, family_ids
from server.completion_stream import CompletionStream
from server.request_record import AnswerRecord, RequestRecord, current_record


class ResolvedLimits(Protocol):
    """The part of the engine's resolved configuration that the server reads."""

    @property
    def max_model_tokens(self) -> int:
        """Prompt and answer together, in tokens."""

    @property
    def scheduler_type(self) -> str:
        """How requests are ordered."""

    @property
    def max_queue_size(self) -> int:
        """Requests that may wait for their first step; 0 is unlimited."""


class Manager(Protocol):
    """The part of `engine.ContinuousBatchingManager` that the server uses."""

    @property
    def resolved_config(self) -> ResolvedLimits:
        """The configuration the engine runs with."""

    @property
    def fatal_error(self) -> BaseException | None:
        """The error that ended the loop, if one did."""

    def statistics(self) -> EngineStatistics:
        """Return what the engine holds at this moment."""

    def warmup(self) -> None:
        """Run once what the first request would otherwise wait for; before `start`."""

    def start(self) -> None:
        """Start the engine thread."""

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        """End the engine thread."""

    def is_running(self) -> bool:
        """Return whether the engine takes requests."""

    def add_request(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        **sampling: Any,
    ) -> str:
        """Hand a request over; raises at once if it cannot be taken."""

    def register_result_handler(
        self, request_id: str, callback: Callable[[GenerationOutput], None]
    ) -> None:
        """Have the outputs of a request delivered to the running event loop."""

    def unregister_result_handler(self, request_id: str) -> None:
        """Forget the handler of a request that was not taken."""

    def cancel_request(self, request_id: str) -> None:
        """End a request early."""


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """What holds for every request that a client makes.

    Attributes:
        isolates_keys: Requests with different keys share no prefixes.
        queue_seconds: How long one may wait for its first step; None is for ever.
        total_seconds: How long one may take from its arrival on; None is for ever.
    """

    isolates_keys: bool = False
    queue_seconds: float | None = None
    total_seconds: float | None = None

    def arguments(self, record: RequestRecord) -> dict[str, Any]:
        """Return the keywords of `add_request` for a request that came as the record says."""
        arguments: dict[str, Any] = {}
        if self.isolates_keys and record.key is not None:
            arguments["salt"] = record.key.digest.hex()
        elapsed = time.perf_counter() - record.arrived
        if self.queue_seconds is not None:
            arguments["queue_seconds"] = max(0.0, self.queue_seconds - elapsed)
        if self.total_seconds is not None:
            arguments["deadline_seconds"] = max(0.0, self.total_seconds - elapsed)
        return arguments


class EngineClient:
    """Submits requests to the engine and keeps their streams."""

    def __init__(
        self,
        manager: Manager,
        arguments: Mapping[str, Any] | None = None,
        policy: RequestPolicy | None = None,
    ) -> None:
        """Use a manager whose life somebody else rules.

        Args:
            manager: The engine's front door.
            arguments: Keywords of `add_request` that every request gets.
            policy: What holds for every request of a client; None asks for nothing.
        """
        self._manager = manager
        self._arguments = dict(arguments or {})
        self._policy = policy or RequestPolicy()
        self._open: set[CompletionStream] = set()
        self._failure: EngineDeadError | None = None

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor been given up."""
        return len(self._open)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine runs and takes requests."""
        manager = self._manager
        return self._failure is None and manager.fatal_error is None and manager.is_running()

    def submit(
        self, request_id: str, input_ids: Sequence[int], arguments: dict[str, Any], count: int = 1
    ) -> list[CompletionStream]:
        """Start a request and return the streams of its answers.

        Args:
            request_id: Unique in the process.
            input_ids: The prompt, which the answers share.
            arguments: Further keywords of `add_request`.
            count: Answers; the first draws with the request's seed, the others with the next ones.

        Raises:
            InvalidRequestError, PromptTooLongError, QueueFullError, EngineStoppingError,
            EngineDeadError: The engine does not take it; nothing is left behind.
        """
        if self._failure is not None:
            raise self._failure
        *others, own = family_ids(request_id, count)
        record = current_record()
        if record is not None:
            assert record.ticket is not None, "a request was not admitted"
            arguments = {**self._policy.arguments(record), **arguments}
        streams = [
            CompletionStream(
                name,
                cancel=self._manager.cancel_request,
                on_end=self._open.discard,
                record=AnswerRecord(len(input_ids)),
            )
            for name in (own, *others)
        ]
        if count > 1:
            arguments = {**arguments, "num_return_sequences": count}
        arguments = {**self._arguments, **arguments}
        for stream in streams:
            self._manager.register_result_handler(stream.request_id, stream.feed)
        try:
            self._manager.add_request(
                list(input_ids), request_id=request_id, streaming=True, **arguments
            )
        except BaseException:
            for stream in streams:
                self._manager.unregister_result_handler(stream.request_id)
            raise
        self._open.update(streams)
        if record is not None and record.ticket is not None:
            record.answers.extend(stream.record for stream in streams)
            record.ticket.use(count)
        return streams

    def refuse_all(self, error: EngineDeadError) -> None:
        """End every open stream with an error, and answer every further request with it."""
        self._failure = error
        self.abort_all(error)

    def accept(self) -> None:
        """Take requests again."""
        self._failure = None

    def abort_all(self, error: BaseException) -> None:
        """End every open stream with an error; its reader gets it at once."""
        for stream in list(self._open):
            stream.fail(error)
