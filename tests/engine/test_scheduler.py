"""What each step computes: order, budgets, chunks, sharing, preemption."""

import pytest

from engine.requests import FinishReason, RequestStatus
from tests.engine.builders import make_request, make_scheduler
from tests.engine.scheduling import distinct, full_of_three, prompt, share, started, step

KINDS = ["fifo", "prefill_first"]


@pytest.mark.parametrize("kind", KINDS)
def test_new_requests_start_in_order_of_arrival(kind):
    scheduler = make_scheduler(kind=kind)
    for name in "abc":
        scheduler.add(distinct(name, 3))
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 3, "b": 3, "c": 3}
    assert (batch.num_tokens, batch.num_started) == (9, 3)


def test_a_request_draws_a_token_only_when_its_prompt_is_computed():
    scheduler = make_scheduler(max_batch_tokens=4)
    request = distinct("a", 10)
    scheduler.add(request)
    chunks = []
    for _ in range(3):
        batch, _ = step(scheduler)
        chunks.append((batch.num_tokens, len(batch.sampling)))
    assert chunks == [(4, 0), (4, 0), (2, 1)]
    assert request.generated_tokens == [7]


def test_fifo_lets_decoding_requests_go_before_prefilling_ones():
    scheduler = make_scheduler(max_batch_tokens=8)
    started(scheduler, distinct("a", 10), distinct("b", 10))
    step(scheduler)  # a: last 2, then b: 6
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1, "b": 4}


def test_prefill_first_lets_prefilling_requests_go_before_decoding_ones():
    scheduler = make_scheduler(kind="prefill_first", max_batch_tokens=8)
    started(scheduler, distinct("a", 8))
    scheduler.add(distinct("b", 12))
    step(scheduler)
    batch, _ = step(scheduler)
    assert share(batch) == {"b": 5, "a": 1}
    scheduler.add(distinct("c", 30))
    step(scheduler)
    batch, _ = step(scheduler)
    assert share(batch) == {"c": 8}


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_and_prefilling_share_a_step(kind):
    scheduler = make_scheduler(kind=kind, max_batch_tokens=16)
    started(scheduler, distinct("a", 3))
    scheduler.add(distinct("b", 5))
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1, "b": 5}


def test_the_token_budget_is_never_exceeded():
    scheduler = make_scheduler(max_batch_tokens=5, max_requests=5)
    for name in "abcde":
        scheduler.add(distinct(name, 4))
    for _ in range(12):
        batch, _ = step(scheduler)
        assert sum(share(batch).values()) == batch.num_tokens <= 5


def test_no_more_requests_run_than_allowed():
    scheduler = make_scheduler(max_requests=2)
    for name in "abc":
        scheduler.add(distinct(name, 2, max_new_tokens=2))
    step(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 1)
    step(scheduler)
    batch, _ = step(scheduler)
    assert share(batch) == {"c": 2}


def test_a_request_waits_until_the_whole_of_it_fits():
    """Starting a prompt that cannot be finished would only make others give way."""
    scheduler = make_scheduler(num_blocks=4)
    started(scheduler, distinct("a", 9))
    scheduler.add(distinct("b", 8))
    step(scheduler)
    assert list(scheduler.running) == ["a"]


def test_nobody_overtakes_the_head_of_the_queue():
    scheduler = make_scheduler(num_blocks=4)
    started(scheduler, distinct("a", 9))
    scheduler.add(distinct("b", 8))
    scheduler.add(distinct("c", 1))
    step(scheduler)
    assert list(scheduler.running) == ["a"]


def test_new_requests_leave_the_reserved_blocks_to_running_ones():
    scheduler = make_scheduler(num_blocks=8, num_reserved_blocks=3)
    started(scheduler, distinct("a", 8), distinct("b", 12))
    assert list(scheduler.running) == ["a", "b"]
    scheduler.add(distinct("c", 1))
    step(scheduler)
    assert list(scheduler.running) == ["a", "b"]


def test_a_request_that_would_reach_into_the_reserved_blocks_waits():
    scheduler = make_scheduler(num_blocks=8, num_reserved_blocks=3)
    started(scheduler, distinct("a", 8), distinct("b", 16))
    assert list(scheduler.running) == ["a"]


def test_an_idle_engine_takes_a_request_that_needs_the_reserved_blocks():
    scheduler = make_scheduler(num_blocks=4, num_reserved_blocks=3)
    started(scheduler, distinct("a", 15))
    assert list(scheduler.running) == ["a"]


