"""What a step takes, learnt from steps, and the chunks that keep streams at their pace."""

import itertools
import random

import pytest

from engine.batch import SampledTokens, ScheduledBatch, ScheduledRequest
from engine.step_cost import MIN_CHUNK_TOKENS, StepCost, StepPace
from tests.engine.builders import make_scheduler
from tests.engine.scheduling import distinct, share, started, step


class Machine:
    """A clock that moves on by what a machine of these costs would take for each step.

    Attributes:
        fixed: Seconds of a step whatever is in it.
        row: Seconds of a request that computes one token.
        token: Seconds of a token of a prompt.
    """

    def __init__(self, fixed=0.01, row=0.002, token=0.004) -> None:
        self.fixed, self.row, self.token = fixed, row, token
        self.now = 0.0

    def seconds(self, num_rows, num_tokens):
        return self.fixed + self.row * num_rows + self.token * num_tokens

    def clock(self):
        return self.now


def learnt(machine, steps):
    cost = StepCost()
    for num_rows, num_tokens in steps:
        cost.observe(num_rows, num_tokens, machine.seconds(num_rows, num_tokens))
    return cost


def test_nothing_is_known_in_the_beginning():
    cost = StepCost()
    assert cost.decode_seconds(8) == 0.0
    assert cost.prefill_seconds == 0.0
    assert cost.num_tokens_within(1.0, 8) == MIN_CHUNK_TOKENS


def test_rows_and_prompt_tokens_are_told_apart():
    machine = Machine()
    cost = learnt(machine, [(rows, 0) for rows in range(1, 20)] + [(19, 30), (19, 10)])
    assert cost.decode_seconds(40) == pytest.approx(machine.seconds(40, 0))
    assert cost.prefill_seconds == pytest.approx(machine.token)
    assert cost.num_tokens_within(0.25, 10) == int((0.25 - 0.03) / 0.004)


def test_steps_that_are_all_alike_say_nothing_of_a_single_row():
    cost = learnt(Machine(), [(8, 0)] * 30)
    assert cost.decode_seconds(8) == pytest.approx(Machine().seconds(8, 0))
    assert cost.decode_seconds(16) == cost.decode_seconds(8)


def test_the_latest_steps_decide():
    slow = Machine(fixed=0.1, row=0.02, token=0.04)
    steps = [(rows, tokens) for rows in (1, 5, 9) for tokens in (0, 20)]
    cost = learnt(Machine(), steps * 10)
    for num_rows, num_tokens in steps * 10:
        cost.observe(num_rows, num_tokens, slow.seconds(num_rows, num_tokens))
    assert cost.prefill_seconds == pytest.approx(slow.token, rel=0.05)
    assert cost.decode_seconds(5) == pytest.approx(slow.seconds(5, 0), rel=0.05)


def test_more_rows_are_never_taken_to_be_quicker():
    cost = StepCost()
    for num_rows, seconds in [(1, 0.9), (9, 0.1)] * 5:
        cost.observe(num_rows, 0, seconds)
    assert cost.decode_seconds(20) >= cost.decode_seconds(1) > 0


def test_a_noisy_clock_does_not_make_prompts_free():
    cost = learnt(Machine(), [(8, 0)] * 10)
    cost.observe(8, 100, 0.0001)
    assert cost.prefill_seconds > 0


def test_a_prompt_goes_on_however_late_the_step_is():
    cost = learnt(Machine(fixed=5.0), [(8, 0), (8, 50)])
    assert cost.num_tokens_within(0.1, 8) == MIN_CHUNK_TOKENS


def test_halves_of_a_step_are_not_measured_and_later_steps_are():
    machine = Machine()
    pace = StepPace(1.0, machine.clock)
    scheduler = make_scheduler(pace=pace)
    for name in "ab":
        scheduler.add(distinct(name, 3))
    batch = scheduler.schedule_batch()
    for half in batch.halves():
        pace.note_computed(half)
    assert pace.cost.prefill_seconds == 0.0
    later = scheduler.schedule_batch()
    machine.now = 3.0
    pace.note_computed(later)
    assert pace.cost.prefill_seconds > 0


def test_a_guessed_token_counts_as_a_row():
    machine = Machine()
    pace = StepPace(1.0, machine.clock)
    request = distinct("a", 3)
    for draft in ((), (5, 6)) * 20:
        item = ScheduledRequest(request, 1, True, draft)
        batch = ScheduledBatch([item], 1, num_drafted=len(draft))
        pace.note_scheduled(batch)
        machine.now += machine.seconds(1 + len(draft), 0)
        pace.note_computed(batch)
    assert pace.cost.prefill_seconds == 0.0
    assert pace.cost.decode_seconds(2) == pytest.approx(machine.seconds(2, 0))


def test_overlapping_steps_are_not_counted_twice():
    machine = Machine()
    pace = StepPace(1.0, machine.clock)
    scheduler = make_scheduler(pace=pace)
    started(scheduler, distinct("a", 3))
    pace.cost = StepCost()
    batches = [scheduler.schedule_batch() for _ in range(2)]
    for batch in batches:
        machine.now += 1.0
        pace.note_computed(batch)
    assert pace.cost.decode_seconds(1) == pytest.approx(1.0)


