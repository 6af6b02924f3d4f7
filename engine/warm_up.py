"""Requests that nobody asked for, so that the first real one is not slower than the second.

Runs on the caller's thread before the engine thread exists. What is warm afterwards: the thread
team, the allocator's arenas at the size of a full chunk, lazily loaded code, compiled shapes, and
the pages of the cache that the first requests will use.
"""

import time
from collections.abc import Callable

from engine.batch import SampledTokens, ScheduledBatch
from engine.requests import RequestState
from engine.sampling.options import SamplingLimits
from engine.sampling.parameters import SamplingParams
from engine.scheduler import Scheduler

WARM_UP_SECONDS = 1.5
# Rows and prompt length, growing: each shape is a chunk that prefills and a step that decodes.
SHAPES = ((1, 1), (2, 8), (4, 16), (1, 128), (8, 8), (1, 256), (16, 16), (1, 1024))
SALT = "warm-up"


def warm_up(
    scheduler: Scheduler,
    compute: Callable[[ScheduledBatch], SampledTokens],
    limits: SamplingLimits,
) -> None:
    """Compute one shape after another until the time is up or all are done.

    Args:
        scheduler: Has no other requests.
        compute: Runs a batch's copies, its forward and the sampler.
        limits: What a request may be.
    """
    longest = limits.max_model_tokens - 2
    begin = time.perf_counter()
    for number, (num_rows, num_prompt) in enumerate(SHAPES):
        began = time.perf_counter()
        if num_prompt > max(longest, 1):
            continue
        requests = [
            _make_request(f"warm-up {number} {row}", num_prompt, row, limits.vocab_size)
            for row in range(num_rows)
        ]
        _run(scheduler, compute, requests)
        now = time.perf_counter()
        # The next shape is larger; one that would take too long is not begun.
        if now - begin + 2 * (now - began) > WARM_UP_SECONDS:
            return


def _make_request(name: str, num_prompt: int, row: int, vocab_size: int) -> RequestState:
    """Return a request of two tokens; the second row is sampled, so that this path is warm too."""
    return RequestState(
        request_id=name,
        prompt_ids=[(row + token) % vocab_size for token in range(num_prompt)],
        params=SamplingParams(temperature=1.0 if row == 1 else 0.0, max_new_tokens=2),
        # One salt per request: nothing may be found, everything must be computed.
        salt=f"{SALT} {name}",
    )


def _run(
    scheduler: Scheduler,
    compute: Callable[[ScheduledBatch], SampledTokens],
    requests: list[RequestState],
) -> None:
    for request in requests:
        scheduler.add(request)
    try:
        while scheduler.has_requests():
            batch = scheduler.schedule_batch()
            scheduler.update(batch, compute(batch))
    finally:
        # The loop knows nothing of these requests and must not find them.
        for request in requests:
            if not request.is_finished():
                scheduler.cancel(request)
