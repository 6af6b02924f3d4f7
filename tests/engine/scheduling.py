"""Steps of a scheduler without a model: what it plans, and a token for whoever samples."""

from typing import Any

from engine.batch import SampledTokens, ScheduledBatch
from engine.requests import GenerationOutput, RequestState
from engine.scheduler import Scheduler
from tests.engine.builders import make_request, make_scheduler
from tests.engine.soundness import check_scheduler


def prompt(length: int, first: int = 1) -> list[int]:
    """Return a prompt of consecutive tokens."""
    return list(range(first, first + length))


def share(batch: ScheduledBatch) -> dict[str, int]:
    """Return {request id: new tokens} of a batch, in its order."""
    return {item.request.request_id: item.num_new_tokens for item in batch.scheduled}


def step(
    scheduler: Scheduler, token: int = 7, errors: dict[int, Exception] | None = None
) -> tuple[ScheduledBatch, list[GenerationOutput]]:
    """Run a step in which every sampling request draws the same token."""
    batch = scheduler.schedule_batch()
    count = len(batch.sampling)
    sampled = SampledTokens([token] * count, [], [None] * count, errors or {})
    outputs = scheduler.update(batch, sampled)
    check_scheduler(scheduler)
    return batch, outputs


def started(scheduler: Scheduler, *requests: RequestState) -> tuple[RequestState, ...]:
    """Add requests and run the step that admits them."""
    for request in requests:
        scheduler.add(request)
    step(scheduler)
    return requests


def distinct(name: str, length: int, **params: Any) -> RequestState:
    """Return a request whose tokens no other one shares."""
    first = 1000 * (ord(name[0]) - ord("a") + 1)
    return make_request(name, prompt(length, first), **{"max_new_tokens": 50, **params})


def full_of_three() -> tuple[Scheduler, tuple[RequestState, ...]]:
    """Return a scheduler with a, b and c running, and no block left for a next one."""
    scheduler = make_scheduler(num_blocks=3, page_size=4)
    requests = started(scheduler, *(distinct(name, 3) for name in "abc"))
    step(scheduler)
    assert scheduler.blocks.pool.num_free == 0
    return scheduler, requests
