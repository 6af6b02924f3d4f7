"""`ContinuousMixin`: the documented entry points, on any class that is a `ServableModel`.

Runs on the caller's thread. transformers' own models inherit a class of the same name; ours sits on
`PagedModel` instead of being patched onto theirs, so both can be used side by side.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from transformers import GenerationConfig

from engine.config import ContinuousBatchingConfig, WorkloadHints
from engine.errors import EngineDeadError, EngineStoppingError
from engine.manager import ContinuousBatchingManager
from engine.models.causal_lm import CausalLM
from engine.models.probe import ModelGeometry
from engine.request_ids import family_ids
from engine.requests import GenerationOutput
from engine.sessions import Sessions

logger = logging.getLogger(__name__)


class ContinuousMixin:
    """Continuous batching for a model.

    Attributes:
        causal_lm: Runs packed tokens.
        geometry: The model's attention layers.
        generation_config: Defaults of the requests' parameters.
        tokenizer: What stop_strings are looked for with; set it to use them.
        cached_manager: The manager that was kept for a next session, or None.
    """

    causal_lm: CausalLM
    geometry: ModelGeometry
    generation_config: GenerationConfig
    tokenizer: Any = None
    cached_manager: ContinuousBatchingManager | None = None

    def init_continuous_batching(
        self,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: WorkloadHints | None = None,
    ) -> ContinuousBatchingManager:
        """Return a manager; it is not started.

        A manager kept by `stop(keep_for_next_session=True)` is returned as it is, its arguments
        with it.

        Args:
            generation_config: Defaults of the requests' parameters; None takes the model's.
            continuous_batching_config: Settings of the engine; None takes the defaults.
            workload_hints: What is known of the work to come.

        Raises:
            UnsupportedConfigError: A setting cannot be honoured.
            CacheTooSmallError: The memory left holds too few blocks.
        """
        if self.cached_manager is not None:
            if generation_config is not None or continuous_batching_config is not None:
                logger.warning("the kept manager is used; the new configurations are not")
            return self.cached_manager
        return ContinuousBatchingManager(
            self,
            generation_config or self.generation_config,
            continuous_batching_config or ContinuousBatchingConfig(),
            workload_hints,
        )

    def destroy_cached_continuous_batching_manager(self) -> None:
        """Destroy the kept manager, if there is one."""
        if self.cached_manager is not None:
            self.cached_manager.destroy()

    @contextmanager
    def continuous_batching_context_manager(  # noqa: PLR0913 - the documented signature
        self,
        generation_config: GenerationConfig | None = None,
        block: bool = True,
        timeout: float | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        persistent_manager: bool = False,
        warmup: bool = True,
        workload_hints: WorkloadHints | None = None,
    ) -> Iterator[ContinuousBatchingManager]:
        """Yield a running manager; it finishes what it has accepted before the block is left.

        A block that raises is left at once, and what is unfinished fails. While others use the
        same kept manager, leaving one block stops nothing: the last to be left does.

        Args:
            generation_config: See `init_continuous_batching`.
            block: Wait for it to stop.
            timeout: How long to wait, in seconds.
            continuous_batching_config: See `init_continuous_batching`.
            persistent_manager: Keep the manager and its cache for the next call; blocks and batches
                that are entered meanwhile use it too.
            warmup: Run a dummy request first.
            workload_hints: See `init_continuous_batching`.
        """
        with Sessions.changing:
            manager = self.init_continuous_batching(
                generation_config, continuous_batching_config, workload_hints
            )
            manager.sessions.enter(keep=persistent_manager)
            if persistent_manager:
                self.cached_manager = manager
        has_raised = True
        try:
            if warmup and not manager.is_running():
                manager.warmup()
            if not manager.takes_requests:
                manager.start()
            yield manager
            has_raised = False
        finally:
            _leave(manager, block=block, timeout=timeout, hard_stop=has_raised)

    def generate_batch(  # noqa: PLR0913 - the documented signature
        self,
        inputs: list[list[int]],
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        record_timestamps: bool = False,
        progress_bar: bool = False,
        persistent_manager: bool = False,
        warmup: bool = True,
        **kwargs: Any,
    ) -> dict[str, GenerationOutput]:
        """Generate an answer for each prompt, all together.

        Args:
            inputs: Prompts as token ids.
            generation_config: Defaults of the requests' parameters; None takes the model's.
            continuous_batching_config: Settings of the engine; None takes the defaults.
            record_timestamps: Note when each token was accepted.
            progress_bar: Show how many requests have ended.
            persistent_manager: Keep the manager and its cache for the next call.
            warmup: Run a dummy request first.
            **kwargs: max_new_tokens, num_return_sequences, sampling parameters and whatever else
                `ContinuousBatchingManager.add_request` takes, for all requests alike.

        Returns:
            Request id -> terminal output, in the order of the inputs; of several answers to one,
            the one that bears the request's own id comes last. A request that failed is in it too,
            with its `error`.

        Raises:
            InvalidRequestError: A prompt or a keyword is wrong; nothing was generated.
            PromptTooLongError: A prompt does not fit; nothing was generated.
            EngineDeadError: The engine died.
            KeyboardInterrupt: The caller was interrupted; what was unfinished is cancelled.
        """
        if not inputs:
            return {}
        defaults = generation_config or self.generation_config
        given = kwargs.get("num_return_sequences")
        count = (defaults.num_return_sequences or 1) if given is None else given
        hints = WorkloadHints(
            max_prompt_length=max(len(prompt) for prompt in inputs),
            max_generated_length=kwargs.get("max_new_tokens") or 0,
            # A kept manager serves later calls too, of any size.
            num_requests=0 if persistent_manager else len(inputs) * _as_factor(count),
        )
        with self.continuous_batching_context_manager(
            generation_config,
            continuous_batching_config=continuous_batching_config,
            persistent_manager=persistent_manager,
            warmup=warmup,
            workload_hints=hints,
        ) as manager:
            kwargs["num_return_sequences"] = count
            parents = manager.add_requests(inputs, record_timestamps=record_timestamps, **kwargs)
            ids = [name for parent in parents for name in family_ids(parent, count)]
            try:
                return _collect(manager, ids, progress_bar=progress_bar)
            except BaseException:
                # Nobody will get the answers: leaving the block must not wait until they are done.
                for request_id in ids:
                    manager.cancel_request(request_id)
                raise


def _leave(
    manager: ContinuousBatchingManager, *, block: bool, timeout: float | None, hard_stop: bool
) -> None:
    """End a session; with the last one the engine stops."""
    with Sessions.changing:
        keep = manager.sessions.leave()
        if keep is None:
            return
        began = time.perf_counter()
        if manager.is_running():
            manager.stop(block=False, hard_stop=hard_stop, keep_for_next_session=keep)
    if block:
        manager.join(began, timeout)
    with Sessions.changing:
        # Somebody may have come while this one waited.
        if not keep and manager.sessions.num_open == 0 and not manager.is_running():
            manager.destroy()


def _as_factor(count: object) -> int:
    """Return a number for a hint; what is wrong with it is said where it is used."""
    return count if isinstance(count, int) else 1


def _collect(
    manager: ContinuousBatchingManager, request_ids: list[str], *, progress_bar: bool
) -> dict[str, GenerationOutput]:
    """Wait for the terminal output of each request."""
    outputs: dict[str, GenerationOutput] = {}
    for request_id in tqdm(request_ids, disable=not progress_bar, unit="request"):
        for output in manager.request_id_iter(request_id):
            outputs[request_id] = output
        if manager.fatal_error is not None:
            raise EngineDeadError.of(manager.fatal_error)
        if request_id not in outputs:
            raise EngineStoppingError(f"the output of {request_id} was taken by another thread")
    return outputs
