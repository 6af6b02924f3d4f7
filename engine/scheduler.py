"""Decides what each step computes, and is the only writer of request state.

Engine thread only. There is no prefill and no decode phase: each request's `num_computed` catches
up with its `num_tokens`; what is left when it is caught up is one token to draw. When blocks run
out the running request of the highest rank gives way: it gives up its blocks, goes back to the
queue, and is computed again (mostly found in the prefix index) or swapped back from the host. The
one of the lowest rank can always go on, so everything ends.

    waiting (by rank)  --admit-->  running (by admission)  --finish, fail, cancel-->  ended
         ^----------------preempt-----------'

What a step costs here depends on the requests that run, not on how many wait nor on how long their
prompts are: a head of the queue that does not fit is not looked at again before it might.
"""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

from engine.acceptance import accept_pooled, accept_prompt_logprobs, accept_token
from engine.batch import BlockCopy, SampledTokens, ScheduledBatch
from engine.cache.block_manager import BlockManager
from engine.errors import EngineError, RequestFailedError
from engine.requests import FinishReason, GenerationOutput, RequestState, RequestStatus
from engine.speculation import Speculation
from engine.step_cost import StepPace
from engine.step_plan import StepPlan
from engine.waiting_queue import WaitingQueue, rank


@dataclass(frozen=True, slots=True)
class _BlockedHead:
    """A request at the head of the queue that did not fit, and what has to change before it may.

    Attributes:
        request: The request.
        num_free_needed: Free blocks with which it would have fitted.
        num_matched_blocks: Blocks of its prefix that were in the cache.
    """

    request: RequestState
    num_free_needed: int
    num_matched_blocks: int


