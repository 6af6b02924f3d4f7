"""What is known of one HTTP request while it is answered, for its end: log, metrics, trace.

`RequestTracking` makes a record where the request comes in; whoever runs on its task or in tasks
made from there finds it with `current_record`. The engine's requests report to it, so that no route
has to. It never holds text of prompts or answers. Event loop only.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from engine import FinishReason, GenerationOutput
from server.keys import Key

_CURRENT: ContextVar["RequestRecord | None"] = ContextVar("request_record", default=None)


@dataclass(slots=True)
class AnswerRecord:
    """One request of the engine: a choice of an answer.

    Attributes:
        num_prompt_tokens: Length of its prompt.
        submitted: When it was handed over; all times are `time.perf_counter`.
        started: When its first step was scheduled; None before.
        first_token: When its first token came; None before.
        last_token: When its latest token came.
        ended: When it ended; None before.
        num_tokens: Tokens so far.
        num_cached_tokens: Prompt tokens found in the cache.
        num_preemptions: How often its blocks were taken.
        outcome: "stop", "length", "cancelled" or "error"; None while it runs.
    """

    num_prompt_tokens: int
    submitted: float = field(default_factory=time.perf_counter)
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    outcome: str | None = None

    def note(self, output: GenerationOutput) -> None:
        """Take what an output of the engine tells."""
        now = time.perf_counter()
        started = output.lifespan[0]
        if self.started is None and started >= 0:
            self.started = started
        if output.new_tokens:
            self.first_token = self.first_token or now
            self.last_token = now
            self.num_tokens += len(output.new_tokens)
        self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = output.num_preemptions
        if output.is_finished():
            reason = output.finish_reason or FinishReason.ERROR
            self.end(reason.value)

    def end(self, outcome: str) -> None:
        """Note how it ended; only the first time counts."""
        self.outcome = self.outcome or outcome
        self.ended = self.ended or time.perf_counter()


class Ticket:
    """Places in the queue that a request was admitted with.

    Attributes:
        num_unused: Places that it has not taken in the engine's own queue.
        is_kept: Whether its requests of the engine take their turns in these places, and none
            there.
    """

    def __init__(
        self, num_places: int, on_use: Callable[[int], None], *, is_kept: bool = False
    ) -> None:
        """Hold places.

        Args:
            num_places: How many.
            on_use: Told of each that is used or given back.
            is_kept: Whether they stay when they are used, for further requests of the engine, which
                take no places of its queue.
        """
        self.num_unused = num_places
        self._on_use = on_use
        self.is_kept = is_kept

    def use(self, num_places: int) -> None:
        """Note that places were taken in the engine's queue."""
        if not self.is_kept:
            self._give(min(num_places, self.num_unused))

    def release(self) -> None:
        """Give back what was not used; may be called again."""
        self._give(self.num_unused)

    def _give(self, num_places: int) -> None:
        self.num_unused -= num_places
        self._on_use(num_places)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One HTTP request.

    Attributes:
        request_id: The label in X-Request-Id.
        method: Its method.
        path: Its path, normalised.
        key: Whose key it came with, if it needed one.
        arrived: When it came (`time.perf_counter`).
        traceparent: What it says of the trace that it belongs to.
        status: Of the answer; 0 until it begins.
        answers: The engine's requests that were made for it.
        ticket: Its places in the queue; None until it is admitted.
        is_over: Whether it has been answered, and nothing of it goes on in the background.
    """

    request_id: str
    method: str
    path: str
    key: Key | None = None
    arrived: float = field(default_factory=time.perf_counter)
    traceparent: str = ""
    status: int = 0
    answers: list[AnswerRecord] = field(default_factory=list)
    ticket: Ticket | None = None
    is_over: bool = False
    _num_holders: int = 1
    _on_over: list[Callable[[], None]] = field(default_factory=list)

    def hold(self) -> None:
        """Let something of the request go on when it has been answered."""
        self._num_holders += 1

    def release(self) -> None:
        """Note that the request has been answered, or that what held it has ended."""
        self._num_holders -= 1
        if self._num_holders == 0:
            self.is_over = True
            for tell in self._on_over:
                tell()

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call a function when the request is over."""
        self._on_over.append(tell)

    @property
    def key_name(self) -> str:
        """The name of its key; empty without one."""
        return self.key.name if self.key is not None else ""

    @property
    def num_waiting(self) -> int:
        """Places that it takes in the queue, here or in the engine."""
        unused = 0 if self.ticket is None else self.ticket.num_unused
        if self.ticket is not None and self.ticket.is_kept:
            return unused
        return unused + sum(a.started is None and a.outcome is None for a in self.answers)

    @property
    def outcome(self) -> str:
        """How it ended: completed, cancelled or failed."""
        outcomes = {answer.outcome or "cancelled" for answer in self.answers}
        if "error" in outcomes:
            return "failed"
        if "cancelled" in outcomes or self.status == 0:
            return "cancelled"
        return "failed" if self.status >= 400 else "completed"


def current_record() -> RequestRecord | None:
    """Return the record of the request that is being answered here, if there is one.

    What goes on after its request has ended, as batches do, belongs to none.
    """
    record = _CURRENT.get()
    return None if record is None or record.is_over else record


def set_current_record(record: RequestRecord) -> None:
    """Let the running task, and those it makes, belong to a request."""
    _CURRENT.set(record)