def test_the_newest_request_gives_way_when_blocks_run_out():
    scheduler, (_, _, newest) = full_of_three()
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1}
    assert list(scheduler.running) == ["a"]
    assert newest.num_preemptions == 1
    assert scheduler.num_preemptions == 2


def test_preempted_requests_wait_at_the_head_in_their_old_order():
    scheduler, _ = full_of_three()
    scheduler.add(distinct("d", 1))
    step(scheduler)
    assert [request.request_id for request in scheduler.waiting] == ["b", "c", "d"]


def test_a_preempted_request_keeps_its_tokens_and_its_first_start():
    scheduler, (_, _, newest) = full_of_three()
    began = newest.lifespan[0]
    generated = list(newest.generated_tokens)
    step(scheduler)
    assert (newest.status, newest.generated_tokens) == (RequestStatus.PENDING, generated)
    assert (newest.block_ids, newest.num_computed) == ([], 0)
    assert newest.lifespan[0] == began


def test_a_readmitted_request_is_not_started_again():
    """It gave its place in the queue back when it first started."""
    scheduler, (oldest, *_) = full_of_three()
    step(scheduler)
    scheduler.cancel(oldest)
    batch, _ = step(scheduler)
    assert list(share(batch)) == ["b"]
    assert batch.num_started == 0


def test_the_share_of_a_victim_is_taken_back():
    """It was given its share earlier in the same step, and its blocks belong to another now."""
    scheduler = make_scheduler(num_blocks=5, kind="prefill_first", max_batch_tokens=16)
    started(scheduler, distinct("a", 8), distinct("b", 12))
    batch, _ = step(scheduler)
    assert share(batch) == {"a": 1}
    assert batch.num_tokens == 1
    assert [request.request_id for request in scheduler.waiting] == ["b"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_oldest_request_always_goes_on(kind):
    """So every request ends: no pair of requests can take blocks from each other for ever."""
    scheduler = make_scheduler(num_blocks=6, page_size=4, kind=kind, max_batch_tokens=8)
    requests = [distinct(name, 6, max_new_tokens=16) for name in "abcdef"]
    for request in requests:
        scheduler.add(request)
    for _ in range(500):
        if not scheduler.has_requests():
            break
        oldest = next(iter(scheduler.running.values()), None)
        num_computed = oldest.num_computed if oldest else 0
        num_preemptions = oldest.num_preemptions if oldest else 0
        step(scheduler)
        if oldest is None:
            continue
        assert oldest.num_preemptions == num_preemptions
        # A decoding request may wait for prefilling ones, where these go first.
        assert oldest.is_finished() or oldest.num_computed > num_computed or kind != "fifo"
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests)
    assert scheduler.num_preemptions > 0


def test_a_cached_prefix_is_not_computed_again():
    scheduler = make_scheduler()
    (first,) = started(scheduler, make_request("a", prompt(9), max_new_tokens=1))
    assert first.is_finished()
    scheduler.add(make_request("b", prompt(9)))
    batch = scheduler.schedule_batch()
    assert share(batch) == {"b": 1}
    assert batch.scheduled[0].first_position == 8


def test_a_partly_cached_page_is_copied_in_the_step_that_starts_the_request():
    scheduler = make_scheduler()
    started(scheduler, make_request("a", prompt(8), max_new_tokens=1))
    scheduler.add(make_request("b", prompt(8)))
    batch, _ = step(scheduler)
    assert [copy.num_slots for copy in batch.block_copies] == [3]
    assert step(scheduler)[0].block_copies == []


def test_a_request_that_cannot_start_yet_copies_nothing():
    scheduler = make_scheduler(num_blocks=4)
    started(scheduler, make_request("a", prompt(3), max_new_tokens=1))
    started(scheduler, distinct("b", 8))
    scheduler.add(make_request("c", prompt(11)))
    batch, _ = step(scheduler)
    assert batch.block_copies == []
    assert list(scheduler.running) == ["b"]


def test_an_idle_scheduler_has_an_empty_batch():
    scheduler = make_scheduler()
    assert not scheduler.has_requests()
    assert scheduler.schedule_batch().scheduled == []


def test_halves_of_a_batch_cover_it_and_copy_nothing_again():
    scheduler = make_scheduler()
    started(scheduler, make_request("a", prompt(8), max_new_tokens=1))
    for name in ("b", "c", "d"):
        scheduler.add(make_request(name, prompt(8)))
    batch = scheduler.schedule_batch()
    assert batch.block_copies
    first, second = batch.halves()
    assert first.scheduled + second.scheduled == batch.scheduled
    assert first.num_tokens + second.num_tokens == batch.num_tokens
    assert first.block_copies == second.block_copies == []
