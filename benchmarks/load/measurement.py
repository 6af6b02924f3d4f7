"""Takes turns: every server gets the same load, one after another, round after round."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.load.answer import Outcome
from benchmarks.load.client import ask
from benchmarks.load.pacing import Pacing
from benchmarks.load.summary import Limits, Summary, summarize
from benchmarks.load.target import Target
from benchmarks.load.workload import Workload


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is measured.

    Attributes:
        targets: The servers.
        paces: The loads, one after another.
        workload: What is asked.
        num_rounds: How often everything is measured.
        num_requests: Requests of a turn; 0 takes four for each client, or 64 in an open loop.
        timeout_seconds: When a request counts as failed.
        limits: What makes an answer good.
    """

    targets: Sequence[Target]
    paces: Sequence[Pacing]
    workload: Workload
    num_rounds: int
    num_requests: int
    timeout_seconds: float
    limits: Limits

    def requests_of(self, pacing: Pacing) -> int:
        """Return the number of requests of a turn."""
        return self.num_requests or pacing.usual_requests

    @property
    def total_requests(self) -> int:
        """The requests of all turns."""
        each = sum(self.requests_of(pacing) for pacing in self.paces)
        return each * len(self.targets) * self.num_rounds

    def turns(self) -> Iterator[tuple[int, Pacing, Target]]:
        """Yield all turns in their order; who begins changes from round to round."""
        for number in range(self.num_rounds):
            first = number % len(self.targets)
            for pacing in self.paces:
                for target in [*self.targets[first:], *self.targets[:first]]:
                    yield number, pacing, target


@dataclass(frozen=True, slots=True)
class Turn:
    """One server under one load, once.

    Attributes:
        round_number: Of which round it is, from 0.
        load: What was sent.
        target: Name of the server.
        summary: What came of it.
    """

    round_number: int
    load: str
    target: str
    summary: Summary


async def measure(
    plan: Plan, on_turn: Callable[[Turn], None], on_request: Callable[[], None]
) -> None:
    """Take all turns; each goes to `on_turn` when it is over, so that none is lost."""
    for number, pacing, target in plan.turns():
        summary = await _take_turn(plan, number, pacing, target, on_request)
        on_turn(Turn(number, pacing.label, target.name, summary))


async def _take_turn(
    plan: Plan, number: int, pacing: Pacing, target: Target, on_request: Callable[[], None]
) -> Summary:
    prompts = plan.workload.prompts(plan.requests_of(pacing), number)
    # Made beforehand: while the clock runs, the generator sends and receives and does no more.
    requests = [plan.workload.request(target, prompt, target.extras) for prompt in prompts]

    async def send(request: bytes, start_seconds: float) -> Outcome:
        outcome = await ask(target, request, start_seconds, plan.timeout_seconds)
        on_request()
        return outcome

    processor, start = time.process_time(), time.perf_counter()
    outcomes = await pacing.run(requests, send, plan.workload.seed + number)
    seconds = time.perf_counter() - start
    share = (time.process_time() - processor) / seconds
    return summarize(
        outcomes, seconds, plan.limits, plan.workload.num_output_tokens, generator_share=share
    )
