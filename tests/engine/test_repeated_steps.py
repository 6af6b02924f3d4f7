"""Steps in which nothing is decided: the same requests decode on, and no one pays for deciding."""

from dataclasses import fields

import pytest
import torch

from engine.batch import SampledTokens, ScheduledBatch, ScheduledRequest
from engine.input_builder import InputBuilder
from engine.sampling.sampler import Sampler
from tests.engine.builders import make_request, make_scheduler
from tests.engine.scheduling import distinct, share, started, step

PAGE = 4


def decoding(num_blocks=64, kind="fifo", **limits):
    """Return a scheduler with a and b running, two steps into their answers."""
    scheduler = make_scheduler(num_blocks=num_blocks, kind=kind, **limits)
    requests = started(scheduler, distinct("a", 3), distinct("b", 6))
    step(scheduler)
    return scheduler, requests


def test_a_decode_step_after_a_decode_step_continues_it():
    scheduler, _ = decoding()
    first, _ = step(scheduler)
    second, outputs = step(scheduler)
    assert (first.continues, second.continues) == (True, True)
    assert second.scheduled is first.scheduled
    assert share(second) == {"a": 1, "b": 1}
    assert outputs == []  # nobody streams


def test_the_first_decode_step_continues_nothing():
    scheduler = make_scheduler()
    started(scheduler, distinct("a", 3))
    assert not step(scheduler)[0].continues
    assert step(scheduler)[0].continues


@pytest.mark.parametrize("kind", ["fifo", "prefill_first", "priority"])
def test_whatever_changes_who_runs_is_decided_anew(kind):
    scheduler, (a, b) = decoding(kind=kind)
    scheduler.add(distinct("c", 2))
    arrived, _ = step(scheduler)
    assert (arrived.continues, share(arrived)) == (False, {"a": 1, "b": 1, "c": 2})
    step(scheduler)
    assert step(scheduler)[0].continues
    scheduler.cancel(b)
    left, _ = step(scheduler)
    assert (left.continues, share(left)) == (False, {"a": 1, "c": 1})
    assert step(scheduler)[0].continues
    scheduler.preempt(a)
    back, _ = step(scheduler)
    assert not back.continues
    assert list(share(back)) == ["c", "a"]


def test_the_end_of_a_request_is_decided_anew():
    scheduler = make_scheduler()
    started(scheduler, distinct("a", 3, max_new_tokens=4), distinct("b", 3))
    shares = [share(step(scheduler)[0]) for _ in range(4)]
    assert shares == [{"a": 1, "b": 1}] * 3 + [{"b": 1}]


def test_a_row_that_fails_is_gone_from_the_next_step():
    scheduler, (a, _) = decoding()
    step(scheduler, errors={0: RuntimeError("broken")})
    assert a.is_finished()
    batch, _ = step(scheduler)
    assert (batch.continues, share(batch)) == (False, {"b": 1})


def test_waiting_requests_that_cannot_start_change_nothing():
    scheduler, _ = decoding(max_requests=2)
    scheduler.add(distinct("c", 2))
    assert step(scheduler)[0].continues
    scheduler, _ = decoding(num_blocks=6)
    scheduler.add(distinct("c", 17))  # 5 blocks, and 3 are taken
    assert not step(scheduler)[0].continues  # tried once
    step(scheduler)
    assert step(scheduler)[0].continues


def test_a_waiting_request_that_may_take_a_row_does():
    scheduler, (_, b) = decoding(kind="priority", max_requests=2)
    b.priority = 5
    urgent = distinct("c", 2)
    urgent.priority = 1
    scheduler.add(urgent)
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1, "c": 2}


def test_blocks_grow_and_fill_as_in_any_other_step():
    scheduler, (a, _) = decoding()
    for _ in range(20):
        assert step(scheduler)[0].continues
    assert len(a.block_ids) == -(-a.num_computed // PAGE)
    assert a.num_indexed_blocks == a.num_computed // PAGE


def test_when_blocks_run_out_somebody_gives_way():
    scheduler, (a, b) = decoding(num_blocks=5)
    for _ in range(12):
        step(scheduler)
    assert b.num_preemptions == 1
    assert a.num_preemptions == 0


def test_tensors_that_are_moved_on_equal_tensors_that_are_made():
    scheduler, _ = decoding(num_blocks=256)
    builder = InputBuilder(PAGE, torch.device("cpu"))
    num_continued = 0
    for _ in range(45):
        batch = scheduler.schedule_batch()
        moved = builder.build(batch)
        made = InputBuilder(PAGE, torch.device("cpu")).build(batch)
        for field in fields(made):
            left, right = getattr(moved, field.name), getattr(made, field.name)
            if field.name == "block_table":
                left, right = left[:, : right.shape[1]].tolist(), right.tolist()
            elif isinstance(left, torch.Tensor):
                left, right = left.tolist(), right.tolist()
            assert left == right, field.name
        drawn = [10 + num_continued, 60 + num_continued]
        scheduler.update(batch, SampledTokens(drawn, [], [], {}, is_plain=True))
        num_continued += batch.continues
    assert num_continued == 45


def test_a_builder_that_has_not_seen_the_batch_before_makes_it():
    scheduler, _ = decoding()
    builder = InputBuilder(PAGE, torch.device("cpu"))
    other = make_request("z", [1])
    other.block_ids.append(9)
    builder.build(decode_batch(other, continues=False))
    batch = scheduler.schedule_batch()
    assert batch.continues
    assert builder.build(batch).context_lengths == [5, 8]


def decode_batch(*requests, continues):
    scheduled = [ScheduledRequest(request, 1, True) for request in requests]
    return ScheduledBatch(scheduled, len(scheduled), continues=continues)


def test_plain_rows_are_drawn_at_once():
    sampler = Sampler(return_logprobs=False)
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    requests = [make_request("a"), make_request("b")]
    slow = sampler.sample_batch(logits, decode_batch(*requests, continues=False))
    quick = sampler.sample_batch(logits, decode_batch(*requests, continues=True))
    assert (slow.is_plain, quick.is_plain) == (False, True)
    assert quick.token_ids == slow.token_ids == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_without_a_maximum_fails_alone_among_plain_ones(value):
    sampler = Sampler(return_logprobs=False)
    logits = torch.zeros(2, 50)
    requests = [make_request("a"), make_request("b")]
    sampler.sample_batch(logits, decode_batch(*requests, continues=False))
    logits[1, 3] = value
    drawn = sampler.sample_batch(logits, decode_batch(*requests, continues=True))
    assert list(drawn.errors) == [1]
    assert not drawn.is_plain


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.7}, {"top_logprobs": 2}, {"logit_bias": {3: 1.0}}, {"min_new_tokens": 3}],
)
def test_rows_that_ask_for_more_are_never_drawn_as_plain_ones(params):
    sampler = Sampler(return_logprobs=False)
    logits = torch.zeros(1, 50)
    request = make_request("a", **params)
    sampler.sample_batch(logits, decode_batch(request, continues=False))
    assert not sampler.sample_batch(logits, decode_batch(request, continues=True)).is_plain


def test_logprobs_of_the_configuration_are_always_given():
    sampler = Sampler(return_logprobs=True)
    request = make_request("a")
    for continues in (False, True):
        drawn = sampler.sample_batch(torch.zeros(1, 50), decode_batch(request, continues=continues))
        assert len(drawn.logprobs) == 1
