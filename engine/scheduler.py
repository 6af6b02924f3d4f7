"""Decides what each step computes, and is the only writer of request state.

Engine thread only. There is no prefill and no decode phase: each request's `num_computed` catches
up with its `num_tokens`; what is left when it is caught up is one token to draw. Running requests
are kept in the order of their admission. When blocks run out the newest is preempted: it gives
up its blocks, goes to the head of the queue and is computed again (mostly found in the prefix
index). The oldest can always go on, so everything ends.

    waiting (deque)  --admit-->  running (by admission)  --finish, fail, cancel-->  ended
         ^----------------preempt-----------'
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.batch import BlockCopy, SampledTokens, ScheduledBatch, ScheduledRequest
from engine.cache.block_manager import BlockManager
from engine.errors import EngineError, RequestFailedError
from engine.requests import FinishReason, GenerationOutput, RequestState, RequestStatus


@dataclass(slots=True)
class _StepPlan:
    """A batch while it is being put together."""

    budget: int
    scheduled: dict[str, ScheduledRequest] = field(default_factory=dict)
    copies: list[BlockCopy] = field(default_factory=list)
    num_started: int = 0
    preempted: bool = False


class Scheduler:
    """First come, first served: decoding requests, then prefilling ones, then new ones."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_tokens: int,
        max_requests: int,
        num_reserved_blocks: int,
    ) -> None:
        """Start with no requests.

        Args:
            blocks: Where block tables come from.
            max_batch_tokens: Tokens in a step.
            max_requests: Requests that may run at once.
            num_reserved_blocks: Blocks that new requests leave free while others run, so that
                these can grow without preempting.
        """
        self.blocks = blocks
        self.waiting: deque[RequestState] = deque()
        self.running: dict[str, RequestState] = {}
        self.num_preemptions = 0
        self._max_batch_tokens = max_batch_tokens
        self._max_requests = max_requests
        self._num_reserved_blocks = num_reserved_blocks

    def add(self, request: RequestState) -> None:
        """Queue a new request."""
        self.waiting.append(request)

    def has_requests(self) -> bool:
        """Return whether anything waits or runs."""
        return bool(self.waiting or self.running)

    def candidates(self) -> Iterable[RequestState]:
        """Return the running requests in the order in which they get their share of a step."""
        prefilling = []
        for request in list(self.running.values()):
            if request.num_missing_tokens == 1:
                yield request
            else:
                prefilling.append(request)
        yield from prefilling

    def schedule_batch(self) -> ScheduledBatch:
        """Put the next step together; it is empty only if there are no requests."""
        plan = _StepPlan(self._max_batch_tokens)
        for request in self.candidates():
            if plan.budget == 0:
                break
            # A request earlier in this loop may have preempted this one.
            if request.request_id in self.running:
                self._schedule_running(plan, request)
        if not plan.preempted:
            self._admit(plan)
        scheduled = list(plan.scheduled.values())
        num_tokens = self._max_batch_tokens - plan.budget
        return ScheduledBatch(scheduled, num_tokens, plan.num_started, plan.copies)

    def update(self, batch: ScheduledBatch, sampled: SampledTokens) -> list[GenerationOutput]:
        """Take the results of a step into the requests' state; return what is to be delivered."""
        outputs: list[GenerationOutput] = []
        now = time.perf_counter()
        row = 0
        for item in batch.scheduled:
            request = item.request
            request.num_computed = item.num_context_tokens
            if not item.samples:
                self.blocks.commit(request)
                continue
            error = sampled.errors.get(row)
            if error is not None:
                outputs.append(self.fail(request, error))
            else:
                self._append_token(request, sampled, row, now)
                if request.is_finished():
                    self._release(request)
                if request.streaming or request.is_finished():
                    outputs.append(request.make_output())
            row += 1
        return outputs

    def cancel(self, request: RequestState) -> GenerationOutput:
        """End a request because its caller wants no more of it."""
        return self._end(request, RequestStatus.CANCELLED, FinishReason.CANCELLED, None)

    def fail(self, request: RequestState, error: BaseException) -> GenerationOutput:
        """End a request because something went wrong with it."""
        return self._end(request, RequestStatus.FAILED, FinishReason.ERROR, error)

    def preempt(self, request: RequestState) -> None:
        """Take a running request's blocks; it is computed again later."""
        del self.running[request.request_id]
        self.blocks.free(request)
        request.status = RequestStatus.PENDING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _schedule_running(self, plan: _StepPlan, request: RequestState) -> None:
        """Give a running request its share, preempting newer ones if blocks run out."""
        num_new = min(request.num_missing_tokens, plan.budget)
        while not self.blocks.extend(request, request.num_computed + num_new):
            plan.preempted = True
            victim = next(reversed(self.running.values()))
            taken_back = plan.scheduled.pop(victim.request_id, None)
            if taken_back is not None:
                plan.budget += taken_back.num_new_tokens
            self.preempt(victim)
            if victim is request:
                return
        self._take(plan, request, num_new)

    def _admit(self, plan: _StepPlan) -> None:
        """Start waiting requests as long as tokens, rows and blocks last."""
        while self.waiting and plan.budget > 0 and len(self.running) < self._max_requests:
            reserved = self._num_reserved_blocks if self.running else 0
            if self.blocks.pool.num_free <= reserved:
                return
            request = self.waiting[0]
            copy = self.blocks.attach_prefix(request)
            missing = self.blocks.num_missing_blocks(request, request.num_tokens)
            if missing + reserved > self.blocks.pool.num_free:
                self.blocks.detach(request)
                return
            if copy is not None:
                plan.copies.append(copy)
            self.waiting.popleft()
            self.running[request.request_id] = request
            request.status = RequestStatus.PREFILLING
            if request.lifespan[0] < 0:
                plan.num_started += 1
                request.lifespan = (time.perf_counter(), -1.0)
            num_new = min(request.num_missing_tokens, plan.budget)
            extended = self.blocks.extend(request, request.num_computed + num_new)
            assert extended, "blocks for the whole request were free a moment ago"
            self._take(plan, request, num_new)

    def _take(self, plan: _StepPlan, request: RequestState, num_new: int) -> None:
        samples = num_new == request.num_missing_tokens
        plan.scheduled[request.request_id] = ScheduledRequest(
            request, request.num_computed, num_new, samples
        )
        plan.budget -= num_new

    def _append_token(
        self, request: RequestState, sampled: SampledTokens, row: int, now: float
    ) -> None:
        """Accept a drawn token; end the request if it was the last."""
        token_id = sampled.token_ids[row]
        self.blocks.commit(request)
        request.status = RequestStatus.DECODING
        request.generated_tokens.append(token_id)
        if sampled.logprobs:
            request.logprobs.append(sampled.logprobs[row])
        token_logprobs = sampled.token_logprobs[row]
        if token_logprobs is not None:
            request.token_logprobs.append(token_logprobs)
        if request.timestamps is not None:
            request.timestamps.append(now)
        params = request.params
        if token_id in params.eos_token_ids or token_id in params.stop_token_ids:
            request.stop_reason = token_id if token_id in params.stop_token_ids else None
            request.finish(RequestStatus.FINISHED, FinishReason.STOP)
        elif len(request.generated_tokens) >= params.max_new_tokens:
            request.finish(RequestStatus.FINISHED, FinishReason.LENGTH)

    def _end(
        self,
        request: RequestState,
        status: RequestStatus,
        reason: FinishReason,
        error: BaseException | None,
    ) -> GenerationOutput:
        if error is not None and not isinstance(error, EngineError):
            failure = RequestFailedError(f"the request failed: {error}")
            failure.__cause__ = error
            error = failure
        request.finish(status, reason, error)
        if request.request_id in self.running:
            self._release(request, discard=error is not None)
        else:
            self.waiting.remove(request)
        return request.make_output()

    def _release(self, request: RequestState, *, discard: bool = False) -> None:
        del self.running[request.request_id]
        self.blocks.free(request, discard=discard)


class PrefillFirstScheduler(Scheduler):
    """Like `Scheduler`, but running requests that prefill go before those that decode."""

    def candidates(self) -> Iterable[RequestState]:
        """Return the running requests in the order in which they get their share of a step."""
        decoding = []
        for request in list(self.running.values()):
            if request.num_missing_tokens > 1:
                yield request
            else:
                decoding.append(request)
        yield from decoding


SCHEDULERS: dict[str, type[Scheduler]] = {
    "fifo": Scheduler,
    "prefill_first": PrefillFirstScheduler,
}
