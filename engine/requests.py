"""A request and what comes out of it.

`GenerationOutput` is what callers receive; `RequestStatus` and `FinishReason` are its enums.
`RequestState` is the engine's own record of a request: only the engine thread touches one after
it has been handed over, and only `Scheduler.update` and `Scheduler.preempt` change it.

    prompt_ids            generated tokens (append-only)
    |0 1 2 3 4 5|         |6 7 8|
     <---- num_computed ---->          positions whose keys and values are in the cache
     <-------- num_tokens ------->     num_computed catches up with num_tokens; then one is sampled
"""

import time
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum, IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.drafting import Drafting
from engine.errors import DeadlineExceededError, EngineError, QueueTimeoutError
from engine.pooling import PooledStates, Pooling
from engine.sampling.parameters import SamplingParams


class RequestStatus(IntEnum):
    """Where a request is in its life; FINISHED and above are terminal."""

    PENDING = 0
    PREFILLING = 1
    DECODING = 2
    FINISHED = 3
    FAILED = 4
    CANCELLED = 5


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one generated position, from the model's own distribution.

    They are log-softmax of the raw logits in fp32: before temperature, penalties, bias and masks.

    Attributes:
        token_id: The token that was taken.
        logprob: Its log-probability, in nats.
        top: The most likely tokens and their log-probabilities, most likely first.
        rank: Its place among all tokens, 1 for the most likely; None if it was not looked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None


class GenerationOutput:
    """What a request has produced up to one moment; later steps never change it.

    The documented fields are cumulative. They are views on append-only lists, cut when read, so
    that a stream of n tokens costs O(n) and not O(n squared). The delta fields hold what is new
    since the request's previous output.

    Attributes:
        request_id: The request's id.
        status: The request's status at this moment.
        num_preemptions: How often its blocks were taken and recomputed.
        is_last: What `is_finished` returns.
    """

    __slots__ = (
        "_num_before", "_num_generated", "_state",
        "is_last", "num_preemptions", "request_id", "status",
    )  # fmt: skip

    def __init__(self, state: "RequestState", num_before: int, is_last: bool) -> None:
        """Take a snapshot of a request.

        Args:
            state: The request.
            num_before: Generated tokens that its earlier outputs have carried.
            is_last: Whether the request has ended.
        """
        # One of these is made for each streamed token: few assignments, the rest when it is read.
        self._state = state
        self._num_before = num_before
        self._num_generated = len(state.generated_tokens)
        self.is_last = is_last
        self.request_id = state.request_id
        self.status = state.status
        self.num_preemptions = state.num_preemptions

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the request, or None."""
        return self._state.exception if self.is_last else None

    @property
    def error(self) -> str | None:
        """Text of the error that ended the request, or None."""
        return None if self.exception is None else str(self.exception)

    @property
    def created_time(self) -> float:
        """When the request was added (`time.perf_counter`), in seconds."""
        return self._state.created_time

    @property
    def lifespan(self) -> tuple[float, float]:
        """When it was first scheduled and when it ended, in the same clock; -1 if not yet."""
        return self._state.lifespan if self.is_last else (self._state.lifespan[0], -1.0)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        return self._state.finish_reason if self.is_last else None

    @property
    def stop_reason(self) -> int | str | None:
        """What ended it: one of stop_token_ids or of stop_strings, or None."""
        return self._state.stop_reason if self.is_last else None

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose keys and values came from the prefix cache."""
        return self._state.num_cached_tokens

    @property
    def new_tokens(self) -> list[int]:
        """Tokens since the previous output, at most all of them."""
        return self._state.generated_tokens[self._num_before : self._num_generated]

    @property
    def new_logprobs(self) -> list[TokenLogprobs]:
        """`TokenLogprobs` of new_tokens; empty unless top_logprobs was asked for."""
        return self._state.token_logprobs[self._num_before : self._num_generated]

    @property
    def pooled(self) -> list[float] | None:
        """The prompt as a vector, [H] floats; None unless asked for, and before the end."""
        return self._state.pooled_vector() if self.is_last else None

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's token ids."""
        return self._state.prompt_ids.copy()

    @property
    def generated_tokens(self) -> list[int]:
        """All tokens generated up to this output, the end-of-sequence token included."""
        return self._state.generated_tokens[: self._num_generated]

    @property
    def logprobs(self) -> list[float]:
        """Log-probability of each generated token; [] unless return_logprobs is configured."""
        return self._state.logprobs[: self._num_generated]

    @property
    def token_logprobs(self) -> list[TokenLogprobs]:
        """Log-probabilities with alternatives; [] unless top_logprobs was asked for."""
        return self._state.token_logprobs[: self._num_generated]

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """What the model says of each prompt token, None for the first; None if not asked for.

        They are complete before the first token is generated.
        """
        known = self._state.prompt_logprobs
        return None if known is None else known.copy()

    @property
    def timestamps(self) -> list[float] | None:
        """When each token was accepted (`time.perf_counter`), or None if not recorded."""
        times = self._state.timestamps
        return None if times is None else times[: self._num_generated]

    def is_finished(self) -> bool:
        """Return whether this is the request's terminal output, whatever ended it."""
        return self.is_last

    def __repr__(self) -> str:
        """Show what one looks for in a log, not the whole token lists."""
        return (
            f"GenerationOutput({self.request_id!r}, {self.status.name}, "
            f"{len(self._state.prompt_ids)} prompt tokens, {self._num_generated} generated, "
            f"error={self.error!r})"
        )


