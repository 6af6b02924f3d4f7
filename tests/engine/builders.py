"""Short ways to the objects that engine tests start from."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from engine.cache.block_manager import BlockManager
from engine.requests import RequestState
from engine.sampling.parameters import SamplingParams
from engine.scheduler import Scheduler
from engine.scheduler_kinds import SCHEDULERS


def make_request(
    name: str = "r", prompt: list[int] | None = None, salt: str = "", **params: Any
) -> RequestState:
    """Return a greedy request of up to 4 tokens; keywords are fields of `SamplingParams`."""
    resolved = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 4, **params})
    return RequestState(name, [1, 2, 3] if prompt is None else prompt, resolved, salt=salt)


def ticking(seconds: Iterable[float]) -> Callable[[], float]:
    """Return a clock that moves on by one of these, in their order, each time it is read."""
    times = itertools.accumulate(seconds)
    return lambda: next(times)


def make_scheduler(
    num_blocks: int = 16,
    page_size: int = 4,
    *,
    kind: str = "fifo",
    sharing: bool = True,
    num_host_blocks: int = 0,
    **limits: Any,
) -> Scheduler:
    """Return a scheduler over blocks of its own, with wide limits unless they are given."""
    blocks = BlockManager(
        num_blocks, page_size, allow_sharing=sharing, num_host_blocks=num_host_blocks
    )
    wide = {"max_batch_tokens": 64, "max_requests": 16, "num_reserved_blocks": 0}
    return SCHEDULERS[kind](blocks, **{**wide, **limits})
