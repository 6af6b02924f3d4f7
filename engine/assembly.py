"""Wires the parts of an engine together: the only place where one is built from the others.

Runs on the caller's thread. Variants (scheduler, attention backend, runner) are chosen here and
nowhere else, so that a step has no feature flags in it.
"""

from engine.attention.paged_attention import PagedAttention
from engine.attention.select_backend import make_backend
from engine.cache.block_manager import BlockManager
from engine.cache.paged_cache import PagedCache
from engine.input_builder import InputBuilder
from engine.loop import StepParts
from engine.models.causal_lm import CausalLM
from engine.models.probe import ModelGeometry
from engine.models.weights import WeightWatch
from engine.resolve import ResolvedConfig
from engine.runners.compile_probe import NUM_BLOCKS
from engine.runners.compiled import CompiledPaths, CompiledRunner
from engine.runners.eager import EagerRunner, Runner
from engine.sampling.sampler import Sampler
from engine.scheduler import Scheduler
from engine.scheduler_kinds import SCHEDULERS
from engine.speculation import Speculation
from engine.step_cost import StepPace


def assemble(model: CausalLM, geometry: ModelGeometry, resolved: ResolvedConfig) -> StepParts:
    """Build what computes a step, the cache's memory included."""
    page_size = resolved.page_size
    cache = _make_cache(model, geometry, resolved, resolved.num_blocks)
    cache.add_host_blocks(resolved.num_host_blocks)
    backend = make_backend(resolved.attention, page_size)
    attention = PagedAttention(cache, backend, geometry.layer_indices)

    speculation = Speculation(
        resolved.max_draft_tokens,
        max_batch_tokens=resolved.max_batch_tokens,
        page_size=page_size,
    )

    def make_scheduler() -> Scheduler:
        blocks = BlockManager(
            resolved.num_blocks,
            page_size,
            allow_sharing=resolved.allow_block_sharing,
            num_host_blocks=resolved.num_host_blocks,
        )
        return SCHEDULERS[resolved.scheduler_type](
            blocks,
            max_batch_tokens=resolved.max_batch_tokens,
            max_requests=resolved.max_requests_per_batch,
            num_reserved_blocks=resolved.num_reserved_blocks,
            pace=StepPace(resolved.step_time_target),
            speculation=speculation,
        )

    return StepParts(
        scheduler=make_scheduler(),
        input_builder=InputBuilder(page_size, model.device, resolved.max_blocks_per_request),
        cache=cache,
        runner=_make_runner(model, geometry, resolved, attention),
        sampler=Sampler(return_logprobs=resolved.return_logprobs),
        make_scheduler=make_scheduler,
        weights=WeightWatch(model.hf_model),
    )


def _make_cache(
    model: CausalLM, geometry: ModelGeometry, resolved: ResolvedConfig, num_blocks: int
) -> PagedCache:
    return PagedCache(
        geometry.layers,
        num_blocks,
        resolved.page_size,
        dtype=resolved.kv_cache_dtype,
        device=model.device,
        heads_first=resolved.attention.heads_first,
    )


def _make_runner(
    model: CausalLM, geometry: ModelGeometry, resolved: ResolvedConfig, attention: PagedAttention
) -> Runner:
    paths = CompiledPaths(
        resolved.varlen_compile,
        resolved.decode_compile,
        max_tokens=resolved.max_batch_tokens,
        max_rows=resolved.max_requests_per_batch,
    )
    if paths.varlen is None and paths.decode is None:
        return EagerRunner(model, attention)

    def make_probe() -> PagedAttention:
        cache = _make_cache(model, geometry, resolved, NUM_BLOCKS)
        backend = make_backend(resolved.attention, resolved.page_size)
        return PagedAttention(cache, backend, geometry.layer_indices)

    return CompiledRunner(model, attention, paths, make_probe)
