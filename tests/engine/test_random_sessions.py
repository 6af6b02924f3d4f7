"""A running engine over the checksum model, and everything that callers may do to it, at random.

The model's answers are wrong as soon as a slot, a copy, a swap, a fork or a block table is; the
caller adds, cancels, pauses, stops and starts, and lets the cache be forgotten, at any moment.
"""

import random
from collections import Counter, defaultdict

import pytest

from engine import FinishReason, GenerationOutput
from engine.request_ids import family_ids
from tests.engine.builders import make_request
from tests.engine.checksum_model import (
    ChecksumModel,
    checksum,
    expected_answer,
    mostly_repeating,
)
from tests.engine.control import loop_of
from tests.engine.soundness import check_scheduler

VOCAB_SIZE = 199
PAGE = 4
LONGEST_PROMPT = 16
LONGEST_ANSWER = 12
NUM_OPERATIONS = 60
UNFINISHED = (FinishReason.CANCELLED, FinishReason.ERROR)


class RandomSession:
    """A caller that does everything that the documentation allows."""

    def __init__(self, seed: int, make_manager, *, guesses: bool = False) -> None:
        self.random = random.Random(seed)
        self.follow = mostly_repeating if guesses else checksum
        self.longest_answer = 3 * LONGEST_ANSWER if guesses else LONGEST_ANSWER
        self.kind = self.random.choice(["fifo", "prefill_first", "priority"])
        self.manager = make_manager(
            page_size=PAGE,
            # From the smallest cache that holds the longest request to one that is rarely full.
            num_blocks=-(-(LONGEST_PROMPT + self.longest_answer) // PAGE)
            + self.random.choice([0, 1, 3, 20]),
            max_batch_tokens=self.random.choice([5, 16, 64]),
            max_requests_per_batch=self.random.choice([3, 5]),
            scheduler_type=self.kind,
            safety_margin=self.random.choice([0.0, 0.2]),
            cpu_offload_space=self.random.choice([0.0, 1e-5, 1e-3]),
            allow_block_sharing=self.random.random() < 0.75,
            step_time_target=self.random.choice([0.0, 1e-4]),
            max_draft_tokens=self.random.choice([1, 3, 8]) if guesses else 0,
        )
        parts = loop_of(self.manager)._parts
        model = ChecksumModel(parts.scheduler.blocks, VOCAB_SIZE, self.follow)
        parts.cache, parts.runner = model.cache, model
        self.prefix = self._tokens(LONGEST_PROMPT)
        self.prompts: dict[str, tuple[list[int], int]] = {}
        self.outputs: dict[str, list[GenerationOutput]] = defaultdict(list)
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """Do what chance says, then let everything end, and check what came of it."""
        self.manager.start()
        ways = [self.add] * 5 + [self.cancel, self.pause, self.stop, self.forget, self.read]
        for _ in range(NUM_OPERATIONS):
            way = self.random.choice(ways)
            self.done[way.__name__] += 1
            way()
        for output in self.manager:
            self.outputs[output.request_id].append(output)
        self.manager.stop(keep_for_next_session=True)
        for name, (prompt, num_tokens) in self.prompts.items():
            self._check(self.outputs[name], prompt, num_tokens)
        assert self.outputs.keys() == self.prompts.keys()

    def add(self) -> None:
        """Add a request, streamed or not, with up to two more answers."""
        kept = self.random.randrange(LONGEST_PROMPT)
        prompt = (self.prefix[:kept] + self._tokens(LONGEST_PROMPT))[
            : self.random.randint(1, LONGEST_PROMPT)
        ]
        options = {"priority": self.random.randint(0, 2)} if self.kind == "priority" else {}
        count = self.random.choice([1, 1, 2, 3])
        num_tokens = self.random.randint(1, self.longest_answer)
        name = self.manager.add_request(
            prompt,
            max_new_tokens=num_tokens,
            streaming=self.random.random() < 0.5,
            num_return_sequences=count,
            **options,
        )
        self.prompts.update(dict.fromkeys(family_ids(name, count), (prompt, num_tokens)))

    def cancel(self) -> None:
        """Cancel a request, wherever it is, or one that has ended."""
        if self.prompts:
            self.manager.cancel_request(self.random.choice([*self.prompts]))

    def pause(self) -> None:
        """Hold the loop; all accounts must be exact between two steps."""
        with self.manager.pause():
            check_scheduler(loop_of(self.manager).scheduler)

    def stop(self) -> None:
        """Stop, mostly letting what was accepted end, and start again with the same cache."""
        self.manager.stop(keep_for_next_session=True, hard_stop=self.random.random() < 0.3)
        check_scheduler(loop_of(self.manager).scheduler)
        self.manager.start()

    def forget(self) -> None:
        """Have everything that was computed forgotten."""
        self.manager.clear_prefix_cache()

    def read(self) -> None:
        """Take some outputs."""
        for _ in range(self.random.randint(1, 9)):
            output = self.manager.get_result(timeout=0)
            if output is not None:
                self.outputs[output.request_id].append(output)

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randrange(VOCAB_SIZE) for _ in range(count)]

    def _check(self, outputs: list[GenerationOutput], prompt: list[int], num_tokens: int) -> None:
        """One terminal output, the last; the tokens of the prompt alone; nothing sent twice."""
        assert [output.is_finished() for output in outputs] == [False] * (len(outputs) - 1) + [True]
        params = make_request("", prompt, max_new_tokens=num_tokens).params
        expected = expected_answer(prompt, params, VOCAB_SIZE, self.follow)
        last = outputs[-1]
        if last.finish_reason in UNFINISHED:
            expected = expected[: len(last.generated_tokens)]
        assert last.generated_tokens == expected
        assert [token for output in outputs for token in output.new_tokens] == expected


@pytest.fixture
def run_session(make_manager, tiny_model):
    def run(seed: int, *, guesses: bool = False) -> RandomSession:
        session = RandomSession(seed, make_manager, guesses=guesses)
        session.run()
        return session

    yield run
    tiny_model.cached_manager = None


@pytest.mark.parametrize(
    ("first_seed", "guesses"),
    [(0, False), (15, False), (30, False), (45, False), (0, True), (15, True)],
)
def test_random_sessions_give_each_request_its_answer_and_one_end(first_seed, guesses, run_session):
    """And meet what they are there to meet: swaps, forks, preemptions and ends of every kind."""
    met: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 15):
        session = run_session(seed, guesses=guesses)
        session.manager.model.cached_manager = None
        met.update(session.done)
        statistics = session.manager.statistics()
        met["swapped"] += statistics.num_swapped_in
        met["preempted"] += statistics.num_preemptions
        met["right"] += statistics.num_accepted_tokens
        met["wrong"] += statistics.num_drafted_tokens - statistics.num_accepted_tokens
        for outputs in session.outputs.values():
            met[outputs[-1].finish_reason.name] += 1
            met["cached"] += outputs[-1].num_cached_tokens > 0
    wanted = ["swapped", "preempted", "cached", "pause", "stop", "forget", "cancel"]
    wanted += ["LENGTH", "CANCELLED", "ERROR"]
    wanted += ["right", "wrong"] if guesses else []
    assert min(met[name] for name in wanted) > 4, met


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1000, 2000, 50))
def test_many_random_sessions_give_each_request_its_answer_and_one_end(first_seed, run_session):
    for seed in range(first_seed, first_seed + 50):
        run_session(seed, guesses=seed % 2 == 0).manager.model.cached_manager = None