class PacedEngine:
    """A scheduler whose steps take what a machine would take, on a clock of its own."""

    def __init__(self, machine, target, **limits) -> None:
        self.machine = machine
        self.noise = random.Random(5)
        pace = StepPace(target, machine.clock)
        wide = {"num_blocks": 2_000, "max_batch_tokens": 256}
        self.scheduler = make_scheduler(pace=pace, **{**wide, **limits})

    def step(self):
        """Run a step; return its seconds and shares."""
        batch = self.scheduler.schedule_batch()
        rows = sum(item.num_new_tokens == 1 for item in batch.scheduled)
        seconds = self.machine.seconds(rows, batch.num_tokens - rows)
        seconds *= self.noise.uniform(0.9, 1.1)
        self.machine.now += seconds
        count = len(batch.sampling)
        self.scheduler.update(batch, SampledTokens([7] * count, [], [None] * count, {}))
        return seconds, share(batch)

    def start(self, *requests):
        """Add requests whose tokens are waited for, and run the step that admits them."""
        for request in requests:
            request.streaming = True
            self.scheduler.add(request)
        self.step()
        return requests


@pytest.mark.parametrize("kind", ["fifo", "prefill_first", "priority"])
def test_streams_keep_their_pace_while_a_long_prompt_enters(kind):
    target = 0.2
    engine = PacedEngine(Machine(), target, kind=kind)
    streams = [distinct(name, 20, max_new_tokens=5_000) for name in "abcd"]
    engine.start(*streams)
    for _ in range(20):
        engine.step()
    engine.scheduler.add(distinct("p", 4_000))
    num_steps = 0
    while engine.scheduler.waiting or engine.scheduler.running["p"].num_missing_tokens > 1:
        seconds, shares = engine.step()
        num_steps += 1
        assert all(shares.get(stream.request_id) == 1 for stream in streams), "a stream was left"
        # The first steps of another mix are guesses; none is far off.
        assert seconds < (1.25 if num_steps > 5 else 2.0) * target
        assert 1 < shares["p"] <= 256
    # The target is used, not only kept: at most a fifth more steps than it allows.
    assert num_steps < 1.2 * 4_000 / ((target - engine.machine.seconds(4, 0)) / 0.004)


@pytest.mark.parametrize("max_batch_tokens", [5, 8, 64])
def test_a_prompt_that_goes_first_leaves_each_stream_its_token(max_batch_tokens):
    """However much the target allows: beside a stream no prompt has the whole of a step."""
    engine = PacedEngine(
        Machine(),
        1e6,
        kind="prefill_first",
        max_batch_tokens=max_batch_tokens,
        max_requests=max_batch_tokens,
    )
    streams = engine.start(*(distinct(name, 1, max_new_tokens=5_000) for name in "abcd"))
    engine.step()
    engine.scheduler.add(distinct("p", 500))
    engine.step()
    while engine.scheduler.running["p"].num_missing_tokens > max_batch_tokens:
        shares = engine.step()[1]
        assert list(shares) == ["p", *(stream.request_id for stream in streams)]
        assert list(shares.values()) == [max_batch_tokens - 4, 1, 1, 1, 1]


def test_without_a_target_a_prompt_that_goes_first_may_have_the_whole_of_a_step():
    """As documented: the prompts of `prefill_first` come before everything else."""
    scheduler = make_scheduler(64, kind="prefill_first", max_batch_tokens=8)
    started(scheduler, distinct("a", 3))
    scheduler.add(distinct("p", 50))
    assert share(step(scheduler)[0]) == {"a": 1, "p": 7}
    assert share(step(scheduler)[0]) == {"p": 8}


def test_without_a_stream_prompts_enter_as_fast_as_they_can():
    engine = PacedEngine(Machine(), 0.02)
    engine.scheduler.add(distinct("p", 4_000))
    assert [engine.step()[1]["p"] for _ in range(3)] == [256, 256, 256]


def test_beside_requests_that_are_delivered_whole_prompts_enter_as_fast_as_they_can():
    engine = PacedEngine(Machine(), 0.02)
    (whole,) = engine.start(distinct("a", 20, max_new_tokens=5_000))
    whole.streaming = False
    engine.step()
    engine.scheduler.add(distinct("p", 4_000))
    assert [engine.step()[1] for _ in range(3)] == [{"a": 1, "p": 255}] * 3
    whole.streaming = True
    assert engine.step()[1] == {"a": 1, "p": MIN_CHUNK_TOKENS}


def test_without_a_target_the_clock_is_not_even_read():
    pace = StepPace(0.0, lambda: pytest.fail("read"))
    scheduler = make_scheduler(pace=pace, max_batch_tokens=64)
    started(scheduler, distinct("a", 3))
    scheduler.add(distinct("p", 50))
    assert share(step(scheduler)[0]) == {"a": 1, "p": 50}


def test_a_step_that_is_late_anyway_leaves_no_stream_out():
    engine = PacedEngine(Machine(fixed=3.0), 0.1)
    streams = engine.start(*(distinct(name, 3) for name in "abc"))
    engine.step()
    for name in "pq":
        engine.scheduler.add(distinct(name, 40))
    names = [stream.request_id for stream in streams]
    assert engine.step()[1] == {**dict.fromkeys(names, 1), "p": MIN_CHUNK_TOKENS}


def test_the_pace_follows_a_machine_that_becomes_slower():
    engine = PacedEngine(Machine(), 0.2)
    engine.start(distinct("a", 20, max_new_tokens=5_000))
    engine.step()
    engine.scheduler.add(distinct("p", 4_000))
    for _ in range(10):
        engine.step()
    engine.machine.token *= 2
    seconds = [engine.step()[0] for _ in range(40)]
    assert max(seconds[20:]) < 1.25 * 0.2


def test_short_prompts_wait_for_no_more_than_the_prompts_before_them():
    """All prompts together have the tokens that the target allows, in order of arrival."""
    engine = PacedEngine(Machine(), 0.2)
    engine.start(distinct("a", 20, max_new_tokens=5_000))
    for _ in range(5):
        engine.step()
    for name in "pqr":
        engine.scheduler.add(distinct(name, 30))
    counts = itertools.chain.from_iterable(engine.step()[1].items() for _ in range(5))
    assert dict(counts).keys() >= {"p", "q", "r"}
