"""The engine thread: one turn after another until it is told to stop.

`step` is the table of contents of the engine. Everything a step touches belongs to this thread;
callers reach it through the mailbox, the pause gate and the admission gate only. No exception of a
request ends the thread: a step that raises is split until the culprit stands alone.
"""

import logging
from dataclasses import dataclass

from engine.admission import AdmissionGate
from engine.batch import SampledTokens, ScheduledBatch
from engine.cache.paged_cache import PagedCache
from engine.errors import EngineDeadError, EngineError, EngineStoppingError
from engine.input_builder import InputBuilder
from engine.mailbox import Mail, Mailbox, StopMode
from engine.output_router import OutputRouter
from engine.pause import PauseGate
from engine.requests import FinishReason, GenerationOutput, RequestState, RequestStatus
from engine.runners.eager import Runner
from engine.sampling.parameters import SamplingLimits, SamplingParams
from engine.sampling.sampler import Sampler
from engine.scheduler import Scheduler

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 64


@dataclass(slots=True)
class StepParts:
    """What computes a step; wired in `assembly`, dropped when the engine stops.

    Attributes:
        scheduler: Decides what is computed.
        input_builder: Makes the tensors.
        cache: Holds keys and values.
        runner: Computes the logits.
        sampler: Draws the tokens.
    """

    scheduler: Scheduler
    input_builder: InputBuilder
    cache: PagedCache
    runner: Runner
    sampler: Sampler


@dataclass(frozen=True, slots=True)
class Channels:
    """What callers and the engine thread share.

    Attributes:
        mailbox: Requests and commands, inwards.
        gate: How many requests may wait.
        pause: Holds the loop.
        router: Outputs, outwards.
    """

    mailbox: Mailbox
    gate: AdmissionGate
    pause: PauseGate
    router: OutputRouter


class EngineLoop:
    """Runs steps on the engine thread."""

    def __init__(self, parts: StepParts, channels: Channels) -> None:
        """Join what computes with what communicates."""
        self._parts = parts
        self._channels = channels
        self._requests: dict[str, RequestState] = {}
        self.num_steps = 0

    def run(self) -> BaseException | None:
        """Turn until told to stop; the body of the engine thread.

        Returns:
            What killed the loop, or None.
        """
        channels = self._channels
        try:
            while self.turn():
                pass
        except Exception as error:
            logger.exception("the engine died")
            dead = EngineDeadError(f"the engine died: {error}")
            dead.__cause__ = error
            self._end_dead(channels.mailbox.close(error), dead)
            return error
        unfinished = EngineStoppingError("the engine stopped before this request completed")
        self._end_all(channels.mailbox.close(), unfinished)
        return None

    @property
    def scheduler(self) -> Scheduler:
        """What holds the requests; for reading its counters from other threads."""
        return self._parts.scheduler

    def warm_up(self, limits: SamplingLimits) -> None:
        """Compute a request that nobody asked for, so that threads, buffers and code are warm."""
        num_prompt = max(1, min(WARM_UP_TOKENS, limits.max_model_tokens - 2))
        request = RequestState(
            request_id="warm-up",
            prompt_ids=[token % limits.vocab_size for token in range(num_prompt)],
            params=SamplingParams(temperature=0.0, max_new_tokens=2),
            salt="warm-up",
        )
        scheduler = self._parts.scheduler
        scheduler.add(request)
        try:
            while not request.is_finished():
                batch = scheduler.schedule_batch()
                self._parts.cache.copy_blocks(batch.block_copies)
                scheduler.update(batch, self._forward_and_sample(batch))
        finally:
            # The loop knows nothing of this request and must not find it.
            if not request.is_finished():
                scheduler.cancel(request)

    def turn(self) -> bool:
        """Take the mail and run one step; return False when it is time to stop."""
        self._channels.pause.park()
        scheduler = self._parts.scheduler
        mail = self._channels.mailbox.take(wait=not scheduler.has_requests())
        self._take_mail(mail)
        if mail.stop is StopMode.HARD or (mail.stop and not scheduler.has_requests()):
            return False
        if scheduler.has_requests():
            self.step()
        return True

    def step(self) -> None:
        """Compute and deliver one token for each request that is caught up, and prefill others."""
        batch = self._parts.scheduler.schedule_batch()
        self._channels.gate.release(batch.num_started)
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
            if len(batch.scheduled) == 1:
                request = batch.scheduled[0].request
                logger.warning("request %s failed: %r", request.request_id, error)
                return [scheduler.fail(request, error)]
            return [output for half in batch.halves() for output in self._compute(half)]
        return scheduler.update(batch, sampled)

    def _forward_and_sample(self, batch: ScheduledBatch) -> SampledTokens:
        inputs = self._parts.input_builder.build(batch)
        logits = self._parts.runner.forward(inputs)
        return self._parts.sampler.sample(logits, batch.sampling)

    def _take_mail(self, mail: Mail) -> None:
        for request in mail.requests:
            self._requests[request.request_id] = request
            self._parts.scheduler.add(request)
        cancelled = [
            self._parts.scheduler.cancel(self._requests[request_id])
            for request_id in dict.fromkeys(mail.cancelled)
            if request_id in self._requests
        ]
        self._deliver(cancelled)

    def _deliver(self, outputs: list[GenerationOutput]) -> None:
        """Hand outputs over and forget the requests that ended."""
        if not outputs:
            return
        ended = [output for output in outputs if output.is_finished()]
        for output in ended:
            del self._requests[output.request_id]
        # Requests that end without ever having been scheduled still held a place in the queue.
        self._channels.gate.release(sum(output.lifespan[0] < 0 for output in ended))
        if ended:
            self._channels.mailbox.end([output.request_id for output in ended])
        self._channels.router.deliver(outputs)
        if ended:
            self._channels.mailbox.forget()
            self._channels.router.store.wake()

    def _end_all(self, leftover: list[RequestState], error: EngineError) -> None:
        """Give every request that has not ended its terminal output."""
        for request in leftover:
            self._requests[request.request_id] = request
            self._parts.scheduler.add(request)
        scheduler = self._parts.scheduler
        self._deliver([scheduler.fail(request, error) for request in self._requests.values()])

    def _end_dead(self, leftover: list[RequestState], error: EngineError) -> None:
        """Like `_end_all`, but trusts nothing of the scheduler, which may be what broke."""
        requests = [*self._requests.values(), *leftover]
        self._requests = {request.request_id: request for request in requests}
        for request in requests:
            if not request.is_finished():
                request.finish(RequestStatus.FAILED, FinishReason.ERROR, error)
        self._deliver([request.make_output() for request in requests])
