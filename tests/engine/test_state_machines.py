"""Random walks, shrunk to the shortest failure, over the blocks and over the scheduler.

The walk over blocks keeps the memory of a cache beside them: each slot holds all tokens up to its
own. What is attached to a request is compared with that, so that a wrong hit is seen at once.
"""

import itertools
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import loop
from engine.cache import prefix_index
from engine.cache.block_manager import BlockManager
from engine.requests import RequestState
from engine.scheduler import Scheduler
from engine.scheduler_kinds import PriorityScheduler
from engine.step_cost import StepPace
from tests.engine.builders import make_request, make_scheduler, ticking
from tests.engine.checksum_model import ChecksumEngine, expected_answer
from tests.engine.soundness import check_blocks, check_host, check_idle, check_scheduler

PAGE = 4
# Few tokens, so that prompts share much, and short ones, so that a pool is soon full.
TOKENS = st.integers(0, 2)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=14)
NORMAL = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
LONG = settings(NORMAL, max_examples=500, stateful_step_count=100)


class BlockWalk(RuleBasedStateMachine):
    """Requests that come, grow and go, over a pool that is too small for all of them."""

    holders = Bundle("holders")

    @initialize(
        num_blocks=st.integers(2, 9), sharing=st.booleans(), num_host_blocks=st.integers(0, 4)
    )
    def start(self, num_blocks, sharing, num_host_blocks):
        self.blocks = BlockManager(
            num_blocks, PAGE, allow_sharing=sharing, num_host_blocks=num_host_blocks
        )
        self.memory: dict[int, tuple[int, ...]] = {}
        self.live: list[RequestState] = []
        self.num_made = 0

    @rule(target=holders, prompt=PROMPTS, salt=st.sampled_from(["", "", "other"]))
    def attach(self, prompt, salt):
        request = make_request(f"r{self.num_made}", prompt, salt)
        self.num_made += 1
        self._attach(request)
        return request

    @rule(request=holders, count=st.integers(1, 6))
    def compute(self, request, count):
        stop = min(request.num_computed + count, request.num_tokens)
        free = self.blocks.pool.num_free
        missing = self.blocks.num_missing_blocks(request, stop)
        assert self.blocks.extend(request, stop) == (missing <= free)
        if missing > free:
            return
        for position in range(request.num_computed, stop):
            self.memory[self._slot(request, position)] = self._history(request, position)
        request.num_computed = stop
        self.blocks.commit(request)

    @rule(request=holders, token=TOKENS)
    def accept(self, request, token):
        if request.num_missing_tokens == 0:
            request.generated_tokens.append(token)

    @rule(request=consumes(holders), discard=st.booleans())
    def end(self, request, discard):
        self._let_go(request, discard=discard)

    @rule(target=holders, request=consumes(holders), others=st.integers(0, 3))
    def preempt_and_come_back(self, request, others):
        """Others may have written to some of its blocks meanwhile."""
        self._copy(self.blocks.host.save(request))
        self._let_go(request)
        request.num_preemptions += 1
        for _ in range(min(others, self.blocks.pool.num_free)):
            self.blocks.pool.free(self.blocks._allocate(), is_cached=False)
        self._attach(request)
        return request

    @rule(prompt=PROMPTS)
    def attach_in_vain(self, prompt):
        request = make_request("vain", prompt)
        free = self.blocks.pool.num_free
        self.blocks.attach_prefix(request)
        self.blocks.detach(request)
        assert self.blocks.pool.num_free == free

    @precondition(lambda self: not self.live)
    @rule()
    def everything_is_free_when_nobody_is_left(self):
        assert self.blocks.pool.num_free == self.blocks.pool.num_blocks

    @invariant()
    def accounts_are_exact(self):
        if hasattr(self, "blocks"):
            check_blocks(self.blocks, self.live)
            check_host(self.blocks.host, [])

    def teardown(self):
        for request in getattr(self, "live", []):
            self.blocks.free(request)

    def _attach(self, request):
        copy = self.blocks.attach_prefix(request)
        self.live.append(request)
        if copy is not None:
            self._copy([copy])
        if self.blocks.num_missing_blocks(request, request.num_saved) <= self.blocks.pool.num_free:
            self._copy(self.blocks.swap_in(request))
        self.blocks.host.drop(request)
        assert request.num_computed < request.num_tokens
        for position in range(request.num_computed):
            found = self.memory[self._slot(request, position)]
            assert found == self._history(request, position), "another request's tokens were found"

    def _copy(self, copies):
        for copy in copies:
            for offset in range(copy.num_slots):
                # A whole block is copied, what nobody has written included.
                copied = self.memory.get(copy.source * PAGE + offset, ())
                self.memory[copy.destination * PAGE + offset] = copied

    def _let_go(self, request, *, discard=False):
        self.live.remove(request)
        self.blocks.free(request, discard=discard)

    def _slot(self, request, position):
        return request.block_ids[position // PAGE] * PAGE + position % PAGE

    def _history(self, request, position):
        return (request.salt, *request.tokens_between(0, position + 1).tolist())


class SchedulerWalk(RuleBasedStateMachine):
    """A scheduler over the checksum model, whose answers are wrong if anything else is."""

    waiting_or_running = Bundle("waiting_or_running")
    replaced: ClassVar[list[Scheduler]] = []  # whose accounts nobody looks at any more

    @initialize(
        extra=st.integers(0, 6),
        kind=st.sampled_from(["fifo", "prefill_first", "priority"]),
        sharing=st.booleans(),
        max_batch_tokens=st.sampled_from([3, 8, 64]),
        reserved=st.integers(0, 2),
        num_host_blocks=st.sampled_from([0, 3, 30]),
    )
    def start(self, extra, kind, sharing, max_batch_tokens, reserved, num_host_blocks):
        self.make_scheduler = lambda: make_scheduler(
            6 + extra,
            PAGE,
            kind=kind,
            sharing=sharing,
            max_batch_tokens=max_batch_tokens,
            max_requests=3,
            num_reserved_blocks=reserved,
            num_host_blocks=num_host_blocks,
            pace=StepPace(1.0, ticking(itertools.cycle([0.1, 0.1, 9.0]))),
        )
        self.engine = ChecksumEngine(self.make_scheduler(), vocab_size=3)
        self.requests: list[RequestState] = []

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @rule(
        target=waiting_or_running,
        prompt=PROMPTS,
        max_new_tokens=st.integers(1, 9),
        priority=st.integers(0, 2),
    )
    def add(self, prompt, max_new_tokens, priority):
        name = f"r{len(self.requests)}"
        request = make_request(name, prompt, max_new_tokens=max_new_tokens)
        if isinstance(self.scheduler, PriorityScheduler):
            request.priority = priority
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    @rule(target=waiting_or_running, request=waiting_or_running)
    def fork(self, request):
        """One more answer to its prompt, asked for early or late."""
        name = f"r{len(self.requests)}"
        child = RequestState(name, request.prompt_ids, request.params, parent=request)
        child.priority = request.priority
        self.requests.append(child)
        self.scheduler.add(child)
        return child

    @precondition(lambda self: self.scheduler.has_requests())
    @rule(count=st.integers(1, 5))
    def steps(self, count):
        for _ in range(count):
            if self.scheduler.has_requests():
                self.engine.step()

    @rule(request=consumes(waiting_or_running), fails=st.booleans())
    def end(self, request, fails):
        if request.is_finished():
            return
        if fails:
            error = ValueError("as if its row had raised")
            self.engine.note(self.scheduler.fail(request, error))
        else:
            self.engine.note(self.scheduler.cancel(request))

    @rule()
    def begin_again(self):
        """Do what the loop does after a restart, and when the weights have changed."""
        before = self.engine.scheduler
        self.replaced.append(before)
        after = self.engine.scheduler = self.make_scheduler()
        after.go_on_from(before)
        for request in self.requests:
            if not request.is_finished():
                request.num_preemptions += request.lifespan[0] >= 0
                loop._detach(request)
                after.add(request)

    @rule(request=waiting_or_running)
    def preempt(self, request):
        if request.request_id in self.scheduler.running:
            self.scheduler.preempt(request)

    @invariant()
    def accounts_are_exact(self):
        if hasattr(self, "engine"):
            check_scheduler(self.scheduler)
            self.engine.check_findable_blocks()
            self.engine.check_ends(self.requests)

    @invariant()
    def answers_are_those_of_each_request_alone(self):
        for request in getattr(self, "requests", []):
            expected = expected_answer(request.prompt_ids, request.params, vocab_size=3)
            count = len(request.generated_tokens)
            assert request.generated_tokens == expected[:count]

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        while self.scheduler.has_requests():
            self.engine.step()
        check_idle(self.scheduler)
        assert len(self.engine.ends) == len(self.requests)
        self.engine.check_ends(self.requests)


MACHINES = [BlockWalk, SchedulerWalk]


@pytest.fixture(autouse=True)
def replaced_schedulers_are_not_checked(cache_is_sound, monkeypatch):
    monkeypatch.setattr(SchedulerWalk, "replaced", cache_is_sound.broken)


@pytest.mark.parametrize("machine", MACHINES)
def test_random_walks_keep_every_invariant(machine):
    run_state_machine_as_test(machine, settings=NORMAL)


def test_random_walks_find_no_wrong_block_when_names_collide(monkeypatch):
    monkeypatch.setattr(prefix_index, "chain_hash", lambda parent, content: b"same")
    run_state_machine_as_test(BlockWalk, settings=NORMAL)


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_long_random_walks_keep_every_invariant(machine):
    run_state_machine_as_test(machine, settings=LONG)
