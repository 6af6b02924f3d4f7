"""`ContinuousBatchingManager`: the thread-safe front door of an engine.

Runs on callers' threads. What it hands over belongs to the engine thread: requests through
`Submitter`, results back through `ResultStore` or a handler, the thread's life in `EngineThread`.
"""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from engine.admission import AdmissionGate
from engine.assembly import assemble
from engine.config import ContinuousBatchingConfig, WorkloadHints
from engine.engine_thread import EngineThread
from engine.faults import FaultPoints
from engine.loop import Channels, EngineLoop
from engine.mailbox import Mailbox
from engine.models.causal_lm import CausalLM
from engine.models.probe import check_once, probe_geometry
from engine.models.servable import ServableModel
from engine.output_router import OutputRouter, ResultHandler
from engine.pause import PauseGate
from engine.requests import GenerationOutput
from engine.resolve import resolve_config
from engine.result_store import ResultStore
from engine.sampling.options import SamplingLimits
from engine.sampling.parameters import default_processes_logits
from engine.sampling.unsupported import check_generation_config
from engine.sessions import Sessions
from engine.statistics import EngineStatistics, read_statistics
from engine.streaming import stream_outputs
from engine.submission import DeliveryOptions, Submitter

logger = logging.getLogger(__name__)


class ContinuousBatchingManager:
    """Submits requests to an engine, returns their results, starts and stops its thread.

    Not built directly: see `ContinuousMixin.init_continuous_batching`,
    `continuous_batching_context_manager` and `generate_batch`.
    """

    def __init__(
        self,
        model: ServableModel,
        generation_config: GenerationConfig,
        continuous_batching_config: ContinuousBatchingConfig,
        workload_hints: WorkloadHints | None = None,
    ) -> None:
        """Resolve the configuration and allocate the cache; the thread is not started.

        Args:
            model: The model to run.
            generation_config: Defaults of the requests' parameters.
            continuous_batching_config: Settings of the engine; not changed.
            workload_hints: What is known of the work to come.

        Raises:
            UnsupportedConfigError: A setting cannot be honoured.
            CacheTooSmallError: The memory left holds too few blocks.
            UnsupportedModelError: The model says something else with the attention chosen here.
        """
        check_generation_config(
            generation_config, continuous_batching_config.drop_unsupported_processors
        )
        self.model, causal_lm = model, model.causal_lm
        self.generation_config = generation_config
        self.resolved_config = resolved = resolve_config(
            continuous_batching_config,
            workload_hints or WorkloadHints(),
            causal_lm,
            model.geometry,
            processes_logits=default_processes_logits(generation_config, causal_lm.vocab_size),
            fallback_compile=generation_config.compile_config,
        )
        check_once(causal_lm, model.geometry, resolved.attention, resolved.kv_cache_dtype)
        self.limits = SamplingLimits(
            vocab_size=causal_lm.vocab_size,
            max_model_tokens=resolved.max_model_tokens,
            seed=resolved.seed,
        )
        self.sessions = Sessions()
        self._channels = channels = _make_channels(resolved.max_queue_size)
        self._mailbox, self._router = channels.mailbox, channels.router
        self._store, self._pause = channels.router.store, channels.pause
        self._submitter = Submitter(
            generation_config,
            self.limits,
            channels,
            has_priorities=resolved.scheduler_type == "priority",
            can_pool=causal_lm.vector_size is not None,
        )
        self._thread = EngineThread(self._build_loop, channels, resolved.thread_niceness)

    def add_request(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        eos_token_id: int | list[int] | None = None,
        **logit_processor_kwargs: Any,
    ) -> str:
        """Submit one request; never blocks.

        Args:
            input_ids: The prompt's token ids, copied.
            request_id: A name for it, unique among those that have not ended; None makes one.
            max_new_tokens: Longest answer, in tokens; None: the generation configuration's, or what
                fits.
            streaming: Deliver an output for every token, not only at the end.
            record_timestamps: Note when each token was accepted.
            eos_token_id: Tokens that end the answer; None: the generation configuration's, -1 none.
            **logit_processor_kwargs: Sampling parameters, see `SamplingParams`; options of the
                generation configuration by name; deadline_seconds, num_return_sequences,
                prompt_logprobs, stop_strings and tokenizer; grammar, which the answer follows;
                pooling, "mean" or "last", to have the
                prompt's last hidden states as one vector in the terminal output; holds_place, false
                for one that does not count against max_queue_size; and, with
                scheduler_type="priority", priority: lower ones go first, 0 if it is not given.

        Returns:
            The request's id; further answers have those of `family_ids`.

        Raises:
            InvalidRequestError: An argument is unknown, of the wrong type or out of range.
            PromptTooLongError: It cannot fit the context.
            DuplicateRequestError: The id is in use.
            QueueFullError: max_queue_size requests wait already.
            EngineStoppingError: The engine stops.
            EngineDeadError: The engine died.
        """
        options = self._options(
            logit_processor_kwargs, max_new_tokens=max_new_tokens, eos_token_id=eos_token_id
        )
        delivery = DeliveryOptions(streaming, record_timestamps)
        family = self._submitter.make_family(input_ids, request_id, delivery, options)
        return self._submitter.submit([family], in_turn=lambda: False)[0]

    def add_requests(
        self,
        inputs: list[list[int]],
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        **logit_processor_kwargs: Any,
    ) -> list[str]:
        """Submit several requests with the same parameters, waiting for places in the queue.

        All are checked before the first is submitted. If not all can be submitted, those that were
        are cancelled: without their ids nobody could ask for them.

        Returns:
            Their ids, in the order of the inputs.

        Raises:
            InvalidRequestError: See `add_request`.
            PromptTooLongError: See `add_request`.
            QueueFullError: The engine was not started, so that nothing empties the queue.
            EngineStoppingError: The engine stops.
            EngineDeadError: The engine died.
        """
        options = self._options(logit_processor_kwargs, max_new_tokens=max_new_tokens)
        delivery = DeliveryOptions(streaming, record_timestamps)
        families = [self._submitter.make_family(ids, None, delivery, options) for ids in inputs]
        # Nothing empties the queue before start(): waiting for a place would be for ever.
        return self._submitter.submit(families, in_turn=self.is_running)

    def cancel_request(self, request_id: str) -> None:
        """End a request; its terminal output has status CANCELLED. Unknown ids are ignored."""
        self._mailbox.post_cancel(request_id)

    def get_result(
        self, request_id: str | None = None, timeout: float | None = None
    ) -> GenerationOutput | None:
        """Take the oldest output that no handler took.

        Args:
            request_id: Whose output; None takes anyone's.
            timeout: How long to wait, in seconds; None waits as long as one may come.

        Returns:
            The output, or None if there is none in time or none can come any more.
        """
        return self._store.get(request_id, timeout, lambda: self._may_come(request_id))

    def __iter__(self) -> Iterator[GenerationOutput]:
        """Yield outputs that no handler takes until every request has ended."""
        while (output := self._store.get(may_come=self._any_may_come)) is not None:
            yield output

    def request_id_iter(self, request_id: str) -> Iterator[GenerationOutput]:
        """Yield one request's outputs, to its terminal one; blocks in between.

        Raises:
            InvalidRequestError: They go to a handler or another iterator already.
        """
        with self._router.reading(request_id):
            while (output := self.get_result(request_id)) is not None:
                yield output
                if output.is_finished():
                    return

    def stream(self, request_id: str) -> AsyncGenerator[GenerationOutput, None]:
        """Iterate asynchronously over one request's outputs, to its terminal one.

            async for output in manager.stream(manager.add_request(prompt, streaming=True)):

        Leaving early cancels the request; `contextlib.aclosing` makes that happen at once. The
        iterator takes the place of a result handler and is read on one event loop.

        Args:
            request_id: A request that was added, also one that has run for a while or has ended.

        Raises:
            InvalidRequestError: Its outputs go to a handler or another iterator already.
        """
        return stream_outputs(request_id, self._mailbox, self._router)

    def register_result_handler(self, request_id: str, callback: ResultHandler) -> None:
        """Have a request's outputs delivered to a callback on the running event loop.

        It may be registered before the request is added or at any time after: outputs that nobody
        has taken come first, in their order. The handler is dropped after a terminal output.

        Raises:
            RuntimeError: No event loop runs in this thread.
            InvalidRequestError: They go to a handler or an iterator already.
            DuplicateRequestError: The id was just made for another request.
        """
        with self._submitter.ids.given([request_id]):
            self._router.register(request_id, callback)

    def unregister_result_handler(self, request_id: str) -> None:
        """Forget a handler; what is still to come can be had from `get_result` or a new handler."""
        self._router.unregister(request_id)

    def start(self) -> None:
        """Start the engine thread; of one that is still stopping, wait for the end first.

        Raises:
            RuntimeError: The manager was destroyed, or it stops and this thread pauses it.
        """
        self._thread.start()

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        """Stop the engine thread; it takes no requests from now on.

        Args:
            block: Wait until it has stopped.
            timeout: How long to wait, in seconds; it goes on stopping if that is not enough.
            keep_for_next_session: Keep the cache, and the manager on the model, for a next start.
            hard_stop: Fail what is unfinished at the next step instead of finishing it.

        Raises:
            RuntimeError: Called inside this thread's own pause, where it could never end.
        """
        self._thread.stop(hard=hard_stop, keep=keep_for_next_session, block=block, timeout=timeout)
        if keep_for_next_session and not self._thread.is_destroyed:
            self.model.cached_manager = self

    def join(self, stop_trigger_time: float, timeout: float | None = None) -> None:
        """Wait for the engine thread to end.

        Args:
            stop_trigger_time: When the stop was asked for (`time.perf_counter`), for the log.
            timeout: How long to wait, in seconds.
        """
        self._thread.join(stop_trigger_time, timeout)

    def destroy(self) -> None:
        """Stop for good and give the memory back; may be called again."""
        self._thread.mark_destroyed()
        # Before what may take long: from here on nobody is to find it on the model.
        if self.model.cached_manager is self:
            self.model.cached_manager = None
        self._thread.destroy()

    def is_running(self) -> bool:
        """Return whether the engine thread was started and has not ended."""
        return self._thread.is_alive

    @property
    def takes_requests(self) -> bool:
        """Whether the engine runs and was not told to stop."""
        return self._thread.is_alive and not self._mailbox.is_stopping

    @property
    def warmed_up(self) -> bool:
        """Whether `warmup` has run."""
        return self._thread.warmed_up

    def pause(self) -> AbstractContextManager[None]:
        """Hold the engine between two steps, so that the calling thread may use the model.

        Requests and cache are kept. Several threads may hold at once; the engine goes on when the
        last leaves.

        The model's weights may be changed meanwhile, in place or by other ones: the engine notices,
        and computes again what it holds of running requests and of prefixes.

        Raises:
            RuntimeError: On entering, if the engine does not run.
        """
        return self._pause.hold()

    def pause_async(self) -> AbstractAsyncContextManager[None]:
        """Like `pause`, for a coroutine: the event loop runs on while the engine ends its step."""
        return self._pause.hold_async()

    def clear_prefix_cache(self) -> None:
        """Forget every computed key and value before the next step; running requests recompute.

        Changed weights are noticed after a `pause` and at a `start`. This is for changes that are
        not: those made while the engine was running, or to a few values through `weight.data`.
        """
        self._mailbox.post_forget()

    def warmup(self) -> None:
        """Run requests that nobody asked for, for a second or two, unless that was done before.

        Chunks and decoding rows of growing sizes, so that the first real request finds threads,
        buffers and code as the second would.
        """
        if not self._thread.warm_up(self.limits):
            logger.warning("warmup() comes before start()")

    def switch_to_cb_friendly_attn(
        self, model: ServableModel | PreTrainedModel, auto_switch_to_flash: bool = True
    ) -> None:
        """Check that a model's attention can be run over the paged cache.

        Nothing is switched for good: the engine's attention is in place during its forwards only.

        Args:
            model: A model taken over by `wrap` or `load`, or a Hugging Face model.
            auto_switch_to_flash: Has no say here; the configuration's field of this name decides.

        Raises:
            UnsupportedModelError: It cannot.
        """
        probe_geometry(CausalLM(model) if isinstance(model, PreTrainedModel) else model.causal_lm)

    @property
    def num_return_sequences(self) -> int:
        """Answers to a prompt where a request does not say; may be set."""
        return self._submitter.num_return_sequences

    @num_return_sequences.setter
    def num_return_sequences(self, count: int) -> None:
        self._submitter.num_return_sequences = count

    def statistics(self) -> EngineStatistics:
        """Return what the engine holds at this moment."""
        return read_statistics(self._thread.loop, self._channels)

    @property
    def fatal_error(self) -> BaseException | None:
        """What killed the engine thread, or None."""
        return self._thread.fatal_error

    def _options(self, given: dict[str, Any], **more: object) -> dict[str, object]:
        """Return a request's options; it has the model's tokenizer unless it brings one."""
        if given.get("tokenizer") is None:
            more["tokenizer"] = self.model.tokenizer
        return {**given, **more}

    def _build_loop(self) -> EngineLoop:
        parts = assemble(self.model.causal_lm, self.model.geometry, self.resolved_config)
        return EngineLoop(parts, self._channels)

    def _may_come(self, request_id: str | None) -> bool:
        """Return whether outputs may come: of a request that has not ended, or of a new one."""
        if not self._thread.is_turning:
            return False
        return request_id is None or self._mailbox.is_live(request_id)

    def _any_may_come(self) -> bool:
        return self._thread.is_turning and self._mailbox.num_live > 0


def _make_channels(max_queue_size: int) -> Channels:
    """Make what callers and the engine thread share."""
    mailbox, faults = Mailbox(), FaultPoints()
    router = OutputRouter(ResultStore(), faults)
    gate = AdmissionGate(max_queue_size)
    return Channels(mailbox, gate, PauseGate(mailbox.poke), router, faults)