class Scheduler:
    """First come, first served: decoding requests, then prefilling ones, then new ones."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_tokens: int,
        max_requests: int,
        num_reserved_blocks: int,
        pace: StepPace | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """Start with no requests.

        Args:
            blocks: Where block tables come from.
            max_batch_tokens: Tokens in a step.
            max_requests: Requests that may run at once.
            num_reserved_blocks: Blocks that new requests leave free while others run, so that
                these can grow without preempting.
            pace: Bounds the prompt tokens of steps in which others decode; None does not.
            speculation: Guesses tokens and has them computed besides; None does not.
        """
        self.blocks = blocks
        self.waiting = WaitingQueue()
        self.running: dict[str, RequestState] = {}
        self.num_preemptions = 0
        self.num_swapped_out = 0
        self.num_swapped_in = 0
        self.speculation = speculation or Speculation()
        self._pace = pace or StepPace()
        self._copies: list[BlockCopy] = []
        self._blocked: _BlockedHead | None = None
        self._repeatable: ScheduledBatch | None = None
        self._arrivals = itertools.count()
        self._max_batch_tokens = max_batch_tokens
        self._max_requests = max_requests
        self._num_reserved_blocks = num_reserved_blocks

    def go_on_from(self, other: "Scheduler") -> None:
        """Take over the counters of a scheduler that this one replaces."""
        self.num_preemptions = other.num_preemptions
        self.num_swapped_out = other.num_swapped_out
        self.num_swapped_in = other.num_swapped_in

    def add(self, request: RequestState) -> None:
        """Queue a new request."""
        request.arrival = next(self._arrivals)
        self.waiting.push(request)

    def has_requests(self) -> bool:
        """Return whether anything waits or runs."""
        return bool(self.waiting or self.running)

    def order(
        self, decoding: list[RequestState], prefilling: list[RequestState]
    ) -> Iterable[RequestState]:
        """Return the running requests in the order in which they get their share of a step."""
        return itertools.chain(decoding, prefilling)

    def schedule_batch(self) -> ScheduledBatch:
        """Put the next step together; it is empty only if there are no requests."""
        batch = self.speculation.extend(self._repeat_batch() or self._make_batch())
        self._pace.note_scheduled(batch)
        return batch

    def _repeat_batch(self) -> ScheduledBatch | None:
        """Return the last batch once more, or None if there is something to decide.

        As long as nobody comes, ends or gives way, decoding goes on as it is. Most steps are such.
        """
        last = self._repeatable
        if last is None or (self.waiting and not self.is_closed()):
            return None
        page_size = self.blocks.page_size
        for item in last.scheduled:
            num_computed = item.request.num_computed
            if num_computed % page_size == 0 and not self.blocks.extend(
                item.request, num_computed + 1
            ):
                return None
        return ScheduledBatch(last.scheduled, last.num_tokens, continues=True)

    def _make_batch(self) -> ScheduledBatch:
        """Decide anew who gets which share."""
        decoding: list[RequestState] = []
        prefilling: list[RequestState] = []
        for request in self.running.values():
            (decoding if request.num_missing_tokens == 1 else prefilling).append(request)
        # Whoever gets all tokens at the end waits for the last one, not for the next.
        is_watched = any(request.streaming for request in decoding)
        limit = self._pace.chunk_limit(len(decoding)) if is_watched else None
        budget = self._max_batch_tokens
        if limit is not None:
            # Decoding rows keep their tokens, also where prompts come before them.
            limit = min(limit, max(0, budget - len(decoding)))
        plan = StepPlan(budget, budget if limit is None else limit)
        for request in self.order(decoding, prefilling):
            # A request earlier in this loop may have preempted this one.
            if request.request_id in self.running:
                self._schedule_running(plan, request)
        if not plan.preempted:
            self._admit(plan)
            self._give_back(plan)
        copies, self._copies = self._copies, []
        scheduled = list(plan.scheduled.values())
        return ScheduledBatch(scheduled, budget - plan.budget, plan.num_started, copies)

    def update(self, batch: ScheduledBatch, sampled: SampledTokens) -> list[GenerationOutput]:
        """Take the results of a step into the requests' state; return what is to be delivered."""
        self._pace.note_computed(batch)
        is_decode = batch.continues or batch.is_decode
        # Forgotten again by whatever ends a request or takes its blocks.
        is_whole = len(batch.scheduled) == len(self.running)
        self._repeatable = batch if is_decode and is_whole and not batch.num_drafted else None
        if is_decode and sampled.is_plain:
            return self._update_decoding(batch, sampled)
        outputs: list[GenerationOutput] = []
        now = time.perf_counter()
        row = 0
        for item in batch.scheduled:
            request = item.request
            request.num_computed += item.num_new_tokens
            if sampled.prompt_logprobs:
                accept_prompt_logprobs(request, sampled)
            if sampled.pooled:
                accept_pooled(request, sampled)
            if not item.samples:
                self.blocks.commit(request)
                continue
            error = sampled.errors.get(row)
            if error is not None:
                outputs.append(self.fail(request, error))
            else:
                self.blocks.commit(request)
                accept_token(request, sampled, row, now)
                if request.is_finished():
                    self._release(request)
                if request.streaming or request.is_finished():
                    outputs.append(request.make_output())
            row += 1
        return outputs

    def _update_decoding(
        self, batch: ScheduledBatch, sampled: SampledTokens
    ) -> list[GenerationOutput]:
        """Like `update`, where every request gets a token and nothing else."""
        outputs: list[GenerationOutput] = []
        page_size = self.blocks.page_size
        now = time.perf_counter()
        # Once per token of every stream: nothing is called that need not be.
        for row, (item, token_id) in enumerate(
            zip(batch.scheduled, sampled.token_ids, strict=True)
        ):
            request = item.request
            request.num_computed += 1
            if request.num_computed % page_size == 0:
                self.blocks.commit(request)
            params, generated = request.params, request.generated_tokens
            if (
                token_id not in params.ending_token_ids
                and len(generated) + 1 < params.max_new_tokens
                and params.has_plain_end
                and request.timestamps is None
            ):
                # One more of many, and all there is to it is to keep it.
                generated.append(token_id)
                if request.streaming:
                    outputs.append(GenerationOutput(request, request.num_delivered, False))
                    request.num_delivered = len(generated)
                continue
            accept_token(request, sampled, row, now)
            if request.is_finished():
                self._release(request)
            if request.streaming or request.is_finished():
                outputs.append(request.make_output())
        return outputs

    def cancel(self, request: RequestState) -> GenerationOutput:
        """End a request because its caller wants no more of it."""
        return self._end(request, RequestStatus.CANCELLED, FinishReason.CANCELLED, None)

    def fail(self, request: RequestState, error: BaseException) -> GenerationOutput:
        """End a request because something went wrong with it."""
        return self._end(request, RequestStatus.FAILED, FinishReason.ERROR, error)

    def preempt(self, request: RequestState) -> None:
        """Take a running request's blocks; it is swapped back or computed again later."""
        del self.running[request.request_id]
        self._repeatable = None
        copies = self.blocks.host.save(request)
        self._copies += copies
        self.num_swapped_out += bool(copies)
        self.blocks.free(request)
        request.status = RequestStatus.PENDING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push(request)

    def is_closed(self) -> bool:
        """Return whether no waiting request can start before a running one ends."""
        return len(self.running) >= min(self._max_requests, self._max_batch_tokens) or (
            self._blocked is not None and self._is_blocked(self.waiting.first())
        )

    def _is_blocked(self, request: RequestState) -> bool:
        """Return whether a request that did not fit before would not fit now, either."""
        blocked = self._blocked
        return (
            blocked is not None
            and blocked.request is request
            and blocked.num_free_needed > self.blocks.pool.num_free
            and not self.blocks.is_cached(request, blocked.num_matched_blocks)
        )

    def make_budget(self, plan: StepPlan, request: RequestState) -> bool:
        """Take tokens of a full step from others for a waiting request; return whether it did."""
        return False

    def make_room(self, plan: StepPlan, request: RequestState, num_blocks: int) -> bool:
        """Preempt running requests in favour of a waiting one; return whether that was done.

        Args:
            plan: The step being put together.
            request: The waiting request.
            num_blocks: Free blocks that it lacks; 0 if it lacks a row only.
        """
        return False

    def give_way(self, plan: StepPlan, request: RequestState) -> None:
        """Preempt a request that may have been given its share already."""
        plan.take_back(request)
        self.preempt(request)

    def _schedule_running(self, plan: StepPlan, request: RequestState) -> None:
        """Give a running request its share, preempting others if blocks run out."""
        if plan.budget and request.num_missing_tokens == 1 and self.blocks.has_room(request):
            plan.take_row(request)  # the usual case, and the one that there are many of
            return
        num_new = plan.num_tokens_for(request)
        if num_new == 0:
            return
        while not self.blocks.extend(request, request.num_computed + num_new):
            plan.preempted = True
            victim = max(self.running.values(), key=rank)
            self.give_way(plan, victim)
            if victim is request:
                return
        plan.take(request, num_new)

    def _admit(self, plan: StepPlan) -> None:
        """Start waiting requests as long as tokens, rows and blocks last."""
        while self.waiting:
            request = self.waiting.first()
            if self.blocks.awaits_parent(request):
                return
            if plan.is_full():
                if not self.make_budget(plan, request):
                    return
            elif len(self.running) >= self._max_requests:
                if not self.make_room(plan, request, 0):
                    return
            elif num_lacking := self._try_start(request):
                if not self.make_room(plan, request, num_lacking):
                    return
            else:
                self.start(plan, request)

    def _give_back(self, plan: StepPlan) -> None:
        """Divide what is left of the step among those who left their share to others."""
        for request in plan.deferred:
            num_new = plan.num_tokens_for(request)
            if num_new == 0 or request.request_id not in self.running:
                continue
            if self.blocks.extend(request, request.num_computed + num_new):
                plan.take(request, num_new)

    def _try_start(self, request: RequestState) -> int:
        """Give a waiting request the cached part of its prefix, if the whole of it fits.

        Returns:
            How many free blocks it lacks; 0 if it may start.
        """
        pool = self.blocks.pool
        reserved = self._num_reserved_blocks if self.running else 0
        if self.running and self._blocked is not None and self._is_blocked(request):
            return self._blocked.num_free_needed - pool.num_free
        self._blocked = None
        num_free = pool.num_free
        copy = self.blocks.attach_prefix(request)
        missing = self.blocks.num_missing_blocks(request, request.num_tokens)
        lacking = missing + reserved - pool.num_free
        if lacking > 0:
            num_matched = request.num_indexed_blocks
            self._blocked = _BlockedHead(request, num_free + lacking, num_matched)
            self.blocks.detach(request)
            return lacking
        if copy is not None:
            self._copies.append(copy)
        return 0

    def start(self, plan: StepPlan, request: RequestState) -> None:
        """Let a request run that holds the cached part of its prefix."""
        self.waiting.remove(request)
        self.running[request.request_id] = request
        self._repeatable = None
        request.status = RequestStatus.PREFILLING
        if request.lifespan[0] < 0:
            plan.num_started += request.holds_place
            request.lifespan = (time.perf_counter(), -1.0)
        if request.host_block_ids:
            copies = self.blocks.swap_in(request)
            self._copies += copies
            self.num_swapped_in += bool(copies)
        num_new = plan.num_tokens_for(request)
        extended = self.blocks.extend(request, request.num_computed + num_new)
        assert extended, "blocks for the whole request were free a moment ago"
        plan.take(request, num_new)

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
            self._release(request, discard=isinstance(error, RequestFailedError))
        else:
            self.waiting.remove(request)
            self.blocks.host.drop(request)
            request.let_go()
        return request.make_output()

    def _release(self, request: RequestState, *, discard: bool = False) -> None:
        del self.running[request.request_id]
        self._repeatable = None
        self.blocks.free(request, discard=discard)
        request.let_go()
