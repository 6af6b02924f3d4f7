"""Thousands of random schedules, in which each request gets exactly the tokens it should."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from engine.cache import prefix_index
from engine.requests import FinishReason, RequestState
from engine.sampling.parameters import SamplingParams
from engine.scheduler_kinds import PriorityScheduler
from engine.speculation import Speculation
from engine.step_cost import StepPace
from tests.engine.builders import make_scheduler, ticking
from tests.engine.checksum_model import (
    ChecksumEngine,
    checksum,
    expected_answer,
    mostly_repeating,
)
from tests.engine.soundness import check_idle, check_scheduler

NUM_SCHEDULES = 10_000
NUM_LONG_SCHEDULES = 2_000
# So many schedules are one test, so that a failure names a seed within a short range.
BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a schedule is."""

    num_requests: int
    longest_prompt: int
    longest_answer: int


SHORT = Shape(num_requests=5, longest_prompt=16, longest_answer=12)
GUESSED = Shape(num_requests=5, longest_prompt=16, longest_answer=30)
LONG = Shape(num_requests=40, longest_prompt=150, longest_answer=60)


class RandomSchedule:
    """One engine and the requests that a seed throws at it."""

    def __init__(self, seed: int, shape: Shape, *, guesses: bool = False) -> None:
        self.random = random.Random(seed)
        self.shape = shape
        self.follow = mostly_repeating if guesses else checksum
        self.vocab_size = self.random.choice([2, 3, 50])
        page_size = self.random.choice([4, 4, 16])
        longest = shape.longest_prompt + shape.longest_answer
        # From the smallest cache that holds the longest request to one that is never full.
        num_blocks = -(-longest // page_size) + self.random.choice([0, 0, 1, 3, 30])
        max_batch_tokens = self.random.choice([4, 7, 16, 512])
        scheduler = make_scheduler(
            num_blocks,
            page_size,
            kind=self.random.choice(["fifo", "prefill_first", "priority"]),
            sharing=self.random.random() < 0.75,
            max_batch_tokens=max_batch_tokens,
            max_requests=min(max_batch_tokens, self.random.choice([1, 3, 16])),
            num_reserved_blocks=self.random.choice([0, 0, 1, num_blocks // 6]),
            num_host_blocks=self.random.choice([0, 3, 100]),
            pace=self._pace(),
            speculation=Speculation(
                self.random.choice([1, 3, 8]) if guesses else 0,
                max_batch_tokens=max_batch_tokens,
                page_size=page_size,
            ),
        )
        if isinstance(scheduler, PriorityScheduler):
            scheduler.starts_per_turn = self.random.choice([2, 4, 16])
        self.engine = ChecksumEngine(scheduler, self.vocab_size, self.follow)
        self.prefixes = [
            self._tokens(self.random.randint(1, shape.longest_prompt)) for _ in range(2)
        ]
        self.requests: list[RequestState] = []
        self.children: set[str] = set()
        self.num_steps = 0

    def run(self) -> None:
        """Add, step and cancel until every request has ended; check each one's answer."""
        scheduler = self.engine.scheduler
        while len(self.requests) < self.shape.num_requests or scheduler.has_requests():
            if len(self.requests) < self.shape.num_requests and self.random.random() < 0.6:
                self._add()
            if self.random.random() < 0.08:
                self._end_one()
            if scheduler.has_requests():
                self.engine.step()
                self.num_steps += 1
            if self.random.random() < 0.1:
                check_scheduler(scheduler)
                self.engine.check_findable_blocks()
        check_idle(scheduler)
        self.engine.check_findable_blocks()
        self.engine.check_ends(self.requests)
        for request in self.requests:
            self._check_answer(request)

    def _pace(self) -> StepPace:
        """A target that steps miss by chance, with a clock that knows nothing of the machine."""
        source = random.Random(self.random.random())
        clock = ticking(source.expovariate(1.0) for _ in itertools.count())
        return StepPace(self.random.choice([0.0, 0.1, 2.0, 30.0]), clock)

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randrange(self.vocab_size) for _ in range(count)]

    def _add(self) -> None:
        longest = self.shape.longest_prompt
        prompt = self._tokens(self.random.randint(1, longest))
        if self.random.random() < 0.7:
            prefix = self.random.choice(self.prefixes)
            kept = self.random.choice([len(prefix), self.random.randint(1, len(prefix))])
            prompt = (prefix[:kept] + prompt)[: self.random.randint(kept, longest)]
        params = SamplingParams(
            temperature=0.0,
            max_new_tokens=self.random.randint(1, self.shape.longest_answer),
            eos_token_ids=frozenset(self._tokens(1) if self.vocab_size == 50 else ()),
        )
        request = RequestState(f"r{len(self.requests)}", prompt, params)
        if isinstance(self.engine.scheduler, PriorityScheduler):
            request.priority = self.random.choice([0, 0, 1, -3])
        request.salt = self.random.choice(["", "", "", "other"])
        self._queue(request)
        while self.random.random() < 0.2:
            self.children.add(f"r{len(self.requests)}")
            self._queue(request.make_child(f"r{len(self.requests)}", params))

    def _queue(self, request: RequestState) -> None:
        self.requests.append(request)
        self.engine.scheduler.add(request)

    def _end_one(self) -> None:
        """Cancel or fail a request, wherever it is in its life."""
        alive = [request for request in self.requests if not request.is_finished()]
        if not alive:
            return
        request = self.random.choice(alive)
        if self.random.random() < 0.7:
            self.engine.note(self.engine.scheduler.cancel(request))
        else:
            error = ValueError("as if its row had raised")
            self.engine.note(self.engine.scheduler.fail(request, error))

    def _check_answer(self, request: RequestState) -> None:
        expected = expected_answer(request.prompt_ids, request.params, self.vocab_size, self.follow)
        if request.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            expected = expected[: len(request.generated_tokens)]
        assert request.generated_tokens == expected
        # At least one token of a prompt is computed: nothing else yields its logits.
        assert 0 <= request.num_cached_tokens < len(request.prompt_ids)


@pytest.mark.parametrize("first_seed", range(0, NUM_SCHEDULES, BATCH))
def test_random_schedules_yield_the_tokens_of_each_request_alone(first_seed):
    for seed in range(first_seed, first_seed + BATCH):
        RandomSchedule(seed, SHORT).run()


def test_the_random_schedules_reach_every_corner():
    """Guards the test above against becoming harmless: it has to preempt, share and copy a lot."""
    num_preempted = num_cached = num_partial = num_chunked = num_swapped = num_promoted = 0
    num_forked = 0
    for seed in range(500):
        schedule = RandomSchedule(seed, SHORT)
        schedule.run()
        num_preempted += schedule.engine.scheduler.num_preemptions
        num_swapped += schedule.engine.scheduler.num_swapped_in
        for request in schedule.requests:
            num_promoted += request.promoted
            is_child = request.request_id in schedule.children
            num_forked += is_child and request.num_cached_tokens > 0
            num_cached += request.num_cached_tokens > 0
            num_partial += request.num_cached_tokens % schedule.engine.model.page_size > 0
            num_chunked += len(request.prompt_ids) > schedule.engine.scheduler._max_batch_tokens
    counts = (num_preempted, num_cached, num_partial, num_chunked, num_swapped, num_promoted)
    assert min(*counts, num_forked) > 50, (counts, num_forked)


@pytest.mark.parametrize("first_seed", [0, 300])
def test_random_schedules_with_guesses_yield_the_same_tokens(first_seed):
    """And guess, rightly and wrongly, while requests are preempted, shared and cut."""
    met: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 300):
        schedule = RandomSchedule(seed, GUESSED, guesses=True)
        schedule.run()
        scheduler = schedule.engine.scheduler
        met["accepted"] += scheduler.speculation.num_accepted
        met["rejected"] += scheduler.speculation.num_drafted - scheduler.speculation.num_accepted
        met["preempted"] += scheduler.num_preemptions
        met["swapped"] += scheduler.num_swapped_in
        met["ended"] += sum(r.finish_reason is FinishReason.STOP for r in schedule.requests)
        for request in schedule.requests:
            is_child = request.request_id in schedule.children
            met["forked"] += is_child and request.num_cached_tokens > 0
    assert min(met.values()) > 20, met
    assert len(met) == 6


def test_random_schedules_survive_colliding_block_names(monkeypatch):
    """Equal names for different blocks may cost hits; they may never yield another's tokens."""
    monkeypatch.setattr(prefix_index, "chain_hash", lambda parent, content: b"same")
    for seed in range(500):
        RandomSchedule(seed, SHORT).run()


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(0, NUM_LONG_SCHEDULES, 100))
def test_long_random_schedules_yield_the_tokens_of_each_request_alone(first_seed):
    for seed in range(first_seed, first_seed + 100):
        RandomSchedule(seed, LONG).run()
