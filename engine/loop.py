"""The engine thread: one turn after another until it is told to stop.

`step` is the table of contents of the engine. Everything a step touches belongs to this thread;
callers reach it through the mailbox, the pause gate and the admission gate only. No exception of a
request ends the thread: a step that raises is split until the culprit stands alone. What raises
outside of these rings costs the requests that were running; the loop begins again without them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from engine.admission import AdmissionGate
from engine.batch import SampledTokens, ScheduledBatch
from engine.cache.paged_cache import PagedCache
from engine.deadlines import Deadlines
from engine.errors import (
    EngineDeadError,
    EngineError,
    EngineStoppingError,
    RequestFailedError,
)
from engine.faults import FaultPoint, FaultPoints
from engine.input_builder import InputBuilder
from engine.mailbox import Mail, Mailbox, StopMode
from engine.models.weights import WeightWatch
from engine.output_router import OutputRouter
from engine.pause import PauseGate
from engine.requests import FinishReason, GenerationOutput, RequestState, RequestStatus
from engine.restarts import RestartBudget
from engine.runners.eager import Runner
from engine.sampling.logprobs import take_rows
from engine.sampling.options import SamplingLimits
from engine.sampling.sampler import Sampler
from engine.scheduler import Scheduler
from engine.speculation import Verification
from engine.warm_up import warm_up

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepParts:
    """What computes a step; wired in `assembly`, dropped when the engine stops.

    Attributes:
        scheduler: Decides what is computed.
        input_builder: Makes the tensors.
        cache: Holds keys and values.
        runner: Computes the logits.
        sampler: Draws the tokens.
        make_scheduler: Makes a scheduler with all blocks free, in place of one that broke.
        weights: Notices that the model was changed during a pause.
    """

    scheduler: Scheduler
    input_builder: InputBuilder
    cache: PagedCache
    runner: Runner
    sampler: Sampler
    make_scheduler: Callable[[], Scheduler]
    weights: WeightWatch


@dataclass(frozen=True, slots=True)
class Channels:
    """What callers and the engine thread share.

    Attributes:
        mailbox: Requests and commands, inwards.
        gate: How many requests may wait.
        pause: Holds the loop.
        router: Outputs, outwards.
        faults: What tests have armed.
    """

    mailbox: Mailbox
    gate: AdmissionGate
    pause: PauseGate
    router: OutputRouter
    faults: FaultPoints = field(default_factory=FaultPoints)


class EngineLoop:
    """Runs steps on the engine thread."""

    def __init__(self, parts: StepParts, channels: Channels) -> None:
        """Join what computes with what communicates."""
        self._parts = parts
        self._channels = channels
        self._faults = channels.faults
        self._requests: dict[str, RequestState] = {}
        self._deadlines = Deadlines()
        self._num_places = 0  # in the queue, held by requests that have been taken
        self._num_steps_at_restart = -1
        self.restarts = RestartBudget()
        self.num_steps = 0

    def run(self) -> BaseException | None:
        """Turn until told to stop; the body of the engine thread.

        Returns:
            What killed the loop, or None.
        """
        try:
            self._turn_until_told()
        except BaseException as error:
            # Also what is no Exception: nobody may wait for a thread that is gone.
            logger.exception("the engine died")
            self._die(error)
            return error
        finally:
            self._parts.sampler.close()
        return None

    def _turn_until_told(self) -> None:
        """Take turn after turn, then end what is left; raise what is to kill the loop."""
        if self._parts.weights.have_changed():
            self._forget_computed()
        while True:
            try:
                while self.turn():
                    pass
                break
            except Exception as error:
                logger.exception("a step of the engine failed")
                if not self.restarts.spend():
                    raise
                self._restart(error)
        unfinished = EngineStoppingError("the engine stopped before this request completed")
        self._end_all(self._channels.mailbox.close(), unfinished)
        self._parts.weights.remember()

    @property
    def scheduler(self) -> Scheduler:
        """What holds the requests; for reading its counters from other threads."""
        return self._parts.scheduler

    def warm_up(self, limits: SamplingLimits) -> None:
        """Compute what nobody asked for, so that threads, buffers and code are warm."""

        def compute(batch: ScheduledBatch) -> SampledTokens:
            self._parts.cache.copy_blocks(batch.block_copies)
            return self._forward_and_sample(batch)

        self._parts.runner.prepare()
        warm_up(self._parts.scheduler, compute, limits)

    def turn(self) -> bool:
        """Take the mail and run one step; return False when it is time to stop."""
        if self._channels.pause.is_wanted:
            self._pause()
        mail = self._channels.mailbox.take(wait=not self._parts.scheduler.has_requests())
        self._take_mail(mail)
        has_requests = self._parts.scheduler.has_requests()
        if mail.stop is StopMode.HARD or (mail.stop and not has_requests):
            return False
        if has_requests:
            self.step()
        return True

    def _pause(self) -> None:
        """Stand still while a caller uses the model, and look afterwards what became of it."""
        self._parts.weights.remember()
        self._channels.pause.park()
        if self._parts.weights.have_changed():
            logger.info("the weights have changed: keys and values are computed again")
            self._forget_computed()

    def step(self) -> None:
        """Compute and deliver one token for each request that is caught up, and prefill others."""
        batch = self._parts.scheduler.schedule_batch()
        self._release_places(batch.num_started)
        self._parts.cache.copy_blocks(batch.block_copies)
        outputs = self._compute(batch)
        self._deliver(outputs)
        self.num_steps += 1

    def _compute(self, batch: ScheduledBatch) -> list[GenerationOutput]:
        """Run a batch; if it raises, run its halves, so that only the culprit fails."""
        scheduler = self._parts.scheduler
        try:
            sampled = self._forward_and_sample(batch)
        except Exception as error:  # noqa: BLE001 - the ring around a step
            if batch.num_drafted:  # no request fails because of what was guessed
                logger.warning("a step with guessed tokens is repeated without them: %r", error)
                scheduler.speculation.learn(Verification(batch))
                return self._compute(batch.without_drafts())
            if len(batch.scheduled) == 1:
                request = batch.scheduled[0].request
                logger.warning("request %s failed: %r", request.request_id, error)
                return [scheduler.fail(request, error)]
            return [output for half in batch.halves() for output in self._compute(half)]
        outputs = scheduler.update(batch, sampled)
        if sampled.drafted is not None:
            outputs += self._verify(batch, sampled.drafted)
        return outputs

    def _verify(self, batch: ScheduledBatch, logits: torch.Tensor) -> list[GenerationOutput]:
        """Go on along the drafts of a step, whose logits are [D, V], as far as they are right."""
        scheduler = self._parts.scheduler
        outputs: list[GenerationOutput] = []
        verification = Verification(batch)
        while rows := verification.advance():
            going_on = verification.batch()
            try:
                sampled = self._parts.sampler.sample_batch(take_rows(logits, rows), going_on)
            except Exception as error:  # noqa: BLE001 - the ring around a step
                # The next step comes to the same token, and its ring finds out whose fault it is.
                logger.warning("guessed tokens cannot be verified: %r", error)
                break
            outputs += scheduler.update(going_on, sampled)
        scheduler.speculation.learn(verification)
        return outputs

    def _forward_and_sample(self, batch: ScheduledBatch) -> SampledTokens:
        faults = self._faults
        if faults.armed:
            faults.check(FaultPoint.BUILD, batch.requests)
        inputs = self._parts.input_builder.build(batch)
        if faults.armed:
            faults.check(FaultPoint.FORWARD, batch.requests)
        self._parts.sampler.prepare(batch)
        logits = self._parts.runner.forward(inputs)
        if faults.armed:
            faults.check(FaultPoint.SAMPLE, batch.sampling)
        num_own = len(logits) - batch.num_drafted
        own = logits[:num_own] if batch.num_drafted else logits
        sampled = self._parts.sampler.sample_batch(own, batch)
        if batch.num_drafted:
            sampled = replace(sampled, drafted=logits[num_own:])
        if any(rows.total is None for rows in inputs.pooled):
            raise RuntimeError("the forward did not show its hidden states")
        sampled.pooled.update((rows.request_id, rows) for rows in inputs.pooled)
        return sampled

    def _take_mail(self, mail: Mail) -> None:
        try:
            if mail.forget:
                self._parts.weights.mark_changed()
                self._forget_computed()
        finally:
            self._num_places += sum(request.is_queued for request in mail.requests)
            # Known before any is touched: whatever raises, each gets its terminal output.
            self._requests.update({request.request_id: request for request in mail.requests})
        for request in mail.requests:
            self._deadlines.add(request)
        refused = [self._admit(request) for request in mail.requests]
        self._deliver([output for output in refused if output is not None])
        cancelled = [
            self._parts.scheduler.cancel(self._requests[request_id])
            for request_id in dict.fromkeys(mail.cancelled)
            if request_id in self._requests
        ]
        self._deliver(cancelled)
        if self._deadlines.is_due(now := time.perf_counter()):
            self._expire(now)

    def _expire(self, now: float) -> None:
        """End the requests whose deadline has passed; those that wait, too."""
        scheduler = self._parts.scheduler
        self._deliver(
            [
                scheduler.fail(request, reason)
                for request, reason in self._deadlines.pop_expired(now, self._requests)
            ]
        )

    def _admit(self, request: RequestState) -> GenerationOutput | None:
        """Queue a request; return its terminal output if that cannot be done."""
        try:
            if self._faults.armed:
                self._faults.check(FaultPoint.ADMIT, [request])
            self._parts.scheduler.add(request)
        except Exception as error:  # noqa: BLE001 - the ring around a new request
            return _abort(request, _request_failure(error))
        return None

    def _deliver(self, outputs: list[GenerationOutput]) -> None:
        """Hand outputs over and forget the requests that ended."""
        if not outputs:
            return
        ended = {
            output.request_id: self._requests.pop(output.request_id)
            for output in outputs
            if output.is_last
        }
        # Requests that end without ever having been scheduled still held a place in the queue.
        self._release_places(sum(request.is_queued for request in ended.values()))
        mailbox, router = self._channels.mailbox, self._channels.router
        if ended:
            mailbox.end(list(ended))
        undelivered = router.deliver(outputs)
        if undelivered:
            self._fail_undelivered(undelivered, ended)
        if ended:
            self._deadlines.sweep(self._requests)
            mailbox.forget()
            router.store.wake()

    def _fail_undelivered(
        self, undelivered: dict[str, Exception], ended: dict[str, RequestState]
    ) -> None:
        """End the requests whose output did not reach anyone, and try to tell them so."""
        going_on = []
        for request_id, error in undelivered.items():
            logger.warning("an output of request %s was not delivered: %r", request_id, error)
            if request_id in ended:
                self._channels.router.deliver([_abort(ended[request_id], _request_failure(error))])
            else:
                going_on.append(self._parts.scheduler.fail(self._requests[request_id], error))
        self._deliver(going_on)

    def _release_places(self, count: int) -> None:
        self._num_places -= count
        self._channels.gate.release(count)

    def _replace_scheduler(self) -> None:
        """Take a scheduler with all blocks free; requests are to be added to it again."""
        broken, self._parts.scheduler = self._parts.scheduler, self._parts.make_scheduler()
        self._parts.scheduler.go_on_from(broken)

    def _forget_computed(self) -> None:
        """Compute everything again: what the cache holds comes from other weights."""
        self._replace_scheduler()
        for request in self._requests.values():
            if request.lifespan[0] >= 0:
                # Like a preemption, also in what its outputs report.
                request.num_preemptions += 1
                self._parts.scheduler.num_preemptions += 1
            _detach(request)
            self._parts.scheduler.add(request)

    def _restart(self, error: Exception) -> None:
        """Begin again with an empty cache, without the requests that may be the reason.

        These are the ones that were being computed. If no step has succeeded since the last
        restart, the reason is among the ones that wait, and all of them go.
        """
        is_second = self.num_steps == self._num_steps_at_restart
        self._num_steps_at_restart = self.num_steps
        self._replace_scheduler()
        failure = _request_failure(error)
        ended = []
        for request in self._requests.values():
            if is_second or request.lifespan[0] >= 0:
                ended.append(_abort(request, failure))
            else:
                _detach(request)
                self._parts.scheduler.add(request)
        # A step that broke may have started requests without giving back their places.
        num_queued = sum(request.is_queued for request in self._requests.values())
        self._release_places(self._num_places - num_queued)
        self._deliver(ended)

    def _end_all(self, leftover: list[RequestState], error: EngineError) -> None:
        """Give every request that has not ended its terminal output."""
        self._take_mail(Mail(requests=leftover))
        scheduler = self._parts.scheduler
        self._deliver([scheduler.fail(request, error) for request in self._requests.values()])

    def _die(self, error: BaseException) -> None:
        """Tell everyone; trusts nothing of the scheduler, which may be what broke."""
        dead = EngineDeadError.of(error)
        leftover = self._channels.mailbox.close(error)
        self._requests.update({request.request_id: request for request in leftover})
        self._num_places += sum(request.is_queued for request in leftover)
        outputs = [_abort(request, dead) for request in self._requests.values()]
        num_queued = sum(request.is_queued for request in self._requests.values())
        self._release_places(self._num_places - num_queued)
        self._deliver(outputs)


def _abort(request: RequestState, error: EngineError) -> GenerationOutput:
    """End a request in whatever state a fault has left it."""
    _detach(request)
    request.let_go()
    request.finish(RequestStatus.FAILED, FinishReason.ERROR, error)
    return request.make_output()


def _detach(request: RequestState) -> None:
    """Put a request back to where it was before anything was computed of it."""
    request.status = RequestStatus.PENDING
    request.forget_blocks()
    if request.pooling is not None:
        request.pooling.forget()
    # What was swapped out lies in host blocks that the next scheduler knows nothing of.
    request.host_block_ids.clear()
    request.num_saved = 0


def _request_failure(error: Exception) -> EngineError:
    failure = RequestFailedError(f"the request failed: {error}")
    failure.__cause__ = error
    return failure
