"""What an engine holds at one moment, for health checks, metrics and tests.

Read from any thread without a lock: each number is one read of a counter that the engine thread
writes, so together they may straddle a step.
"""

from dataclasses import dataclass

from engine.loop import Channels, EngineLoop


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counters of an engine.

    Attributes:
        num_live: Requests accepted and not ended.
        num_waiting: Of these, those that hold no blocks, preempted ones included.
        num_running: Of these, those that hold blocks.
        num_blocks: Blocks in the cache.
        num_free_blocks: Blocks that no request holds; many of them still hold findable prefixes.
        num_cached_blocks: Blocks that the prefix index can find.
        num_preemptions: How often a request's blocks were taken.
        num_swapped_out: How often these were copied to the host, not given up.
        num_swapped_in: How often a request went on from such a copy.
        num_drafted_tokens: Tokens that were guessed and computed.
        num_accepted_tokens: Of these, those that were right.
        num_steps: Steps since the loop was built.
        num_restarts: How often the loop began again after a step that failed.
        num_queued: Requests that have not been scheduled yet; these count against max_queue_size.
        is_paused: Whether somebody holds the loop between two steps.
    """

    num_live: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_preemptions: int = 0
    num_swapped_out: int = 0
    num_swapped_in: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_steps: int = 0
    num_restarts: int = 0
    num_queued: int = 0
    is_paused: bool = False

    @property
    def draft_acceptance(self) -> float:
        """Share of the guessed tokens that were right; 0 while none was guessed."""
        return self.num_accepted_tokens / max(1, self.num_drafted_tokens)


def read_statistics(loop: EngineLoop | None, channels: Channels) -> EngineStatistics:
    """Return the counters; zeros for an engine that has stopped."""
    num_live = channels.mailbox.num_live
    if loop is None:
        return EngineStatistics(num_live=num_live)
    scheduler = loop.scheduler
    num_running = len(scheduler.running)
    return EngineStatistics(
        num_live=num_live,
        num_waiting=max(0, num_live - num_running),
        num_running=num_running,
        num_blocks=scheduler.blocks.pool.num_blocks,
        num_free_blocks=scheduler.blocks.pool.num_free,
        num_cached_blocks=len(scheduler.blocks.index),
        num_preemptions=scheduler.num_preemptions,
        num_swapped_out=scheduler.num_swapped_out,
        num_swapped_in=scheduler.num_swapped_in,
        num_drafted_tokens=scheduler.speculation.num_drafted,
        num_accepted_tokens=scheduler.speculation.num_accepted,
        num_steps=loop.num_steps,
        num_restarts=loop.restarts.num_restarts,
        num_queued=channels.gate.num_waiting,
        is_paused=channels.pause.is_parked,
    )