@dataclass(slots=True, eq=False)
class RequestState:
    """The engine's record of one request.

    Attributes:
        request_id: Unique among requests that have not ended.
        prompt_ids: The prompt; never changed.
        params: How to draw the next token and when to stop; resolved, nothing is None.
        streaming: Whether each token is delivered, or only the end.
        generated_tokens: Tokens accepted so far; append-only, read by outputs.
        num_computed: Positions whose keys and values are in the cache.
        block_ids: The block table: block i holds positions [i * page_size, (i + 1) * page_size).
        block_names: Names of the leading full blocks, made once; the cache's own objects.
        num_indexed_blocks: Leading full blocks already entered in the prefix index.
        salt: Requests with different salts share no blocks.
        priority: Lower ones start first; all 0 unless the scheduler is "priority".
        arrival: Its place in the order in which requests reached the scheduler.
        promoted: Goes before all that are not: it has waited or given way long enough.
        host_block_ids: Blocks of the host buffer that hold its positions while it is preempted.
        num_saved: Positions in these.
        queue_seconds: How long it may wait for its first step; None is for ever.
        deadline_seconds: How long it may take from its creation on; None is for ever.
        holds_place: Whether it counts against max_queue_size until its first step.
        parent: The request with the same prompt whose blocks it may start from; None has none.
        prompt_logprobs: One entry for each prompt token so far; None if they are not asked for.
        pooling: Gathers the prompt's hidden states; None if no vector is asked for.
        num_delivered: Generated tokens that an output has carried.
        drafting: Guesses its next tokens; None until they are wanted.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    streaming: bool = False
    timestamps: list[float] | None = None

    status: RequestStatus = RequestStatus.PENDING
    generated_tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    token_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    exception: BaseException | None = None
    created_time: float = field(default_factory=time.perf_counter)
    lifespan: tuple[float, float] = (-1.0, -1.0)

    num_computed: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_delivered: int = 0
    block_ids: list[int] = field(default_factory=list)
    block_names: list[Any] = field(default_factory=list)
    num_indexed_blocks: int = 0
    salt: str = ""
    priority: int = 0
    arrival: int = 0
    promoted: bool = False
    host_block_ids: list[int] = field(default_factory=list)
    num_saved: int = 0
    queue_seconds: float | None = None
    deadline_seconds: float | None = None
    holds_place: bool = True
    parent: "RequestState | None" = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooling: PooledStates | None = None
    drafting: Drafting | None = field(default=None, init=False, repr=False)
    _block_row: NDArray[np.int32] | None = field(default=None, init=False, repr=False)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens together."""
        return len(self.prompt_ids) + len(self.generated_tokens)

    @property
    def num_missing_tokens(self) -> int:
        """Tokens that are known but whose keys and values are not in the cache yet."""
        return len(self.prompt_ids) + len(self.generated_tokens) - self.num_computed

    def token_at(self, position: int) -> int:
        """Return the token at one position, of the prompt or of the answer."""
        num_prompt = len(self.prompt_ids)
        if position < num_prompt:
            return self.prompt_ids[position]
        return self.generated_tokens[position - num_prompt]

    def tokens_between(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the tokens at positions [start, stop), prompt and answer alike: [n] int32."""
        num_prompt = len(self.prompt_ids)
        tokens = self.prompt_ids[start:stop]
        if stop > num_prompt:
            tokens = tokens + self.generated_tokens[max(0, start - num_prompt) : stop - num_prompt]
        return np.array(tokens, dtype=np.int32)

    @property
    def is_queued(self) -> bool:
        """Whether it has a place in the queue."""
        return self.holds_place and self.lifespan[0] < 0

    @property
    def deadlines(self) -> list[float]:
        """When to look whether the request is to be given up (`time.perf_counter`)."""
        seconds = (self.deadline_seconds, self.queue_seconds)
        return [self.created_time + given for given in seconds if given is not None]

    def expiry(self, now: float) -> EngineError | None:
        """Return why the request is to be given up at this moment, or None."""
        elapsed = now - self.created_time
        if self.deadline_seconds is not None and elapsed >= self.deadline_seconds:
            return DeadlineExceededError(self.deadline_seconds)
        waits = self.lifespan[0] < 0
        if self.queue_seconds is not None and waits and elapsed >= self.queue_seconds:
            return QueueTimeoutError(self.queue_seconds)
        return None

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether logits of prompt tokens are still to be reported."""
        known = self.prompt_logprobs
        return known is not None and len(known) < len(self.prompt_ids)

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether prompt tokens have still to be computed that the cache might hold."""
        pooling = self.pooling
        if pooling is not None and pooling.kind is Pooling.MEAN:
            return pooling.num_tokens < len(self.prompt_ids)
        return self.needs_prompt_logits

    def pooled_vector(self) -> list[float] | None:
        """Return the prompt as a vector, if one was asked for and the request has its token."""
        if self.pooling is None or not self.generated_tokens:
            return None
        return self.pooling.vector()

    def make_child(self, request_id: str, params: SamplingParams) -> "RequestState":
        """Return a request that is new in all but what its caller has asked for.

        Its prompt is the same list. It may start from this request's blocks.
        """
        new: dict[str, Any] = {
            entry.name: entry.default_factory()
            for entry in fields(self)
            if entry.default_factory is not MISSING and entry.name != "created_time"
        }
        if self.timestamps is not None:
            new["timestamps"] = []
        if self.prompt_logprobs is not None:
            new["prompt_logprobs"] = [None]
        if self.pooling is not None:
            new["pooling"] = PooledStates(self.pooling.kind)
        return replace(self, request_id=request_id, params=params, parent=self, **new)

    def block_row(self) -> NDArray[np.int32]:
        """Return the block table as an array, made anew only when it has grown: [B] int32."""
        row = self._block_row
        if row is None or len(row) != len(self.block_ids):
            row = self._block_row = np.array(self.block_ids, dtype=np.int32)
        return row

    def let_go(self) -> None:
        """Drop what only a request that may still run needs; its outputs may live for long."""
        self.parent = None
        self.drafting = None
        self.block_names = []

    def forget_blocks(self) -> None:
        """Go back to where nothing was computed; whoever owns the blocks has them already."""
        self.block_ids.clear()
        self._block_row = None
        self.num_computed = 0
        self.num_indexed_blocks = 0

    def is_finished(self) -> bool:
        """Return whether the request has ended."""
        return self.status >= RequestStatus.FINISHED

    def finish(
        self,
        status: RequestStatus,
        reason: FinishReason,
        exception: BaseException | None = None,
    ) -> None:
        """Set the terminal status; a request ends once."""
        assert not self.is_finished(), f"{self.request_id} ended twice"
        self.status = status
        self.finish_reason = reason
        self.exception = exception
        self.lifespan = (self.lifespan[0], time.perf_counter())

    def make_output(self) -> GenerationOutput:
        """Return a snapshot that carries what is new since the previous one."""
        # The usual status first: comparing enums takes as long as all the rest of this.
        is_last = self.status is not RequestStatus.DECODING and self.is_finished()
        output = GenerationOutput(self, self.num_delivered, is_last)
        self.num_delivered = len(self.generated_tokens)
        return output
